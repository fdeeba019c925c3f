package probe

// kernelSymptoms: amdgpu and KFD, as they read in the kernel log or in the texts of the processes they take down.
func kernelSymptoms() []Symptom {
	return []Symptom{
		{
			ID: "kernel-firmware", Layer: LayerKernel,
			Match:  `Direct firmware load for amdgpu/\S+ failed with error`,
			Any:    []string{"Fatal error during GPU init", "amdgpu: failed to load ucode", "failed to load ucode"},
			Cause:  "linux-firmware is older than the GPU: amdgpu could not start it",
			Fix:    "update the firmware package (firmware-amd-graphics, linux-firmware), rebuild the initramfs, reboot",
			Source: "ROCm #912; kernelci #2238; talos #12544",
		},
		{
			ID: "kernel-atomics", Layer: LayerKernel,
			Any:    []string{"PCI rejects atomics"},
			Cause:  "the PCIe path to the GPU lacks atomics, so KFD skipped it: HIP cannot use it",
			Fix:    "move the card to a slot wired to the CPU (or one without a switch, Thunderbolt or VM between); Vulkan works as it is",
			Source: "ROCm #1214 #364 #910; amdgpu #151",
		},
		{
			ID: "kernel-kfd-unsupported", Layer: LayerKernel,
			Match:  `kfd.*: .* not supported in kfd`,
			Cause:  "this GPU generation has no KFD support: HIP cannot use it",
			Fix:    "use the Vulkan backend",
			Source: "ROCm #2232 #1185 #1109",
		},
		{
			ID: "kernel-cwsr", Layer: LayerKernel,
			Match:  `expected size 0x[0-9a-f]+ not equal to mapping addr .* size`,
			Cause:  "ROCr and the kernel disagree about the size of a wave save area, so no HIP queue can be created",
			Fix:    "use a kernel that exports cwsr_size (6.19, or a distribution's backport) with ROCr 7.2 or newer; until then Vulkan, or amdgpu.cwsr_enable=0",
			Source: "rocm-systems #11299; ROCm #6118; tinygrad #7765",
		},
		{
			ID: "kernel-mes", Layer: LayerKernel,
			Any:    []string{"MES failed to respond", "MES ring buffer is full"},
			Match:  `HW Exception by GPU node-\d+ .*reason ?: ?GPU Hang`,
			Cause:  "the GPU's queue scheduler (MES) hung: a firmware or kernel bug, or an override of the gfx version that does not fit",
			Fix:    "remove HSA_OVERRIDE_GFX_VERSION, update linux-firmware (20251125 is a known bad one) and the kernel; until then the Vulkan backend",
			Source: "ROCm #5724 #5590 #4909 #6630 #6165 #5844",
		},
		{
			ID: "kernel-page-fault", Layer: LayerKernel,
			Match:  `Memory access fault by GPU node-\d+`,
			Any:    []string{"[gfxhub] page fault", "[gfxhub0] page fault", "GCVM_L2_PROTECTION_FAULT", "Page not present or supervisor privilege"},
			Cause:  "a kernel on the GPU touched memory that is not mapped: wrong ISA or override, a driver bug, or memory ran out on an APU",
			Fix:    "remove HSA_OVERRIDE_GFX_VERSION; use a bundle built for the GPU; on an APU lower the context; try the Vulkan backend",
			Source: "llama.cpp #3896 #12238; ollama #8851 #13589; llamacpp-rocm #90 #101",
		},
		{
			ID: "kernel-ring-timeout", Layer: LayerKernel,
			Match:  `ring \w+[._\d]* timeout`,
			Any:    []string{"device wedged, but recovered through reset", "GPU reset begin", "amdgpu: GPU reset"},
			Cause:  "the GPU hung and was reset; everything on it was lost",
			Fix:    "if it comes back: newer kernel and firmware, amdgpu.lockup_timeout=20000 for long steps, a smaller chunk, the other backend",
			Source: "llama.cpp #25664; LLMKube #886",
		},
		{
			ID: "kernel-incompatible", Layer: LayerKernel,
			Any:    []string{"Incompatible kernel and userspace"},
			Cause:  "the kernel's KFD is too old for this ROCr, or a gfx906-class card misreports its memory protection",
			Fix:    "use a newer kernel (or an older ROCm); for gfx906 HSA_IGNORE_SRAMECC_MISREPORT=1",
			Source: "measured: ROCr 7.2.4 on gfx906",
		},
		{
			ID: "kernel-kfd-permission", Layer: LayerKernel,
			Any:    []string{"Unable to open /dev/kfd read-write: Permission denied"},
			Cause:  "this user may not open /dev/kfd",
			Fix:    "sudo usermod -aG render,video $USER, then log in again",
			Source: "rocminfo #34; ROCm #1080 #1211",
		},
		{
			ID: "kernel-kfd-nomem", Layer: LayerKernel,
			Any:    []string{"Unable to open /dev/kfd read-write: Cannot allocate memory"},
			Cause:  "KFD found no GPU that it supports",
			Fix:    "use the Vulkan backend",
			Source: "ROCm #2232 #1185 #1109",
		},
		{
			ID: "kernel-kfd-absent", Layer: LayerKernel,
			Any:    []string{"Unable to open /dev/kfd read-write: No such file or directory"},
			Cause:  "the kernel offers no /dev/kfd: CONFIG_HSA_AMD is off, amdgpu is not loaded, or the container does not have it",
			Fix:    "a distribution kernel with CONFIG_HSA_AMD; in a container --device /dev/kfd",
			Source: "ROCm #795",
		},
	}
}

