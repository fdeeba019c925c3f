package doctor

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/probe"
)

const (
	envOverride = "HSA_OVERRIDE_GFX_VERSION"
	envROCR     = "ROCR_VISIBLE_DEVICES"
	envHIP      = "HIP_VISIBLE_DEVICES"
	envCUDA     = "CUDA_VISIBLE_DEVICES"
)

func rocrRows() []row {
	l := probe.LayerROCr
	ground := []string{idGPU, idKFDOpen}
	return []row{
		{
			id: "rocr-library", layer: l, title: "ROCr is there", needs: []string{idGPU}, run: checkROCr,
			cause:  "neither the engine bundle nor the system has libhsa-runtime64.so.1",
			fix:    "build the bundle with HEARTH_HIP=ON",
			source: "library search path",
		},
		{
			id: "rocr-override-syntax", layer: l, title: envOverride + " can be read", run: checkOverrideSyntax,
			cause:  "ROCr does not start with a value that is not MAJOR.MINOR.STEPPING, and drops a GPU without a word for a target it does not know",
			fix:    "unset it, or spell it as 11.0.0",
			source: "measured: ROCr 6.4.3 and 7.2.4, hsa_init 0x1008",
		},
		{
			id: "rocr-override-scope", layer: l, title: envOverride + " fits the GPUs it is applied to", needs: append(ground, "rocr-override-syntax"), run: checkOverrideScope,
			cause:  "the override makes a GPU run code of another instruction set: wrong results, hangs and page faults",
			fix:    "unset it: hearth sets an override by itself, for one GPU, when it is safe",
			source: "ollama #8851 #8473; ROCT #104; rocm-systems #3461",
		},
		{
			id: idAgents, layer: l, title: "ROCr lists every GPU of KFD", needs: append(ground, "rocr-override-syntax"), run: checkAgents,
			cause:  "ROCr starts with no GPU, or without some",
			fix:    "see the evidence",
			source: "measured: ROCr 6.4.3 and 7.2.4",
		},
		{
			id: "rocr-visible", layer: l, title: envROCR + " hides no GPU by mistake", needs: append(ground, idAgents), run: checkROCRVisible,
			cause:  "the list is cut at its first invalid item; GPU-XX never matches; an empty value hides everything",
			fix:    "unset it: hearth chooses devices itself (--device)",
			source: "measured: ROCr 6.4.3 and 7.2.4",
		},
		{
			id: "rocr-model-mode", layer: l, title: "ROCr is not in its model mode", run: checkModel,
			cause:  "HSA_MODEL_TOPOLOGY makes ROCr show simulated GPUs",
			fix:    "unset HSA_MODEL_TOPOLOGY and HSA_MODEL_LIB",
			source: "measured: ROCr 7.2.4",
		},
		{
			id: "rocr-start", layer: l, title: "ROCr starts in a worker", needs: ground, where: inHIPProbe,
			symptoms: []string{"kernel-incompatible", "rocr-out-of-resources", "rocr-aperture", "rocr-model-abort", "kernel-page-fault", "kernel-mes", "container-no-module", "wsl-no-dxg"},
		},
	}
}

func hipRows() []row {
	l := probe.LayerHIP
	ground := []string{idGPU, idKFDOpen, idAgents}
	return []row{
		{
			id: "hip-plugin", layer: l, title: "the engine bundle has a HIP plugin", needs: []string{idGPU}, run: checkHIPPlugin,
			cause:  "the bundle was built without HIP; everything runs on Vulkan",
			fix:    "HEARTH_HIP=ON make engine (475 MB to load), if your GPU's target is among its kernels",
			source: "engine.json",
		},
		{
			id: "hip-libraries", layer: l, title: "the HIP plugin finds its libraries", needs: []string{"hip-plugin"}, run: checkHIPLibs,
			cause:  "a library the plugin was linked with is missing, or is there in another major version",
			fix:    "make engine again; with a system bundle install the ROCm version that the plugin was built for",
			source: "llamafile #547; llama.cpp #25807 #26996",
		},
		{
			id: "hip-mixed", layer: l, title: "one major version of HIP is on the system", run: checkHIPMixed,
			cause:  "two major versions of libamdhip64 on one search path can end up in one process",
			fix:    "remove one from /etc/ld.so.conf.d and LD_LIBRARY_PATH; the bundle's own user space is not concerned",
			source: "SONAMEs .6 and .7",
		},
		{
			id: "hip-preload", layer: l, title: "nothing is put under the engine's libraries", run: checkPreload,
			cause:  "LD_PRELOAD or LD_LIBRARY_PATH brings other copies of ROCm, LLVM or libc into the worker",
			fix:    "unset them for hearth",
			source: "ld.so(8)",
		},
		{
			id: "hip-filters", layer: l, title: "HIP's own device filter is not set on top of ROCr's", run: checkHIPFilters,
			cause:  "the two filters count on top of each other, and GPU_DEVICE_ORDINAL does nothing to HIP",
			fix:    "keep one of them, or none: hearth sets " + envROCR + " for each worker",
			source: "measured: HIP 6.4.3 and 7.2.4; ollama #2718",
		},
		{
			id: "hip-visible", layer: l, title: "HIP sees a GPU", needs: ground, run: checkHIPVisible,
			cause:  "the filters leave no GPU: hip error 100, no ROCm-capable device is detected",
			fix:    "unset " + envHIP + " and " + envCUDA,
			source: "measured: HIP 6.4.3; llama.cpp #20142; ollama #10421",
		},
		{
			id: "hip-start", layer: l, title: "HIP starts in a worker", needs: append(ground, "hip-plugin"), where: inHIPProbe,
			symptoms: []string{"hip-no-device", "hip-invalid-ordinal", "lib-missing", "glibc-too-old"},
		},
		{
			id: "hip-devices", layer: l, title: "the HIP plugin lists the GPUs that the kernel does", needs: []string{"hip-plugin", "hip-start", "hip-visible"}, run: checkHIPDevices,
			cause:  "the plugin's list differs from the kernel's",
			fix:    "report it with hearth doctor --report",
			source: "PCI ids of both",
		},
	}
}

