package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/probe"
)

// Ids of the checks that others build on.
const (
	idGPU     = "kernel-gpu-present"
	idModule  = "kernel-module-loaded"
	idDriver  = "kernel-driver-bound"
	idKFDNode = "kernel-kfd-present"
	idKFDOpen = "kernel-kfd-access"
	idAgents  = "rocr-agents"
)

func kernelRows() []row {
	k := probe.LayerKernel
	return []row{
		{
			id: idGPU, layer: k, title: "an AMD GPU is on the PCI bus", run: checkPresent,
			cause:  "no AMD display or accelerator device is visible to the kernel",
			fix:    "check the card's seat and power and the firmware's settings; in a VM pass the device through; hearth runs on the CPU meanwhile (--allow-cpu accepts that)",
			source: "/sys/bus/pci/devices",
		},
		{
			id: "kernel-command-line", layer: k, title: "the kernel command line does not keep amdgpu away", run: checkCmdline,
			cause:  "a kernel parameter keeps the driver from the GPU",
			fix:    "remove it from the boot loader's command line and reboot",
			source: "kernel parameters",
		},
		{
			id: idModule, layer: k, title: "the amdgpu kernel driver is loaded", needs: []string{idGPU}, run: checkModule,
			cause:  "the module is blacklisted or missing, nomodeset is set, or the kernel is older than the GPU",
			fix:    "sudo modprobe amdgpu, and look at dmesg; a newer kernel and linux-firmware for a new card",
			source: "amdgpu",
		},
		{
			id: idDriver, layer: k, title: "amdgpu drives every AMD GPU", needs: []string{idModule}, run: checkBound,
			cause:  "another driver has the GPU, or amdgpu gave up on it",
			fix:    "unbind vfio-pci for a card that is not passed to a VM; with no driver at all see kernel-firmware and dmesg",
			source: "ROCm #912; kernel driver links in sysfs",
		},
		{
			id: idKFDNode, layer: k, title: "the kernel offers /dev/kfd", needs: []string{idModule}, run: checkKFDNode,
			cause:  "the kernel was built without CONFIG_HSA_AMD, or amdgpu drives no GPU",
			fix:    "a distribution kernel; " + fixVulkan,
			source: "ROCm #795",
		},
		{
			id: idKFDOpen, layer: k, title: "/dev/kfd can be opened", needs: []string{idKFDNode}, run: checkKFDOpen,
			cause:  "this user may not open /dev/kfd",
			fix:    fixGroups,
			source: "measured: ROCr hides the reason behind 0x1008; rocminfo #34; ROCm #1080 #1211",
		},
		{
			id: "kernel-render-access", layer: k, title: "every render node can be opened", needs: []string{idDriver}, run: checkRender,
			cause:  "this user may not open a render node; neither HIP nor Vulkan can use the GPU",
			fix:    fixGroups,
			source: "measured: one refused render node takes every GPU from ROCr; fastfetch #1513",
		},
		{
			id: "kernel-groups", layer: k, title: "this process is in the groups of the device nodes", needs: []string{idGPU}, run: checkGroups,
			cause:  "the process is not in the group that owns the device nodes; a login made before usermod keeps the old groups",
			fix:    fixGroups,
			source: "getgroups(2), not /etc/group, decides",
		},
		{
			id: "kernel-topology", layer: k, title: "KFD lists every GPU that amdgpu drives", needs: []string{idDriver, idKFDOpen}, run: checkTopology,
			cause:  "KFD skipped the GPU: PCIe without atomics, a generation it does not support, or a container that masks it",
			fix:    "see kernel-atomics and kernel-kfd-unsupported; " + fixVulkan,
			source: "ROCm #1214 #2232",
		},
		{
			id: "kernel-cwsr-keys", layer: k, title: "the kernel says how large a wave save area is", needs: []string{"kernel-topology"}, run: checkCWSRKeys,
			cause:  "this kernel does not export cwsr_size; with newer firmware ROCr computes another size and every queue is refused",
			fix:    "a kernel with the key (6.19, or 6.18.4 and distributions' backports) if HIP fails; Vulkan is not concerned",
			source: "kernel patch 8fc2796dea6f; rocm-systems #11299; ROCm #6118; lemonade #1575 (the key may be missing and all be well)",
		},
		{
			id: "kernel-rebar", layer: k, title: "resizable BAR is on", needs: []string{idDriver}, run: checkReBAR,
			cause:  "only a part of the VRAM is visible to the CPU: loading is slow, there is no peer to peer",
			fix:    "turn on Above 4G Decoding and Resizable BAR in the firmware's setup; Vulkan: GGML_VK_DISABLE_HOST_VISIBLE_VIDMEM=1",
			source: "llama.cpp #27097",
		},
		{
			id: "kernel-apu-memory", layer: k, title: "an integrated GPU may map most of the memory", needs: []string{idDriver}, run: checkTTM,
			cause:  "the kernel's default lets the GPU map half of the RAM",
			fix:    "kernel parameter ttm.pages_limit=N (4 KiB pages: 27262976 is 104 GiB), and a small carve-out (512 MiB) in the firmware's setup",
			source: "llama.cpp #18159 #19818; ROCm #5444",
		},
		{
			id: "kernel-vram-spill", layer: k, title: "no GPU's memory spills into the system's", needs: []string{idDriver}, run: checkSpill,
			cause:  "the VRAM is full and the driver puts the rest into system memory: the GPU goes on at about a tenth of its speed",
			fix:    "unload models or other programs on the GPU (hearth ps; hearth devices --watch), or use a smaller context, KV type or quantisation",
			source: "mem_info_vram_used and mem_info_gtt_used; hearth_device_vram_spilled_bytes says it while hearth serves",
		},
		{
			id: "kernel-pcie-link", layer: k, title: "the PCIe link has its full width", needs: []string{idDriver}, run: checkPCIe,
			cause:  "the card sits in a slot with fewer lanes than it has: loading is slow, split models are slow",
			fix:    "another slot, or nothing if the board has no better one",
			source: "current_link_width and the root port's",
		},
		{
			id: "kernel-iommu", layer: k, title: "several GPUs can reach each other", needs: []string{idDriver}, run: checkIOMMU,
			cause:  "with the IOMMU translating, copies between GPUs can hang or give garbage",
			fix:    "kernel parameter iommu=pt; keep GGML_CUDA_P2P unset",
			source: "llama.cpp #11509 #12012; ROCm #6342",
		},
		{
			id: "kernel-sysfs", layer: k, title: "sysfs answers", run: checkSysfs,
			cause:  "the driver hangs in its own files, or they hold what cannot be parsed",
			fix:    "reboot if reads hang; amdgpu.runpm=0 if they hang whenever the card sleeps; else report the file",
			source: "ROCm #5745",
		},
	}
}

