package doctor

import (
	"context"
	"errors"

	"hearth/backends"
	"hearth/backends/probe"
	"hearth/backends/sysroot"
)

// Env is what Run looks at. FS alone is needed; everything else narrows what is "unknown" in the report.
type Env struct {
	// FS is the machine: sysroot.Host(), or a captured tree.
	FS sysroot.FS
	// Environ is the environment that workers would inherit. Paths in it count below the root.
	Environ backends.Environ
	// Bundle is the engine bundle in use; nil when there is none.
	Bundle *Bundle
	// NoBundle says why Bundle is nil, when one was looked for.
	NoBundle string
	// Probe starts the plugin of a backend (backends.HIP or Vulkan) in a child, with additions to its environment. Nil:
	// plugins are not started, and what only they can tell stays unknown. It is called only when a GPU is there.
	Probe func(ctx context.Context, backend string, env []string) (probe.Result, error)
	// VulkanDriver is the setting vulkan_driver: auto (or ""), host, bundle.
	VulkanDriver string
	// KernelLog returns the kernel's messages, one a line. Nil, or an error: unknown.
	KernelLog func(ctx context.Context) (string, error)
	// AllowCPU makes a machine without an AMD GPU a healthy one.
	AllowCPU bool
}

// ErrNotReadable is returned by Env.KernelLog functions when the log exists and this user may not read it.
var ErrNotReadable = errors.New("the kernel log is not readable for this user")
