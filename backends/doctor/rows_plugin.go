package doctor

import (
	"fmt"
	"slices"
	"strings"

	"hearth/backends"
	"hearth/backends/probe"
	"hearth/backends/vulkan"
)

func pluginRows() []row {
	l := probe.LayerPlugin
	return []row{
		{
			id: "plugin-bundle", layer: l, title: "there is an engine bundle", run: checkBundle,
			cause:  "hearth has no engine to run models with",
			fix:    "make engine (or hearth engine use NAME)",
			source: "engine.json",
		},
		{
			id: "plugin-hip-probe", layer: l, title: "the HIP plugin loads and multiplies matrices", needs: []string{idGPU, "hip-plugin", idAgents},
			run:    func(f *facts) outcome { return checkProbe(f, backends.HIP) },
			cause:  "the plugin does not survive its start, or computes wrong values",
			fix:    "the Vulkan backend; report it with hearth doctor --report",
			source: "a child process started for this report",
		},
		{
			id: "plugin-apu-hip", layer: l, title: "HIP is right on this integrated GPU", needs: []string{idGPU, "hip-plugin"}, run: checkAPU,
			cause:  "several llama.cpp releases gave wrong text on RDNA3.5 through HIP: the GPU read buffers that the host was rewriting",
			fix:    "rely on hearth's correctness gate (hearth compare), or the Vulkan backend",
			source: "llama.cpp #25992 #28211 #28056 #28604; ollama #17895; lemonade #3610",
		},
		{
			id: "plugin-p2p", layer: l, title: "peer to peer copies are not forced", run: checkP2P,
			cause:  "copies between GPUs give garbage on many boards",
			fix:    "unset GGML_CUDA_P2P",
			source: "llama.cpp #11509 #12012 #16424; ROCm #6342",
		},
		{
			id: "plugin-environment", layer: l, title: "no engine variable changes what the engine does", run: checkEngineEnv,
			cause:  "variables of llama.cpp, HIP or ROCr in the environment; workers do not inherit the ones that filter devices",
			fix:    "unset what you do not need",
			source: "llama.cpp and ROCm variables",
		},
		{
			id: "plugin-memory", layer: l, title: "the plugins found memory to work with", needs: []string{idGPU}, where: inHIPProbe,
			symptoms: []string{"plugin-oom", "plugin-assert", "plugin-no-driver", "plugin-not-loaded"},
		},
	}
}

func vulkanRows() []row {
	l := probe.LayerVulkan
	return []row{
		{
			id: "vulkan-environment", layer: l, title: "the Vulkan variables lead to drivers", run: checkVkEnv,
			cause:  "VK_DRIVER_FILES or VK_ICD_FILENAMES replaces the search, and what it names is not there",
			fix:    "unset it; VK_LOADER_DEBUG=error,warn prints what the loader makes of it",
			source: "Vulkan loader interface",
		},
		{
			id: "vulkan-driver", layer: l, title: "a Vulkan driver for AMD GPUs is there", needs: []string{idGPU}, run: checkVkDriver,
			cause:  "no driver manifest for an AMD GPU is in the loader's directories",
			fix:    "install mesa-vulkan-drivers, or build the bundle with HEARTH_MESA=ON",
			source: "llama-swap #247; llama.cpp #24474 #24651",
		},
		{
			id: "vulkan-library", layer: l, title: "every driver manifest has its library", run: checkVkLibrary,
			cause:  "a manifest was left behind, or the library is of another architecture",
			fix:    "reinstall the package that owns it, or remove the manifest",
			source: "Vulkan loader interface",
		},
		{
			id: "vulkan-choice", layer: l, title: "the Vulkan driver in use is new enough", needs: []string{"vulkan-driver"}, run: checkVkChoice,
			cause:  "Mesa before 23.3 (25.0 for RDNA4) has no cooperative matrices: prefill is slow",
			fix:    "HEARTH_MESA=ON make engine (62 MB), or a newer Mesa",
			source: "Mesa release notes; ggml-vulkan",
		},
		{
			id: "vulkan-amdvlk", layer: l, title: "RADV is the driver, not AMDVLK", needs: []string{"vulkan-driver"}, run: checkAMDVLK,
			cause:  "AMDVLK is no longer developed, is slower, and allows 2 GiB in one allocation",
			fix:    "AMD_VULKAN_ICD=RADV, or remove amd_icd64.json",
			source: "AMDVLK #420 #422 #413",
		},
		{
			id: "vulkan-duplicate", layer: l, title: "each GPU has one Vulkan driver", needs: []string{"vulkan-driver"}, run: checkVkDuplicate,
			cause:  "two drivers show the same GPU; hearth keeps one, by PCI address",
			fix:    "nothing, or remove one",
			source: "ggml-vulkan keeps one by UUID",
		},
		{
			id: "vulkan-layers", layer: l, title: "no layer stands between the engine and the driver", run: checkVkLayers,
			cause:  "an implicit layer (overlay, recorder) is put into every Vulkan program",
			fix:    "its disable variable, or VK_LOADER_LAYERS_DISABLE=~implicit~",
			source: "Vulkan loader interface",
		},
		{
			id: "vulkan-order", layer: l, title: "no variable changes the order of GPUs", run: checkVkOrder,
			cause:  "device numbers move; hearth matches by PCI address and is not concerned",
			fix:    "unset it",
			source: "Mesa's device select layer",
		},
		{
			id: "vulkan-start", layer: l, title: "the Vulkan plugin starts in a worker", needs: []string{idGPU, "vulkan-driver"}, where: inVkProbe,
			symptoms: []string{"vulkan-no-devices", "vulkan-incompatible-driver", "vulkan-icd-load", "vulkan-device-lost", "vulkan-oom", "llvm-clash", "glibc-too-old"},
		},
		{
			id: "vulkan-probe", layer: l, title: "the Vulkan plugin loads and multiplies matrices", needs: []string{idGPU, "vulkan-driver", "vulkan-start"},
			run:    func(f *facts) outcome { return checkProbe(f, backends.Vulkan) },
			cause:  "the plugin does not survive its start, or computes wrong values",
			fix:    "vulkan_driver: bundle (or host); report it with hearth doctor --report",
			source: "a child process started for this report",
		},
		{
			id: "vulkan-matrix", layer: l, title: "the driver offers matrix instructions", needs: []string{idGPU, "vulkan-driver", "vulkan-start"}, run: checkVkMatrix,
			cause:  "the driver hides the GPU's matrix instructions: prefill is slow",
			fix:    "Mesa 23.3 or newer, 25.0 for RDNA4 (vulkan_driver: bundle)",
			source: "ggml-vulkan's device line",
		},
	}
}