// kernelLogRows look for lines in the kernel log.
func kernelLogRows() []row {
	k := probe.LayerKernel
	log := func(id, title string, symptoms ...string) row {
		return row{id: id, layer: k, title: title, needs: []string{idGPU}, symptoms: symptoms, where: inKernelLog}
	}
	return []row{
		log("kernel-firmware", "the GPU's firmware was loaded", "kernel-firmware"),
		log("kernel-atomics", "PCIe carries atomics to every GPU", "kernel-atomics"),
		log("kernel-kfd-unsupported", "KFD supports every GPU", "kernel-kfd-unsupported"),
		log("kernel-cwsr-mismatch", "ROCr and kernel agree on the wave save area", "kernel-cwsr"),
		log("kernel-mes", "the GPU's scheduler firmware answers", "kernel-mes"),
		log("kernel-page-fault", "no page faults on the GPU since the boot", "kernel-page-fault"),
		log("kernel-reset", "no GPU reset since the boot", "kernel-ring-timeout"),
	}
}

func checkPresent(f *facts) outcome {
	if f.HasGPU() {
		var names []string
		for _, d := range f.Devices {
			names = append(names, describe(d))
		}
		return good(strings.Join(names, ", "))
	}
	if f.System.WSL {
		return skipped("WSL shows GPUs through /dev/dxg, see wsl-dxg")
	}
	if f.env.AllowCPU {
		return skipped("no AMD GPU, which --allow-cpu accepts")
	}
	return bad("none of the PCI devices is an AMD display or accelerator")
}

func describe(d backends.Device) string {
	s := d.Name
	if d.GFX != "" {
		s += " (" + d.GFX + ")"
	}
	if d.PCI != "" {
		s += " at " + string(d.PCI)
	}
	return s
}