// containerSymptoms: docker, podman, LXC and WSL.
func containerSymptoms() []Symptom {
	return []Symptom{
		{
			ID: "container-lxc", Layer: LayerContainer,
			Any: []string{
				"Unable to open /dev/kfd read-write: Invalid argument", "Unable to open /dev/kfd read-write: Bad address",
				"Unable to open /dev/kfd read-write: Operation not permitted",
			},
			Cause:  "the container's device cgroup refuses /dev/kfd",
			Fix:    "LXC: lxc.cgroup2.devices.allow for c 226:* and for KFD's major (grep kfd /proc/devices), and mount entries for both devices",
			Source: "ROCm #4043 #5379; rocminfo #37",
		},
		{
			ID: "container-no-kfd-on-host", Layer: LayerContainer,
			Any:    []string{`error gathering device information while adding custom device "/dev/kfd"`},
			Cause:  "the container engine was asked for /dev/kfd, which the host does not have",
			Fix:    "repair the host first: its amdgpu driver must offer /dev/kfd",
			Source: "docker's device list",
		},
		{
			ID: "container-no-module", Layer: LayerContainer,
			Any:    []string{"ROCk module is NOT loaded, possibly no GPU devices"},
			Cause:  "amdgpu is not loaded, or the container has no GPU devices",
			Fix:    "load amdgpu on the host; in a container --device /dev/kfd --device /dev/dri",
			Source: "rocminfo",
		},
		{
			ID: "container-render-group", Layer: LayerContainer,
			Any:    []string{"Unable to find group render"},
			Cause:  "the image has no group of that name; names differ between host and image",
			Fix:    "pass the number: --group-add $(stat -c %g /dev/kfd)",
			Source: "llamaMan #85",
		},
		{
			ID: "container-selinux", Layer: LayerContainer,
			Match:  `avc: +denied .*(kfd|renderD|dri)`,
			Cause:  "SELinux keeps the container from the GPU devices",
			Fix:    "sudo setsebool -P container_use_devices 1",
			Source: "SELinux boolean of container-selinux",
		},
		{
			ID: "wsl-no-dxg", Layer: LayerContainer,
			Any:    []string{"WSL environment detected.", "hsa_init Failed, possibly no supported GPU devices"},
			Cause:  "under WSL ROCm reaches the GPU through librocdxg, which is not active",
			Fix:    "HSA_ENABLE_DXG_DETECTION=1 with librocdxg installed (RDNA3 and RDNA4 only), or boot Linux itself",
			Source: "librocdxg #34 #22; unsloth #9729; ollama #16551",
		},
	}
}
