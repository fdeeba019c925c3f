package probe

// runtimeSymptoms: ROCr and HIP.
func runtimeSymptoms() []Symptom {
	return []Symptom{
		{
			ID: "rocr-aperture", Layer: LayerROCr,
			Any:    []string{"HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION", "HSA_STATUS_ERROR_EXCEPTION", "HSA_STATUS_ERROR_MEMORY_FAULT"},
			Cause:  "a kernel on the GPU faulted",
			Fix:    "remove HSA_OVERRIDE_GFX_VERSION; use a bundle built for the GPU; try the Vulkan backend",
			Source: "ROCr status codes",
		},
		{
			ID: "rocr-out-of-resources", Layer: LayerROCr,
			Match:  `hsa_init.*(0x1008|4104)`,
			Any:    []string{"HSA_STATUS_ERROR_OUT_OF_RESOURCES"},
			Cause:  "ROCr could not start: /dev/kfd or a render node cannot be opened, or HSA_OVERRIDE_GFX_VERSION cannot be parsed (ROCr hides which)",
			Fix:    "run hearth doctor: it opens the devices itself and says which",
			Source: "measured: ROCr 6.4.3 and 7.2.4",
		},
		{
			ID: "rocr-model-abort", Layer: LayerROCr,
			Any:    []string{"model: Unimplemented KFD ioctl", "!model_mmio_page"},
			Cause:  "ROCr runs in its model mode (HSA_MODEL_TOPOLOGY is set) and met something that the mode does not do",
			Fix:    "unset HSA_MODEL_TOPOLOGY and HSA_MODEL_LIB",
			Source: "measured: ROCr 7.2.4",
		},
		{
			ID: "hip-no-device", Layer: LayerHIP,
			Any:    []string{"no ROCm-capable device is detected"},
			Cause:  "HIP sees no GPU: ROCr could not start, or a *_VISIBLE_DEVICES variable hides them all",
			Fix:    "run hearth doctor; unset ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES",
			Source: "measured: HIP 6.4.3; llama.cpp #20142; ollama #10421",
		},
		{
			ID: "hip-invalid-ordinal", Layer: LayerHIP,
			Match:  `invalid device: ROCm\d+`,
			Any:    []string{"invalid device ordinal"},
			Cause:  "a device number beyond the visible ones: two filters (ROCR_ and HIP_VISIBLE_DEVICES) count on top of each other, or a GPU is gone",
			Fix:    "set one filter only; hearth numbers devices itself",
			Source: "ollama #2718; lemonade #2839",
		},
	}
}

// pluginSymptoms: llama.cpp itself.
func pluginSymptoms() []Symptom {
	return []Symptom{
		{
			ID: "plugin-oom", Layer: LayerPlugin,
			Match:  `(cudaMalloc|hipMalloc) failed: out of memory`,
			Any:    []string{"failed to allocate ROCm", "ROCm error: out of memory", "CUDA error: out of memory", "hipErrorOutOfMemory"},
			Cause:  "the GPU's memory is full",
			Fix:    "a smaller context, a smaller KV type (q8_0), a smaller quantisation, or fewer resident models",
			Source: "llama.cpp's HIP allocator",
		},
		{
			ID: "plugin-no-driver", Layer: LayerPlugin,
			Any:    []string{"ggml_backend_init returned NULL"},
			Cause:  "the plugin found no driver to work with",
			Fix:    "Vulkan: install the host's driver (mesa-vulkan-drivers) or bring one in the bundle (HEARTH_MESA=ON); HIP: the checks of the kernel and of ROCr say what is missing",
			Source: "measured: ggml 0.27.0 on a machine without a Vulkan driver",
		},
		{
			ID: "plugin-not-loaded", Layer: LayerPlugin,
			Match:  `(ggml_backend_load|load_backend).*failed to (load|find)`,
			Cause:  "llama.cpp refused the plugin: a library it needs is missing, or it is of another version",
			Fix:    "rebuild the bundle (make engine); the line beside it names the library",
			Source: "ggml-backend-reg",
		},
		{
			ID: "plugin-assert", Layer: LayerPlugin,
			Match:  `GGML_ASSERT\(.*\) failed`,
			Cause:  "an invariant of llama.cpp was broken",
			Fix:    "if it repeats with another bundle too, report it with this text",
			Source: "llama.cpp",
		},
	}
}

