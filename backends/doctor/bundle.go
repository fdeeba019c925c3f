package doctor

import (
	"hearth/backends/codeobject"
	"hearth/backends/vulkan"
)

// Bundle is what is known about an engine bundle. cmd fills it from the manifest and the files on disk; a
// captured tree carries it as a file.
type Bundle struct {
	Name         string   `json:"name"`
	LlamaVersion string   `json:"llama_version"`
	GGMLVersion  string   `json:"ggml_version"`
	Source       string   `json:"source"`  // "debian", "system" or "source"
	Plugins      []string `json:"plugins"` // kinds: "cpu", "vulkan", "hip"
	// GFXTargets are the targets the HIP plugin has code objects for, read from the library; GFXUnknown is why the list
	// may not be all of them.
	GFXTargets []string `json:"gfx_targets,omitempty"`
	GFXUnknown string   `json:"gfx_unknown,omitempty"`
	// BLAS are rocBLAS's kernel files by target; nil when nobody looked.
	BLAS codeobject.KernelFiles `json:"blas,omitempty"`
	// Missing are libraries that the HIP plugin needs, directly or through others, that the loader
	// would not find, "libamdhip64.so.6 (needed by libggml-hip.so)".
	Missing []string `json:"missing,omitempty"`
	// ROCr is the version in libhsa-runtime64's file name, "1.18.0"; empty when the bundle has none.
	ROCr string `json:"rocr,omitempty"`
	// Mesa is the bundle's own Vulkan driver.
	Mesa vulkan.BundleMesa `json:"mesa,omitzero"`
}

// Has says whether the bundle has a plugin of a kind; a nil bundle has none.
func (b *Bundle) Has(kind string) bool {
	if b == nil {
		return false
	}
	for _, p := range b.Plugins {
		if p == kind {
			return true
		}
	}
	return false
}