func checkROCr(f *facts) outcome {
	if f.env.Bundle.Has(backends.HIP) && f.env.Bundle.ROCr != "" {
		return good("libhsa-runtime64 " + f.env.Bundle.ROCr + " in the bundle")
	}
	if lib := f.Libs.With("/opt/rocm/lib").Find("libhsa-runtime64.so.1"); lib != "" {
		return good("/" + lib)
	}
	if !f.env.Bundle.Has(backends.HIP) {
		return skipped("the engine bundle has no hip plugin to use it")
	}
	return bad("libhsa-runtime64.so.1 is in no directory of the search path")
}

// overrides lists the variables that disguise GPUs.
func overrides(environ backends.Environ) []string {
	var out []string
	for _, kv := range environ {
		if strings.HasPrefix(kv, envOverride+"=") || strings.HasPrefix(kv, envOverride+"_") {
			out = append(out, kv)
		}
	}
	return out
}

func checkOverrideSyntax(f *facts) outcome {
	set := overrides(f.env.Environ)
	if len(set) == 0 {
		return good("not set")
	}
	if errors.Is(f.Agents.Fatal, kfd.ErrOverride) {
		return bad(f.Agents.Fatal.Error())
	}
	for _, a := range f.Agents.List {
		if a.Override != "" && !a.Index.Known() {
			return bad(a.Hidden)
		}
	}
	return good(strings.Join(set, " "))
}

func checkOverrideScope(f *facts) outcome {
	set := overrides(f.env.Environ)
	if len(set) == 0 {
		return good("not set")
	}
	hardware := map[int]string{}
	for _, n := range f.System.Nodes {
		hardware[n.Number] = n.GFX()
	}
	var safe []string
	for _, a := range f.Agents.List {
		own := hardware[a.Node]
		if a.Override == "" || a.GFX == own {
			continue
		}
		targets, risky := backends.GFXOverrides(own)
		switch {
		case !slices.Contains(targets, a.GFX):
			return bad(fmt.Sprintf("%s is made to look like %s", own, a.GFX))
		case risky:
			return warning(fmt.Sprintf("%s as %s works often, and hangs are on record", own, a.GFX))
		}
		safe = append(safe, fmt.Sprintf("%s as %s", own, a.GFX))
	}
	if _, zero := f.env.Environ.Lookup(envOverride + "_0"); zero {
		return warning(envOverride+"_0 is set").because("the number counts KFD nodes and node 0 is a CPU: it has no effect on a one-socket machine", "use _1, or unset it")
	}
	if len(safe) == 0 {
		return good("no effect: " + strings.Join(set, " "))
	}
	return good(strings.Join(safe, ", "))
}

func checkAgents(f *facts) outcome {
	if f.Agents.Fatal != nil {
		return bad("ROCr would list nothing: " + f.Agents.Fatal.Error())
	}
	gpus, agents := f.GPUNodes(), 0
	for _, a := range f.Agents.List {
		if a.Index.Known() {
			agents++
		}
	}
	if agents < len(gpus) {
		o := warning(fmt.Sprintf("%d of %d GPU nodes", agents, len(gpus))).
			because("ROCr skips nodes whose gpu_id or render node is masked, and GPUs with an unknown override", "see container-cgroup and rocr-override-syntax")
		if agents == 0 {
			o.status = Fail
		}
		return o
	}
	return good(count(agents, "agent"))
}

