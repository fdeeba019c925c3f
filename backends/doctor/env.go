package doctor

import (
	"context"
	"errors"

	"hearth/backends/survey"
)

// Env is what Run looks at. FS alone is needed; everything else narrows what is "unknown" in the report.
type Env struct {
	survey.Env
	// NoBundle says why Bundle is nil, when one was looked for.
	NoBundle string
	// KernelLog returns the kernel's messages, one a line. Nil, or an error: unknown.
	KernelLog func(ctx context.Context) (string, error)
	// AllowCPU makes a machine without an AMD GPU a healthy one.
	AllowCPU bool
}

// ErrNotReadable is returned by Env.KernelLog functions when the log exists and this user may not read it.
var ErrNotReadable = errors.New("the kernel log is not readable for this user")
