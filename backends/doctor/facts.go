package doctor

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/ldpath"
	"hearth/backends/probe"
	"hearth/backends/sysroot"
	"hearth/backends/vulkan"
)

// facts is everything the checks judge. It is filled once and then only read.
type facts struct {
	env     Env
	sys     kfd.System
	sysErr  error // the walk was cut off
	agents  kfd.Agents
	devices []backends.Device
	vk      vulkan.Inventory
	choice  vulkan.Choice
	vkErr   error // the setting vulkan_driver cannot be followed
	libs    ldpath.Path
	user    user
	box     container
	cmdline []string // kernel command line
	// log is the kernel log, logErr why it is not known; logged its symptoms.
	log    string
	logErr error
	logged []probe.Finding
	// probes are by backend; a missing entry was not run. probed are all their symptoms.
	probes    map[string]probe.Result
	probeErrs map[string]error
	probed    []probe.Finding
}

// user is the process' identity.
type user struct {
	known   bool
	uid     uint64
	groups  []uint64 // effective and supplementary
	seccomp bool     // a filter is active
	mapped  bool     // in a user namespace that maps less than everything: rootless
	names   map[uint64]string
}

// container is what stands between the process and the host.
type container struct {
	kind    string // "docker", "podman", "lxc", "apptainer", "kubernetes", "container"; empty on a host
	selinux bool   // enforcing
}

// gather reads everything. It never fails: what cannot be read stays unknown.
func gather(ctx context.Context, env Env) *facts {
	f := &facts{env: env, probes: map[string]probe.Result{}, probeErrs: map[string]error{}}
	f.sys, f.sysErr = kfd.Read(ctx, env.FS)
	f.agents = f.sys.Agents(env.Environ)
	f.devices = f.sys.Devices(env.Environ)
	f.vk = vulkan.Discover(env.FS, env.Environ)
	f.libs = ldpath.New(env.FS, env.Environ)
	f.user = readUser(env.FS)
	f.box = readContainer(env.FS, env.Environ)
	if s, err := sysroot.ReadString(env.FS, "proc/cmdline"); err == nil {
		f.cmdline = strings.Fields(s)
	}
	f.readLog(ctx)
	var mesa vulkan.BundleMesa
	if env.Bundle != nil {
		mesa = env.Bundle.Mesa
	}
	f.choice, f.vkErr = vulkan.Decide(env.VulkanDriver, f.vk, mesa, f.gfx())
	f.judgeCode()
	f.runProbes(ctx)
	return f
}

func (f *facts) readLog(ctx context.Context) {
	if f.env.KernelLog == nil {
		f.logErr = errors.New("no kernel log in this tree")
		return
	}
	f.log, f.logErr = f.env.KernelLog(ctx)
	if f.logErr == nil {
		f.logged = probe.Diagnose(f.log)
	}
}

// runProbes starts the plugins of the bundle when there is a GPU they could find.
func (f *facts) runProbes(ctx context.Context) {
	if f.env.Probe == nil || !f.hasGPU() {
		return
	}
	run := func(backend string, env []string) (probe.Result, error) {
		r, err := f.env.Probe(ctx, backend, env)
		return r, err
	}
	if f.env.Bundle.Has(backends.HIP) && f.agents.Fatal == nil {
		r, err := run(backends.HIP, nil)
		f.record(backends.HIP, r, err)
	}
	if f.env.Bundle.Has(backends.Vulkan) && f.choice.Driver != "" {
		found, err := vulkan.Enumerate(ctx, func(_ context.Context, extra []string) (probe.Result, error) {
			return run(backends.Vulkan, append(slices.Clone(f.choice.Env), extra...))
		})
		f.record(backends.Vulkan, found.First, err)
		f.devices = backends.MergeVulkan(f.devices, found.List)
	}
}

func (f *facts) record(backend string, r probe.Result, err error) {
	if err != nil {
		f.probeErrs[backend] = err
		return
	}
	f.probes[backend] = r
	f.probed = append(f.probed, r.Findings...)
	if r.OK() {
		return
	}
	for i := range f.devices { // a plugin that dies takes all its devices along
		d := &f.devices[i]
		block := backends.Block{Code: backends.BlockProbe, Text: r.Why()}
		if backend == backends.HIP && d.HIP != nil {
			d.HIP.Blocked = append(d.HIP.Blocked, block)
		}
		if backend == backends.Vulkan && d.Vulkan != nil {
			d.Vulkan.Blocked = append(d.Vulkan.Blocked, block)
		}
	}
}

