package doctor

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"hearth/backends"
	"hearth/backends/probe"
)

func containerRows() []row {
	c := probe.LayerContainer
	return []row{
		{
			id: "container-devices", layer: c, title: "the container has the GPU's device nodes", run: checkBoxDevices,
			cause:  "the container was started without the devices",
			fix:    "--device /dev/kfd --device /dev/dri (apptainer: --rocm; LXC: mount entries for both)",
			source: "rocminfo: \"ROCk module is NOT loaded\"; ollama #6685; apptainer #1798",
		},
		{
			id: "container-groups", layer: c, title: "the container's user is in the nodes' groups", run: checkBoxGroups,
			cause:  "group names differ between host and image, so only the number counts",
			source: "llamaMan #85",
		},
		{
			id: "container-rootless", layer: c, title: "a rootless container keeps the host's groups", run: checkRootless,
			cause:  "the user namespace drops the groups that own the device nodes",
			fix:    "podman: --group-add keep-groups with crun as the runtime",
			source: "podman; ROCm #1549",
		},
		{
			id: "container-selinux", layer: c, title: "SELinux lets the container use devices", run: checkSELinux,
			cause:  "SELinux is enforcing and refuses the device nodes",
			fix:    "sudo setsebool -P container_use_devices 1",
			source: "container-selinux",
		},
		{
			id: "container-cgroup", layer: c, title: "the device cgroup admits every GPU", needs: []string{idGPU}, run: checkCgroup,
			cause:  "the container's device cgroup masks a GPU",
			fix:    "allow it (--device for each render node; LXC: lxc.cgroup2.devices.allow), or ignore it when the GPU is meant for others",
			source: "libhsakmt skips nodes whose gpu_id gives EPERM",
		},
		{
			id: "container-seccomp", layer: c, title: "seccomp lets several GPUs work together", run: checkSeccomp,
			cause:  "the default profile blocks calls that RCCL and memory policies use",
			fix:    "--security-opt seccomp=unconfined --ipc=host when a model is split over GPUs and hangs",
			source: "ROCm's container documentation",
		},
		{
			id: "wsl-dxg", layer: c, title: "WSL reaches the GPU", run: checkWSL,
			cause:  "under WSL there is no KFD: ROCm needs librocdxg, and the bundle's HIP plugin needs KFD",
			fix:    "HSA_ENABLE_DXG_DETECTION=1 with librocdxg and a system ROCm (RDNA3 and RDNA4), or the Vulkan backend, or boot Linux itself",
			source: "librocdxg #34 #22; unsloth #9729; ollama #16551",
		},
	}
}

func checkBoxDevices(f *facts) outcome {
	if f.box.kind == "" {
		return skipped("not in a container")
	}
	var missing []string
	if errors.Is(f.System.KFD.Err, syscall.ENOENT) {
		missing = append(missing, "/dev/kfd")
	}
	if names, err := f.env.FS.ReadDir("dev/dri"); err != nil || !strings.Contains(strings.Join(names, " "), "renderD") {
		missing = append(missing, "/dev/dri/renderD*")
	}
	switch {
	case len(missing) == 0:
		return good(f.box.kind)
	case !f.HasGPU() && !f.System.Driver.Loaded:
		return skipped("the host has no AMD GPU either")
	}
	return bad(f.box.kind + ", missing: " + strings.Join(missing, ", "))
}

func checkBoxGroups(f *facts) outcome {
	if f.box.kind == "" {
		return skipped("not in a container")
	}
	for _, a := range append(f.renders(), f.System.KFD) {
		if backends.ErrnoOf(a.Err) != syscall.EACCES {
			continue
		}
		node, err := f.env.FS.Stat(strings.TrimPrefix(a.Path, "/"))
		if err != nil {
			continue
		}
		return bad(f.nodeEvidence(a)).because("", fmt.Sprintf("--group-add %d", node.GID))
	}
	return good("")
}

func checkRootless(f *facts) outcome {
	if !f.user.mapped || f.box.kind == "" {
		return skipped("not a rootless container")
	}
	for _, a := range append(f.renders(), f.System.KFD) {
		if backends.ErrnoOf(a.Err) == syscall.EACCES {
			return bad(f.nodeEvidence(a))
		}
	}
	return good("")
}

func checkSELinux(f *facts) outcome {
	if !f.box.selinux {
		return skipped("SELinux is not enforcing")
	}
	if hit, ok := symptom(f.logged, "container-selinux"); ok {
		return bad(hit.Evidence)
	}
	if f.box.kind == "" {
		return good("")
	}
	for _, a := range append(f.renders(), f.System.KFD) {
		if backends.ErrnoOf(a.Err) == syscall.EACCES {
			return warning("enforcing, and " + f.nodeEvidence(a))
		}
	}
	return good("")
}

func checkCgroup(f *facts) outcome {
	masked := 0
	for _, n := range f.System.Nodes {
		refused := false
		for _, p := range n.Problems {
			refused = refused || p.Errno() == syscall.EPERM || p.Errno() == syscall.EACCES && strings.HasSuffix(p.Path, "gpu_id")
		}
		if refused || backends.ErrnoOf(n.Render.Err) == syscall.EPERM {
			masked++
		}
	}
	if masked == 0 {
		return good("")
	}
	return warning(count(masked, "KFD node") + " cannot be read")
}

func checkSeccomp(f *facts) outcome {
	if f.box.kind == "" || !f.user.seccomp {
		return skipped("no seccomp filter of a container")
	}
	if len(f.GPUNodes()) < 2 {
		return good("one GPU does not need it")
	}
	return warning("a seccomp filter is active and there are several GPUs")
}

func checkWSL(f *facts) outcome {
	if !f.System.WSL {
		return skipped("not WSL")
	}
	if f.System.KFD.OK() {
		return good("/dev/kfd is there as well")
	}
	v, _ := f.env.Environ.Lookup("HSA_ENABLE_DXG_DETECTION")
	lib := f.Libs.Find("librocdxg.so")
	if lib == "" {
		lib = f.Libs.Find("librocdxg.so.1")
	}
	if v == "1" && lib != "" {
		return warning("/dev/dxg with librocdxg: hearth cannot see the GPU's memory and sensors there")
	}
	return bad(fmt.Sprintf("/dev/dxg, no /dev/kfd; HSA_ENABLE_DXG_DETECTION=%q, librocdxg %s", v, foundText(lib)))
}

func foundText(path string) string {
	if path == "" {
		return "not found"
	}
	return "at /" + path
}
