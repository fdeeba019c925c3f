package probe

// Symptoms returns the table. It is data: each row is a text that the kernel, ROCm, Mesa or llama.cpp prints, what it
// means and what helps. Rows run from the most telling to the most general, because Causes quotes the first ones.
func Symptoms() []Symptom {
	var all []Symptom
	for _, part := range [][]Symptom{gfxSymptoms(), libSymptoms(), kernelSymptoms(), containerSymptoms(), runtimeSymptoms(), pluginSymptoms(), vulkanSymptoms()} {
		all = append(all, part...)
	}
	return all
}

// gfxSymptoms: code objects that do not fit the GPU.
func gfxSymptoms() []Symptom {
	return []Symptom{
		{
			ID: "gfx-no-code-object", Layer: LayerGFX,
			Any:    []string{"No compatible code objects found for", "Unable to find code object for all current devices", "hipErrorNoBinaryForGpu"},
			Cause:  "the HIP library holds no kernels for this GPU's gfx target",
			Fix:    "use a bundle built for the target (HEARTH_ENGINE=source with AMDGPU_TARGETS), or the Vulkan backend; hide an integrated GPU from HIP with ROCR_VISIBLE_DEVICES",
			Source: "measured: HIP 6.4.3 with AMD_LOG_LEVEL=1; llama.cpp #19949; ROCm #2061 #1530 #1867; pytorch #73534",
		},
		{
			ID: "gfx-invalid-device-function", Layer: LayerGFX,
			Any:    []string{"invalid device function"},
			Cause:  "a kernel was started on a GPU that the HIP plugin holds no code for; HIP notices at the first kernel, not at load",
			Fix:    "hide the GPU that has no kernels (ROCR_VISIBLE_DEVICES), or use a bundle built for it, or the Vulkan backend",
			Source: "measured: ggml 0.27.0 on gfx1201; llama.cpp #22013",
		},
		{
			ID: "gfx-kernel-image-invalid", Layer: LayerGFX,
			Any:    []string{"device kernel image is invalid", "kpack_load_code_object failed"},
			Cause:  "the code object is missing or for another target: a kpack archive of this gfx is not installed, or xnack does not match",
			Fix:    "install the ROCm package for the gfx target, or use the Vulkan backend",
			Source: "llama.cpp #23934; lemonade #2609",
		},
		{
			ID: "gfx-invalid-isa", Layer: LayerGFX,
			Any:    []string{"HSA_STATUS_ERROR_INVALID_ISA", "HSA_STATUS_ERROR_INVALID_CODE_OBJECT", "HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS"},
			Cause:  "the code object was built for another ISA or another xnack/sramecc setting",
			Fix:    "use a bundle built for the target; check HSA_XNACK",
			Source: "ROCr status codes",
		},
		{
			ID: "gfx-igpu-stream", Layer: LayerGFX,
			Any:    []string{"hipStreamCreateWithFlags"},
			Cause:  "HIP could not create a stream: usually an integrated GPU that was not meant to be used is visible beside the discrete one",
			Fix:    "leave device selection to hearth, or set ROCR_VISIBLE_DEVICES to the discrete GPU",
			Source: "llama.cpp #8618 #23152; llamacpp-rocm #96",
		},
	}
}