// hasGPU says that an AMD GPU is known to the kernel, on the PCI bus or in KFD's list.
func (f *facts) hasGPU() bool { return len(f.sys.Cards) > 0 || len(f.gpuNodes()) > 0 }

// gpuNodes are KFD's GPU nodes.
func (f *facts) gpuNodes() []kfd.Node {
	var out []kfd.Node
	for _, n := range f.sys.Nodes {
		if n.IsGPU() {
			out = append(out, n)
		}
	}
	return out
}

// gfx lists the targets of the GPUs, without repetition, integrated ones only when there is nothing else.
func (f *facts) gfx() []string {
	var main, rest []string
	for _, d := range f.devices {
		if d.GFX == "" {
			continue
		}
		if d.Kind == backends.KindIntegrated {
			rest = append(rest, d.GFX)
		} else {
			main = append(main, d.GFX)
		}
	}
	if len(main) == 0 {
		main = rest
	}
	slices.Sort(main)
	return slices.Compact(main)
}

// symptom returns the finding with an id from a list.
func symptom(list []probe.Finding, ids ...string) (probe.Finding, bool) {
	for _, f := range list {
		if slices.Contains(ids, f.ID) {
			return f, true
		}
	}
	return probe.Finding{}, false
}

// readUser parses /proc/self/status. In a captured tree it is the capturing process'.
func readUser(fsys sysroot.FS) user {
	u := user{names: map[uint64]string{}}
	b, err := fsys.ReadFile("proc/self/status")
	if err != nil {
		return u
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch key {
		case "Uid":
			if len(fields) > 1 { // real, effective, saved, file system
				u.uid, err = strconv.ParseUint(fields[1], 10, 32)
				u.known = err == nil
			}
		case "Gid":
			if len(fields) > 1 {
				u.groups = appendNumbers(u.groups, fields[1:2])
			}
		case "Groups":
			u.groups = appendNumbers(u.groups, fields)
		case "Seccomp":
			u.seccomp = len(fields) == 1 && fields[0] == "2"
		}
	}
	if s, err := sysroot.ReadString(fsys, "proc/self/uid_map"); err == nil {
		f := strings.Fields(s)
		u.mapped = len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295"
	}
	if b, err := fsys.ReadFile("etc/group"); err == nil {
		for line := range strings.Lines(string(b)) {
			if p := strings.Split(line, ":"); len(p) >= 3 {
				if gid, err := strconv.ParseUint(p[2], 10, 32); err == nil {
					u.names[gid] = p[0]
				}
			}
		}
	}
	return u
}

func appendNumbers(list []uint64, fields []string) []uint64 {
	for _, s := range fields {
		if n, err := strconv.ParseUint(s, 10, 32); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// groupName is the group's name, or its number when the tree has no name for it.
func (u user) groupName(gid uint64) string {
	if n, ok := u.names[gid]; ok {
		return n
	}
	return strconv.FormatUint(gid, 10)
}

// readContainer looks for the marks that container engines leave.
func readContainer(fsys sysroot.FS, environ backends.Environ) container {
	var c container
	exists := func(name string) bool { _, err := fsys.Stat(name); return err == nil }
	cgroup, _ := sysroot.ReadString(fsys, "proc/1/cgroup")          // absent: no hint
	manager, _ := sysroot.ReadString(fsys, "run/systemd/container") // what systemd found out, "lxc", "docker"
	_, apptainer := environ.Lookup("APPTAINER_NAME")
	_, singularity := environ.Lookup("SINGULARITY_NAME")
	_, pod := environ.Lookup("KUBERNETES_SERVICE_HOST")
	switch {
	case exists(".singularity.d") || apptainer || singularity:
		c.kind = "apptainer"
	case pod || strings.Contains(cgroup, "kubepods"):
		c.kind = "kubernetes"
	case exists("run/.containerenv"):
		c.kind = "podman"
	case exists(".dockerenv") || strings.Contains(cgroup, "docker"):
		c.kind = "docker"
	case manager != "":
		c.kind = manager
	case strings.Contains(cgroup, "lxc"):
		c.kind = "lxc"
	}
	if s, err := sysroot.ReadString(fsys, "sys/fs/selinux/enforce"); err == nil {
		c.selinux = s == "1"
	}
	return c
}