func checkROCRVisible(f *facts) outcome {
	value, set := f.env.Environ.Lookup(envROCR)
	if !set {
		return good("not set")
	}
	var hidden []string
	for _, a := range f.Agents.List {
		if strings.HasPrefix(a.Hidden, envROCR) {
			hidden = append(hidden, fmt.Sprintf("node %d (%s)", a.Node, a.GFX))
		}
	}
	evidence := fmt.Sprintf("%s=%q hides %s", envROCR, value, strings.Join(hidden, ", "))
	switch {
	case len(hidden) == 0:
		return good(fmt.Sprintf("%s=%q hides nothing", envROCR, value))
	case len(hidden) == len(f.Agents.List):
		return bad(evidence)
	case hiddenDiscrete(f):
		return warning(evidence)
	}
	return good(evidence)
}

// hiddenDiscrete says that a discrete GPU is hidden while something else is left.
func hiddenDiscrete(f *facts) bool {
	for _, d := range f.Devices {
		if d.HIP != nil && d.HIP.ROCrIndex.Known() && !d.HIP.HIPIndex.Known() && d.Kind != backends.KindIntegrated {
			return true
		}
	}
	return false
}

func checkModel(f *facts) outcome {
	if v, ok := f.env.Environ.Lookup("HSA_MODEL_TOPOLOGY"); ok {
		return warning("HSA_MODEL_TOPOLOGY=" + v)
	}
	return good("")
}

func checkHIPPlugin(f *facts) outcome {
	switch {
	case f.env.Bundle == nil:
		return skipped("no engine bundle is known")
	case !f.env.Bundle.Has(backends.HIP):
		return skipped("the engine bundle has no hip plugin; HEARTH_HIP=ON adds it")
	}
	return good(fmt.Sprintf("bundle %s (%s), ggml %s", f.env.Bundle.Name, f.env.Bundle.Source, f.env.Bundle.GGMLVersion))
}

func checkHIPLibs(f *facts) outcome {
	if len(f.env.Bundle.Missing) > 0 {
		return bad("missing: " + strings.Join(f.env.Bundle.Missing, ", "))
	}
	return good("")
}

func checkHIPMixed(f *facts) outcome {
	found := f.Libs.With("/opt/rocm/lib").Match("libamdhip64.so.*")
	majors := map[string]string{}
	for _, lib := range found {
		major, _, _ := strings.Cut(strings.TrimPrefix(path.Base(lib), "libamdhip64.so."), ".")
		majors[major] = "/" + lib
	}
	if len(majors) > 1 {
		var list []string
		for _, lib := range majors {
			list = append(list, lib)
		}
		slices.Sort(list)
		return warning(strings.Join(list, ", "))
	}
	if len(found) == 0 {
		return good("none, the bundle brings its own")
	}
	return good("/" + found[0])
}

func checkPreload(f *facts) outcome {
	var set []string
	for _, k := range []string{"LD_PRELOAD", "LD_LIBRARY_PATH"} {
		if v, ok := f.env.Environ.Lookup(k); ok && v != "" {
			set = append(set, k+"="+v)
		}
	}
	if len(set) > 0 {
		return warning(strings.Join(set, " "))
	}
	return good("")
}

func checkHIPFilters(f *facts) outcome {
	if len(f.Agents.Notes) > 0 {
		var about []string
		for _, n := range f.Agents.Notes {
			if !strings.Contains(n, envOverride) {
				about = append(about, n)
			}
		}
		if len(about) > 0 {
			return warning(strings.Join(about, "; "))
		}
	}
	return good("")
}

func checkHIPVisible(f *facts) outcome {
	visible := 0
	var hidden []string
	for _, a := range f.Agents.List {
		if a.HIP.Known() {
			visible++
		} else if strings.HasPrefix(a.Hidden, envHIP) || strings.HasPrefix(a.Hidden, envCUDA) {
			hidden = append(hidden, fmt.Sprintf("%s hides node %d", a.Hidden, a.Node))
		}
	}
	switch {
	case visible == 0 && len(hidden) == 0:
		return skipped("see rocr-visible")
	case visible == 0:
		return bad(strings.Join(hidden, ", "))
	case len(hidden) > 0:
		return warning(strings.Join(hidden, ", "))
	}
	return good(count(visible, "GPU"))
}

func checkHIPDevices(f *facts) outcome {
	r, ok := f.Probes[backends.HIP]
	if !ok {
		return skipped(f.noProbe(backends.HIP))
	}
	want, have := map[backends.PCI]bool{}, map[backends.PCI]bool{}
	for _, d := range f.Devices {
		if d.HIP != nil && d.HIP.HIPIndex.Known() {
			want[d.PCI] = true
		}
	}
	for _, d := range r.Devices {
		if pci, err := backends.ParsePCI(d.PCIID); err == nil {
			have[pci] = true
		}
	}
	var diff []string
	for p := range want {
		if !have[p] {
			diff = append(diff, string(p)+" is not listed")
		}
	}
	for p := range have {
		if !want[p] {
			diff = append(diff, string(p)+" is listed and unknown to the kernel's list")
		}
	}
	if len(diff) == 0 {
		return good(count(len(have), "device"))
	}
	slices.Sort(diff)
	o := bad(strings.Join(diff, ", "))
	if w := r.Why(); w != "" {
		o = o.because(w, "")
	}
	return o
}