// libSymptoms: rocBLAS, hipBLASLt, loader and name tables.
func libSymptoms() []Symptom {
	return []Symptom{
		{
			ID: "rocblas-no-tensile", Layer: LayerLibs,
			// The errno words vary: "Illegal seek" on 4.4.1, "No such file or directory" elsewhere.
			Match:  `Cannot read .*TensileLibrary.* for GPU arch : gfx\w+`,
			Any:    []string{"List of available TensileLibrary Files"},
			Cause:  "rocBLAS has no kernel files for this gfx target; it aborts at the first matrix product",
			Fix:    "use the Vulkan backend, or a ROCm that ships rocBLAS kernels for the target; unset ROCBLAS_TENSILE_LIBPATH when it points elsewhere",
			Source: "measured: rocBLAS 4.4.1 on gfx1151, gfx1036, gfx1201; ROCm #2719 #3015 #4625; rocBLAS #1339 #1331",
		},
		{
			ID: "rocblas-no-devices", Layer: LayerContainer,
			Any:    []string{"Could not initialize Tensile host: No devices found"},
			Cause:  "one of /dev/kfd and /dev/dri/renderD* is missing in the container",
			Fix:    "pass both: --device /dev/kfd --device /dev/dri",
			Source: "ollama #6685",
		},
		{
			ID: "rocblas-init", Layer: LayerLibs,
			Any:    []string{"rocBLAS error: Could not initialize Tensile host"},
			Cause:  "rocBLAS could not read its kernel library",
			Fix:    "check that rocblas/library lies beside librocblas and is readable; unset ROCBLAS_TENSILE_LIBPATH",
			Source: "measured: rocBLAS 4.4.1 with a bad ROCBLAS_TENSILE_LIBPATH",
		},
		{
			ID: "hipblaslt-path", Layer: LayerLibs,
			Any:    []string{"rocblaslt error: Cannot read"},
			Cause:  "hipBLASLt does not find its kernel library for this gfx target",
			Fix:    "set HIPBLASLT_TENSILE_LIBPATH to the hipblaslt/library folder, or ROCBLAS_USE_HIPBLASLT=0",
			Source: "llamacpp-rocm #10; LocalAI #10660",
		},
		{
			ID: "hipblaslt-unsupported", Layer: LayerLibs, Harmless: true,
			Any:    []string{"Attempting to use hipBLASLt on an unsupported architecture"},
			Cause:  "hipBLASLt has no kernels for this GPU and steps aside for hipBLAS",
			Fix:    "nothing to do; ROCBLAS_USE_HIPBLASLT=0 silences it",
			Source: "ROCm #5643 #4440",
		},
		{
			ID: "comgr-missing", Layer: LayerGFX,
			Match:  `libamd_comgr\.so[.\d]*: cannot open shared object file`,
			Cause:  "ROCm's code object manager is not found",
			Fix:    "install libamd-comgr of the same ROCm, or use the bundle's own user space",
			Source: "ROCr and HIP link list",
		},
		{
			ID: "lib-missing", Layer: LayerHIP,
			Match:  `lib(amdhip64|hipblas|hipblaslt|rocblas|hsa-runtime64|rocsolver)\.so[.\d]*: cannot open shared object file`,
			Cause:  "the plugin was built for another major version of ROCm than the one installed, or ROCm's folder is not on the library path",
			Fix:    "use the bundle's own ROCm user space (HEARTH_HIP=ON), or install the ROCm version whose library is named",
			Source: "llamafile #547; llama.cpp #25807 #26996",
		},
		{
			ID: "llvm-clash", Layer: LayerGFX,
			Any:    []string{"CommandLine Error: Option", "inconsistency in registered CommandLine options"},
			Cause:  "two copies of LLVM in one process (Mesa's and ROCm's)",
			Fix:    "load one GPU backend per process, as hearth's workers do; do not preload Mesa or ROCm libraries",
			Source: "LLVM registers options once per process",
		},
		{
			ID: "libdrm-ids", Layer: LayerLibs, Harmless: true,
			Match:  `amdgpu\.ids: No such file`,
			Cause:  "libdrm's table of marketing names is absent",
			Fix:    "nothing to do: hearth has its own names",
			Source: "LocalAI #10624",
		},
		{
			ID: "glibc-too-old", Layer: LayerLibs,
			Match:  "version `(GLIBC|GLIBCXX|CXXABI)_[0-9.]+' not found",
			Cause:  "a library was built for a newer libc or libstdc++ than the process runs with",
			Fix:    "start the worker through the bundle's own loader (a debian bundle does), or use a bundle built on this system",
			Source: "ld.so",
		},
	}
}