// vulkanSymptoms: loader, driver and ggml's Vulkan backend.
func vulkanSymptoms() []Symptom {
	return []Symptom{
		{
			ID: "vulkan-no-devices", Layer: LayerVulkan,
			Any:    []string{"ggml_vulkan: No devices found"},
			Cause:  "no Vulkan driver offers a GPU: none is installed, its render node may not be opened, or only a software one is there",
			Fix:    "install mesa-vulkan-drivers, or build the bundle with HEARTH_MESA=ON; check the permissions of /dev/dri/renderD*",
			Source: "measured: ggml 0.27.0; llama-swap #247; llama.cpp #24651",
		},
		{
			ID: "vulkan-incompatible-driver", Layer: LayerVulkan,
			Any:    []string{"ErrorIncompatibleDriver", "VK_ERROR_INCOMPATIBLE_DRIVER"},
			Cause:  "the Vulkan loader found no driver it can load",
			Fix:    "install mesa-vulkan-drivers; unset VK_DRIVER_FILES and VK_ICD_FILENAMES; VK_LOADER_DEBUG=error,warn prints the reason",
			Source: "Vulkan loader",
		},
		{
			ID: "vulkan-bad-index", Layer: LayerVulkan,
			Any:    []string{"GGML_VK_VISIBLE_DEVICES"},
			All:    []string{"ggml_vulkan: Invalid device index"},
			Cause:  "GGML_VK_VISIBLE_DEVICES names a device that does not exist",
			Fix:    "unset it: hearth numbers devices itself",
			Source: "measured: ggml 0.27.0",
		},
		{
			ID: "vulkan-oom", Layer: LayerVulkan,
			Match:  `Device memory allocation of size \d+ failed`,
			Any:    []string{"ErrorOutOfDeviceMemory", "Requested buffer size exceeds device memory allocation limit", "Requested buffer size exceeds device buffer size limit"},
			Cause:  "the GPU's memory is full, or one buffer is larger than the driver allows",
			Fix:    "a smaller context or chunk; AMDVLK allows 2 GiB in one piece, RADV 4 GiB",
			Source: "llama.cpp #5441 #14698 #15054; AMDVLK #413",
		},
		{
			ID: "vulkan-device-lost", Layer: LayerVulkan,
			Any:    []string{"vk::DeviceLostError", "ErrorDeviceLost"},
			Cause:  "the GPU was reset, or one submission ran longer than the kernel's limit (10 s)",
			Fix:    "a smaller chunk; newer kernel and Mesa; amdgpu.lockup_timeout=20000",
			Source: "llama.cpp #25664; ollama #17748; LLMKube #886",
		},
		{
			ID: "vulkan-no-coopmat", Layer: LayerVulkan,
			Match:  `ggml_vulkan: \d+ = .*AMD.*matrix cores: none`,
			Cause:  "the Vulkan driver offers no cooperative matrices, which prefill wants on RDNA3 and newer",
			Fix:    "Mesa 24.0 or newer (vulkan_driver: bundle uses the one in the bundle)",
			Source: "ggml-vulkan's device line",
		},
		{
			ID: "vulkan-icd-load", Layer: LayerVulkan,
			Match:  `(loader_icd_scan|loader_scanned_icd_add|loader_get_json|loader_parse_icd_manifest).*(Failed|failed|Could not|cannot)`,
			Cause:  "the Vulkan loader could not use a driver manifest or its library",
			Fix:    "reinstall the driver package that owns the file in the line",
			Source: "Vulkan loader",
		},
	}
}
