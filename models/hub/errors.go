package hub

import "errors"

// What can go wrong besides the network; wrapped by Error.
var (
	ErrRef      = errors.New("not a model source")
	ErrNotFound = errors.New("not found")
	ErrGated    = errors.New("access denied")
	ErrHash     = errors.New("the file differs from what the source promised")
	ErrNoModel  = errors.New("holds no GGUF file")
	ErrChoice   = errors.New("holds several models")
	ErrOffline  = errors.New("offline mode forbids downloads")
	ErrNoSpace  = errors.New("not enough disk space")
	ErrTool     = errors.New("a tool is missing")
)

// Error is a failed pull: what was asked for, why it failed, and what to do.
type Error struct {
	Source string
	Kind   error // one of the above, or nil
	Reason string
	Hint   string // a sentence for the person at the terminal, may be empty
	Cause  error
}

// Error reads "hf:org/repo: access denied: ...".
func (e *Error) Error() string {
	s := e.Source
	if e.Kind != nil {
		s += ": " + e.Kind.Error()
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns kind and cause.
func (e *Error) Unwrap() []error {
	var out []error
	if e.Kind != nil {
		out = append(out, e.Kind)
	}
	if e.Cause != nil {
		out = append(out, e.Cause)
	}
	return out
}
