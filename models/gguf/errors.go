package gguf

import (
	"errors"
	"fmt"
)

// What can be wrong with a file; wrapped by FormatError.
var (
	ErrNotGGUF     = errors.New("not a GGUF file")
	ErrTruncated   = errors.New("truncated")
	ErrMalformed   = errors.New("malformed")
	ErrUnsupported = errors.New("unsupported")
)

// FormatError says which file is bad, in which field, and at which byte.
type FormatError struct {
	Path   string
	Field  string // such as "tensor_count" or "tensor[3].offset"; empty when the whole file is meant
	Offset int64  // of the field, bytes from the start of the file
	Reason string
	Kind   error // ErrNotGGUF, ErrTruncated, ErrMalformed or ErrUnsupported
}

// Error reads "model.gguf: truncated: tensor_count (byte 8): ...".
func (e *FormatError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %v: %s", e.Path, e.Kind, e.Reason)
	}
	return fmt.Sprintf("%s: %v: %s (byte %d): %s", e.Path, e.Kind, e.Field, e.Offset, e.Reason)
}

// Unwrap returns the kind.
func (e *FormatError) Unwrap() error { return e.Kind }