func checkBundle(f *facts) outcome {
	b := f.env.Bundle
	if b == nil && f.env.NoBundle != "" {
		return bad(f.env.NoBundle)
	}
	if b == nil {
		return unknown("no engine bundle was named")
	}
	evidence := fmt.Sprintf("%s: llama.cpp %s, ggml %s, plugins %s", b.Name, b.LlamaVersion, b.GGMLVersion, strings.Join(b.Plugins, " "))
	if !b.Has(backends.CPU) {
		return bad(evidence).because("the bundle has no CPU plugin, which every backend needs", "make engine again")
	}
	return good(evidence)
}

// checkProbe judges a plugin's child. A GPU that the other backend serves makes it a warning.
func checkProbe(f *facts, backend string) outcome {
	if err := f.ProbeErrs[backend]; err != nil {
		return unknown("the child could not be started: " + err.Error())
	}
	r, ok := f.Probes[backend]
	if !ok {
		return skipped(f.noProbe(backend))
	}
	if r.OK() {
		evidence := count(len(r.Devices), "device")
		for _, g := range r.Gemms {
			evidence += fmt.Sprintf(", %s %s %.1f ms", g.Device, g.Case, g.Millis)
		}
		return good(evidence)
	}
	o := bad(fmt.Sprintf("%s at stage %q", r.Exit, r.Stage))
	if backend == backends.HIP && len(f.Devices) > 0 && !slices.ContainsFunc(f.Devices, func(d backends.Device) bool { return !f.vulkanCovers(d) }) {
		o.status = Warn
	}
	if len(r.Findings) > 0 && !r.Findings[0].Harmless {
		return o.because(r.Findings[0].Cause, r.Findings[0].Fix).from(r.Findings[0].Source)
	}
	return o.because(r.Why(), "")
}

func checkAPU(f *facts) outcome {
	for _, d := range f.Devices {
		if strings.HasPrefix(d.GFX, "gfx115") && d.HIP != nil && d.HIP.Usable() {
			return warning(describe(d) + " with ggml " + f.env.Bundle.GGMLVersion)
		}
	}
	return good("")
}

func checkP2P(f *facts) outcome {
	if v, ok := f.env.Environ.Lookup("GGML_CUDA_P2P"); ok {
		return warning("GGML_CUDA_P2P=" + v)
	}
	return good("")
}

func checkEngineEnv(f *facts) outcome {
	var set []string
	for _, kv := range f.env.Environ {
		key, _, _ := strings.Cut(kv, "=")
		if slices.Contains(noted(), key) {
			set = append(set, kv)
		}
	}
	if len(set) > 0 {
		return warning(strings.Join(set, " "))
	}
	return good("")
}

