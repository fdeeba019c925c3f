package doctor

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"hearth/backends"
	"hearth/backends/probe"
	"hearth/backends/sysroot"
)

// facts is everything the checks judge. It is filled once and then only read.
type facts struct {
	*machine
	env     Env
	user    user
	box     container
	cmdline []string // kernel command line
	// log is the kernel log, logErr why it is not known; logged its symptoms, probed those of the plugins' children.
	log    string
	logErr error
	logged []probe.Finding
	probed []probe.Finding
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
	f := &facts{env: env, machine: look(ctx, env)}
	for _, backend := range []string{backends.HIP, backends.Vulkan} {
		if r, ok := f.Probes[backend]; ok {
			f.probed = append(f.probed, r.Findings...)
		}
	}
	f.user = readUser(env.FS)
	f.box = readContainer(env.FS, env.Environ)
	if s, err := sysroot.ReadString(env.FS, "proc/cmdline"); err == nil {
		f.cmdline = strings.Fields(s)
	}
	f.readLog(ctx)
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
