package doctor

import (
	"fmt"
	"slices"
	"strings"

	"hearth/backends"
	"hearth/backends/probe"
)

func gfxRows() []row {
	l := probe.LayerGFX
	ground := []string{idGPU, "hip-plugin", idAgents}
	return []row{
		{
			id: "gfx-code-object", layer: l, title: "the HIP plugin has kernels for every GPU", needs: ground, run: checkCode,
			cause:  "the bundle's HIP plugin was not built for the GPU's target",
			fix:    "HEARTH_ENGINE=source with AMDGPU_TARGETS set to it (needs a ROCm toolchain); " + fixVulkan,
			source: "read from the plugin's code objects; llama.cpp #19949 #22013",
		},
		{
			id: "gfx-mixed", layer: l, title: "a GPU without kernels does not stand beside one that has them", needs: ground, run: checkMixedGFX,
			cause:  "HIP sees every GPU, and one without kernels takes the process down when it is used",
			fix:    "nothing with hearth, which shows a worker one GPU; elsewhere " + envROCR,
			source: "llama.cpp #22013 #23152; llamacpp-rocm #96; lemonade #2705",
		},
		{
			id: "gfx-start", layer: l, title: "kernels start on the GPU", needs: ground, where: inHIPProbe,
			symptoms: []string{"gfx-no-code-object", "gfx-invalid-device-function", "gfx-kernel-image-invalid", "gfx-invalid-isa", "gfx-igpu-stream"},
		},
		{
			id: "gfx-compiler", layer: l, title: "the code object manager loads", needs: ground, where: inHIPProbe,
			symptoms: []string{"comgr-missing", "llvm-clash"},
		},
	}
}

func libRows() []row {
	l := probe.LayerLibs
	ground := []string{idGPU, "hip-plugin", idAgents}
	return []row{
		{
			id: "libs-rocblas-kernels", layer: l, title: "rocBLAS has kernel files for every GPU", needs: ground, run: checkBLAS,
			cause:  "rocBLAS was packaged without the GPU's target; it aborts the process at the first matrix product",
			fix:    fixVulkan + ", or a ROCm that has the files",
			source: "measured: rocBLAS 4.4.1; ROCm #2719 #3015 #4625; rocBLAS #1339",
		},
		{
			id: "libs-rocblas-path", layer: l, title: "ROCBLAS_TENSILE_LIBPATH leads somewhere", run: func(f *facts) outcome { return checkLibPath(f, "ROCBLAS_TENSILE_LIBPATH") },
			cause:  "the variable replaces rocBLAS's folder, and the folder is not there",
			fix:    "unset it",
			source: "measured: rocBLAS 4.4.1",
		},
		{
			id: "libs-hipblaslt-path", layer: l, title: "HIPBLASLT_TENSILE_LIBPATH leads somewhere", run: func(f *facts) outcome { return checkLibPath(f, "HIPBLASLT_TENSILE_LIBPATH") },
			cause:  "the variable replaces hipBLASLt's folder, and the folder is not there",
			fix:    "unset it",
			source: "llamacpp-rocm #10; LocalAI #10660",
		},
		{
			id: "libs-rocblas-start", layer: l, title: "rocBLAS starts in a worker", needs: ground, where: inHIPProbe,
			symptoms: []string{"rocblas-no-tensile", "rocblas-no-devices", "rocblas-init"},
		},
		{
			id: "libs-hipblaslt-start", layer: l, title: "hipBLASLt stays quiet", needs: ground, where: inHIPProbe,
			symptoms: []string{"hipblaslt-path", "hipblaslt-unsupported"},
		},
	}
}

// checkCode judges each GPU's support class. A GPU that only Vulkan can serve is a warning: models run.
func checkCode(f *facts) outcome {
	var none, notes []string
	covered, override := true, ""
	for _, d := range f.Devices {
		if d.HIP == nil || d.GFX == "" {
			continue
		}
		switch s := d.HIP.Support; s.Class {
		case backends.SupportNone, backends.SupportOverride:
			if d.Kind == backends.KindIntegrated && f.hasDiscrete() {
				notes = append(notes, "integrated "+d.GFX+" has none and is not used")
				continue
			}
			none = append(none, describe(d)+": "+s.Reason)
			covered = covered && f.vulkanCovers(d)
			if s.Override != "" {
				override = fmt.Sprintf("%s=%s makes %s run %s code", envOverride, s.Override, d.GFX, s.Target)
			}
		case backends.SupportUnknown:
			notes = append(notes, d.GFX+": "+s.Reason)
		default:
			notes = append(notes, fmt.Sprintf("%s: %s", d.GFX, s.Class))
		}
	}
	if len(none) == 0 {
		return good(strings.Join(notes, ", "))
	}
	o := bad(strings.Join(none, "; "))
	if covered {
		o.status = Warn
	}
	if override != "" {
		o.fix = override + ", the same instruction set; or " + fixVulkan
	}
	return o
}

func (f *facts) hasDiscrete() bool {
	return slices.ContainsFunc(f.Devices, func(d backends.Device) bool { return d.Kind == backends.KindDiscrete })
}

func checkMixedGFX(f *facts) outcome {
	if len(f.GPUNodes()) < 2 {
		return skipped("one GPU")
	}
	var with, without []string
	for _, d := range f.Devices {
		if d.HIP == nil || !d.HIP.HIPIndex.Known() {
			continue
		}
		switch d.HIP.Support.Class {
		case backends.SupportNone, backends.SupportOverride:
			without = append(without, d.GFX)
		default:
			with = append(with, d.GFX)
		}
	}
	if len(with) > 0 && len(without) > 0 {
		return warning(fmt.Sprintf("HIP sees %s beside %s", strings.Join(without, " "), strings.Join(with, " ")))
	}
	return good("")
}

func checkBLAS(f *facts) outcome {
	b := f.env.Bundle
	if b.BLAS == nil {
		return unknown("rocBLAS's kernel files were not looked at")
	}
	var missing, slow []string
	covered := true
	for _, d := range f.Devices {
		if d.HIP == nil || d.GFX == "" || d.HIP.Support.Class == backends.SupportNone || d.HIP.Support.Class == backends.SupportOverride {
			continue // reported by gfx-code-object
		}
		files := b.BLAS[d.HIP.GFX]
		switch {
		case files.Index && files.Tuned > 0:
		case files.Index:
			slow = append(slow, d.HIP.GFX)
		case d.Kind == backends.KindIntegrated && f.hasDiscrete():
		default:
			missing = append(missing, describe(d))
			covered = covered && f.vulkanCovers(d)
		}
	}
	switch {
	case len(missing) > 0:
		o := bad("no files for " + strings.Join(missing, ", "))
		if covered {
			o.status = Warn
		}
		return o
	case len(slow) > 0:
		return warning("only fallback kernels for "+strings.Join(slow, " ")).
			because("rocBLAS has no tuned kernels for the target: prefill is slow", "compare with the Vulkan backend (hearth compare)")
	}
	return good("files for " + strings.Join(b.BLAS.Processors(), " "))
}

func checkLibPath(f *facts, variable string) outcome {
	v, ok := f.env.Environ.Lookup(variable)
	if !ok || v == "" {
		return good("not set")
	}
	if _, err := f.env.FS.ReadDir(strings.TrimPrefix(strings.TrimSuffix(v, "/"), "/")); err != nil {
		return bad(fmt.Sprintf("%s=%s: %v", variable, v, err))
	}
	return warning(variable + "=" + v + " replaces the bundle's kernels")
}