// noted are variables that change speed, memory or results and have no check of their own.
func noted() []string {
	return []string{
		"GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_CUDA_DISABLE_GRAPHS", "GGML_CUDA_FORCE_MMQ", "GGML_CUDA_FORCE_CUBLAS",
		"GGML_VK_DISABLE_COOPMAT", "GGML_VK_DISABLE_F16", "GGML_VK_FORCE_MAX_ALLOCATION_SIZE", "GGML_VK_DISABLE_HOST_VISIBLE_VIDMEM",
		"HIP_LAUNCH_BLOCKING", "HSA_XNACK", "HSA_ENABLE_SDMA", "HSA_ENABLE_INTERRUPT", "AMD_LOG_LEVEL", "AMD_SERIALIZE_KERNEL",
		"GPU_MAX_HW_QUEUES", "ROCBLAS_USE_HIPBLASLT", "RADV_PERFTEST", "RADV_DEBUG", "ACO_DEBUG",
	}
}

func checkVkEnv(f *facts) outcome {
	if f.Inventory.Source == "" {
		return good("not set")
	}
	for _, p := range f.Inventory.Problems {
		if slices.Contains(f.Inventory.Searched, p.Path) {
			return bad(f.Inventory.Source + ": " + p.Error())
		}
	}
	if len(f.Inventory.ICDs) == 0 {
		return bad(f.Inventory.Source + " names no manifest: " + strings.Join(f.Inventory.Searched, " "))
	}
	return good(f.Inventory.Source + ": " + strings.Join(f.Inventory.Searched, " "))
}

func checkVkDriver(f *facts) outcome {
	if f.ChoiceErr != nil {
		return bad(f.ChoiceErr.Error()).because("vulkan_driver cannot be followed", "vulkan_driver: auto")
	}
	if f.Choice.Driver == "" {
		return bad(f.Choice.Reason)
	}
	var list []string
	for _, i := range f.Inventory.ICDs {
		if i.Usable() {
			s := i.Driver
			if v, ok := i.Mesa.Get(); ok {
				s += " " + v.String()
			}
			list = append(list, s)
		}
	}
	return good(strings.Join(list, ", "))
}

func checkVkLibrary(f *facts) outcome {
	var missing []string
	for _, i := range f.Inventory.ICDs {
		if i.Library == "" && i.Skipped == "" {
			missing = append(missing, i.Manifest+" names "+i.LibraryName)
		}
	}
	for _, p := range f.Inventory.Problems {
		if !slices.Contains(f.Inventory.Searched, p.Path) {
			missing = append(missing, p.Error())
		}
	}
	if len(missing) > 0 {
		return warning(strings.Join(missing, ", "))
	}
	return good("")
}

func checkVkChoice(f *facts) outcome {
	evidence := f.Choice.Driver + ": " + f.Choice.Reason
	if f.Choice.Stale {
		return warning(evidence)
	}
	return good(evidence)
}

func (f *facts) usableICDs(driver string) int {
	n := 0
	for _, i := range f.Inventory.ICDs {
		if i.Usable() && i.Driver == driver {
			n++
		}
	}
	return n
}

func checkAMDVLK(f *facts) outcome {
	if f.Choice.Driver != vulkan.DriverHost || f.usableICDs(vulkan.AMDVLK)+f.usableICDs(vulkan.AMDProprietary) == 0 {
		return good("")
	}
	if f.usableICDs(vulkan.RADV) == 0 {
		return warning("AMD's own driver is the only one")
	}
	return good("both are there, RADV is used")
}

func checkVkDuplicate(f *facts) outcome {
	if f.Choice.Driver == vulkan.DriverHost && f.usableICDs(vulkan.RADV) > 0 && f.usableICDs(vulkan.AMDVLK)+f.usableICDs(vulkan.AMDProprietary) > 0 {
		return warning("RADV and AMD's own driver")
	}
	if n := f.usableICDs(vulkan.RADV); f.Choice.Driver == vulkan.DriverHost && n > 1 {
		return warning(count(n, "RADV manifest"))
	}
	return good("")
}

func checkVkLayers(f *facts) outcome {
	var other []string
	for _, l := range f.Inventory.Layers {
		if !strings.Contains(l.Name, "device_select") && !slices.Contains(other, l.Name) { // Mesa's own, in every installation
			other = append(other, l.Name)
		}
	}
	if len(other) > 0 {
		return warning(strings.Join(other, ", "))
	}
	return good("")
}

func checkVkOrder(f *facts) outcome {
	var set []string
	for _, k := range []string{"MESA_VK_DEVICE_SELECT", "DRI_PRIME", "GGML_VK_VISIBLE_DEVICES"} {
		if v, ok := f.env.Environ.Lookup(k); ok {
			set = append(set, k+"="+v)
		}
	}
	if len(set) > 0 {
		return warning(strings.Join(set, " "))
	}
	return good("")
}

func checkVkMatrix(f *facts) outcome {
	r, ok := f.Probes[backends.Vulkan]
	if !ok {
		return skipped(f.noProbe(backends.Vulkan))
	}
	for _, p := range r.Devices {
		for _, d := range f.Devices {
			if string(d.PCI) == p.PCIID && p.MatrixCores == "none" && vulkan.MatrixMesa(d.GFX).Known() {
				return warning(fmt.Sprintf("%s has none with driver %s", describe(d), p.Driver))
			}
		}
	}
	return good("")
}