func checkCmdline(f *facts) outcome {
	if len(f.cmdline) == 0 {
		return unknown("/proc/cmdline is not readable")
	}
	for _, p := range f.cmdline {
		key, value, _ := strings.Cut(p, "=")
		switch {
		case p == "nomodeset",
			(key == "modprobe.blacklist" || key == "module_blacklist") && slices.Contains(strings.Split(value, ","), "amdgpu"):
			if f.HasGPU() {
				return bad(p)
			}
			return warning(p)
		}
	}
	return good("")
}

func checkModule(f *facts) outcome {
	if !f.System.Driver.Loaded {
		return bad("/sys/module/amdgpu does not exist")
	}
	if f.System.Driver.Version != "" {
		return good("out-of-tree amdgpu " + f.System.Driver.Version + " on kernel " + f.System.Driver.Kernel)
	}
	return good("kernel " + f.System.Driver.Kernel)
}

func checkBound(f *facts) outcome {
	var wrong []string
	bound := 0
	for _, c := range f.System.Cards {
		switch c.Driver {
		case "amdgpu":
			bound++
		case "":
			wrong = append(wrong, fmt.Sprintf("%s has no driver", c.PCI))
		default:
			wrong = append(wrong, fmt.Sprintf("%s belongs to %s", c.PCI, c.Driver))
		}
	}
	switch {
	case len(wrong) == 0:
		return good("")
	case bound > 0: // a second card for a VM is what people set up on purpose
		return warning(strings.Join(wrong, ", "))
	}
	return bad(strings.Join(wrong, ", "))
}

// boxed turns a failure inside a container into a pointer to the container's checks, which know the flags to add.
func (f *facts) boxed(o outcome) outcome {
	if f.box.kind != "" && o.status == Fail {
		return o.because("the "+f.box.kind+" container does not have the device, see the container checks",
			"pass it in: --device /dev/kfd --device /dev/dri")
	}
	return o
}

func checkKFDNode(f *facts) outcome {
	if errors.Is(f.System.KFD.Err, syscall.ENOENT) {
		evidence := "/dev/kfd does not exist, amdgpu is loaded"
		if f.System.Driver.KFDMajor.Known() {
			evidence = "/dev/kfd does not exist, although the kernel has KFD (/proc/devices)"
		}
		return f.boxed(bad(evidence))
	}
	return good("")
}

func checkKFDOpen(f *facts) outcome {
	err := f.System.KFD.Err
	if err == nil {
		return good("")
	}
	o := bad(f.nodeEvidence(f.System.KFD))
	switch errno := backends.ErrnoOf(err); errno {
	case syscall.EACCES:
		return o
	case syscall.ENOMEM:
		return o.because("KFD found no GPU that it supports", fixVulkan).from("ROCm #2232 #1185 #1109")
	case syscall.EPERM, syscall.EINVAL, syscall.EFAULT:
		return o.because("a device cgroup or namespace refuses the node (LXC, a sandbox)",
			"LXC: lxc.cgroup2.devices.allow for c 226:* and KFD's major number, and mount entries for both").from("ROCm #4043 #5379; rocminfo #37")
	case syscall.ENXIO, syscall.ENODEV:
		return o.because("the node is there and no driver stands behind it", "load amdgpu, or remove a stale /dev/kfd of a container image")
	}
	return o.because("the node cannot be opened", "see the error")
}

// nodeEvidence is "/dev/kfd: EACCES (crw-rw---- root:render; this process is in: users, audio)".
func (f *facts) nodeEvidence(a kfd.Access) string {
	errno := backends.ErrnoName(backends.ErrnoOf(a.Err))
	if errno == "" && a.Err != nil {
		errno = a.Err.Error()
	}
	s := fmt.Sprintf("%s: %s", a.Path, errno)
	node, err := f.env.FS.Stat(strings.TrimPrefix(a.Path, "/"))
	if err != nil {
		return s
	}
	s += fmt.Sprintf(" (mode %04o, group %s", node.Mode.Perm(), f.user.groupName(uint64(node.GID)))
	if f.user.known {
		var mine []string
		for _, g := range f.user.groups {
			if name := f.user.groupName(g); !slices.Contains(mine, name) { // the effective group is listed among the others too
				mine = append(mine, name)
			}
		}
		s += "; this process is in: " + strings.Join(mine, " ")
	}
	return s + ")"
}

