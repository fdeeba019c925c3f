package doctor

import (
	"context"
	"errors"

	"hearth/backends"
	"hearth/backends/codeobject"
	"hearth/backends/probe"
	"hearth/backends/sysroot"
	"hearth/backends/vulkan"
)

// Env is what Run looks at. FS alone is needed; everything else narrows what is "unknown" in the report.
type Env struct {
	// FS is the machine: sysroot.Host(), or a captured tree.
	FS sysroot.FS
	// Environ is the environment that workers would inherit. Paths in it count below the root.
	Environ backends.Environ
	// Bundle is the engine bundle in use; nil when there is none, and NoBundle says why.
	Bundle   *Bundle
	NoBundle string
	// Probe starts the plugin of a backend (backends.HIP or Vulkan) in a child, with additions to its environment. Nil:
	// plugins are not started, and what only they can tell stays unknown. It is called only when a GPU is there.
	Probe func(ctx context.Context, backend string, env []string) (probe.Result, error)
	// KernelLog returns the kernel's messages, one a line. Nil, or an error: unknown.
	KernelLog func(ctx context.Context) (string, error)
	// VulkanDriver is the setting vulkan_driver: auto (or ""), host, bundle.
	VulkanDriver string
	// AllowCPU makes a machine without an AMD GPU a healthy one.
	AllowCPU bool
}

// Bundle is what the doctor knows about an engine bundle. cmd fills it from the manifest and the files on disk; a
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

// ErrNotReadable is returned by Env.KernelLog functions when the log exists and this user may not read it.
var ErrNotReadable = errors.New("the kernel log is not readable for this user")
