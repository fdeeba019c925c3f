package backends

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
)

// Problem is a read that failed, or text that did not parse. Path is relative to the root that was read.
type Problem struct {
	Path string
	Err  error
}

// Error spells path and cause.
func (p Problem) Error() string { return fmt.Sprintf("%s: %v", p.Path, p.Err) }

// Unwrap returns the cause.
func (p Problem) Unwrap() error { return p.Err }

// Errno returns the system's error number behind the problem, 0 when there is none.
func (p Problem) Errno() syscall.Errno { return ErrnoOf(p.Err) }

// ErrnoOf returns the syscall.Errno in err's chain, or 0.
func ErrnoOf(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return 0
}

// MarshalJSON writes {"path", "error", "errno"}; errno is its symbol ("EACCES"), absent when there is none.
func (p Problem) MarshalJSON() ([]byte, error) {
	text := ""
	if p.Err != nil {
		text = p.Err.Error()
	}
	return json.Marshal(struct {
		Path  string `json:"path"`
		Error string `json:"error"`
		Errno string `json:"errno,omitempty"`
	}{p.Path, text, ErrnoName(p.Errno())})
}

// ErrnoName spells the error numbers that device nodes and sysfs give ("EACCES"); others as "errno 71"; 0 as "".
func ErrnoName(e syscall.Errno) string {
	switch e {
	case 0:
		return ""
	case syscall.EACCES:
		return "EACCES"
	case syscall.EPERM:
		return "EPERM"
	case syscall.ENOENT:
		return "ENOENT"
	case syscall.ENXIO:
		return "ENXIO"
	case syscall.ENODEV:
		return "ENODEV"
	case syscall.ENOMEM:
		return "ENOMEM"
	case syscall.EINVAL:
		return "EINVAL"
	case syscall.EBUSY:
		return "EBUSY"
	case syscall.EIO:
		return "EIO"
	case syscall.ELOOP:
		return "ELOOP"
	case syscall.ENOTDIR:
		return "ENOTDIR"
	case syscall.EISDIR:
		return "EISDIR"
	case syscall.EFAULT:
		return "EFAULT"
	case syscall.EOPNOTSUPP:
		return "EOPNOTSUPP"
	}
	return fmt.Sprintf("errno %d", int(e))
}