// renders are all render nodes, by path: those of the PCI walk and those that KFD names.
func (f *facts) renders() []kfd.Access {
	var out []kfd.Access
	add := func(a kfd.Access) {
		if a.Path != "" && !slices.ContainsFunc(out, func(b kfd.Access) bool { return b.Path == a.Path }) {
			out = append(out, a)
		}
	}
	for _, c := range f.System.Cards {
		for _, a := range c.Renders {
			add(a)
		}
	}
	for _, n := range f.GPUNodes() {
		add(n.Render)
	}
	return out
}

func checkRender(f *facts) outcome {
	all := f.renders()
	if len(all) == 0 {
		return f.boxed(bad("no /dev/dri/renderD* node belongs to an AMD GPU")).
			because("amdgpu made no render node (it did not finish its start), or the container hides it", "see kernel-firmware; in a container --device /dev/dri")
	}
	masked := 0
	var first *kfd.Access
	for i, a := range all {
		if a.Err == nil {
			continue
		}
		if errno := backends.ErrnoOf(a.Err); errno != syscall.ENOENT && errno != syscall.EPERM {
			return bad(f.nodeEvidence(a))
		}
		masked++
		if first == nil {
			first = &all[i]
		}
	}
	switch {
	case masked == 0:
		return good(count(len(all), "render node"))
	case masked < len(all) && f.box.kind != "": // a container that was given some of the host's GPUs
		return good(fmt.Sprintf("%s, %d of the host's are masked", count(len(all)-masked, "render node"), masked))
	}
	return f.boxed(bad(f.nodeEvidence(*first)).because("the render node is missing or masked", "restart udev, or pass /dev/dri into the container"))
}

func checkGroups(f *facts) outcome {
	if !f.user.known {
		return unknown("/proc/self/status is not readable")
	}
	if f.user.uid == 0 {
		return good("root")
	}
	var missing []string
	nodes := f.renders()
	if f.System.KFD.Path != "" {
		nodes = append(nodes, f.System.KFD)
	}
	for _, a := range nodes {
		node, err := f.env.FS.Stat(strings.TrimPrefix(a.Path, "/"))
		if err != nil || !node.IsDevice() {
			continue
		}
		gid := uint64(node.GID)
		open := node.Mode.Perm()&0o006 == 0o006 || uint64(node.UID) == f.user.uid
		if name := f.user.groupName(gid); !open && a.Err != nil && !slices.Contains(f.user.groups, gid) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return good("")
	}
	return bad("not in: " + strings.Join(missing, ", "))
}

func checkTopology(f *facts) outcome {
	listed := map[backends.PCI]bool{}
	for _, n := range f.GPUNodes() {
		listed[n.PCI()] = true
	}
	var missing []string
	covered := true
	for _, d := range f.Devices {
		if d.HIP == nil && d.PCI != "" && !listed[d.PCI] && f.driverOf(d.PCI) == "amdgpu" {
			missing = append(missing, describe(d))
			covered = covered && f.vulkanCovers(d)
		}
	}
	if len(missing) == 0 {
		return good(count(len(f.GPUNodes()), "GPU node"))
	}
	if f.box.kind != "" && len(f.GPUNodes()) > 0 {
		return good(count(len(f.GPUNodes()), "GPU node") + ", the container masks others")
	}
	o := bad("no KFD node for " + strings.Join(missing, ", "))
	if len(f.GPUNodes()) > 0 || covered { // something is left to run on
		o.status = Warn
	}
	return o
}

func (f *facts) driverOf(pci backends.PCI) string {
	for _, c := range f.System.Cards {
		if c.PCI == pci {
			return c.Driver
		}
	}
	return ""
}

func checkCWSRKeys(f *facts) outcome {
	for _, n := range f.GPUNodes() {
		// The mismatch is on record for these alone.
		if gfx := n.GFX(); strings.HasPrefix(gfx, "gfx115") || gfx == "gfx1012" {
			if !n.Prop("cwsr_size").Known() {
				return warning(fmt.Sprintf("node %d (%s) has no cwsr_size, kernel %s", n.Number, gfx, f.System.Driver.Kernel))
			}
		}
	}
	return good("")
}
