package sysroot

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Limits bounds the calls of a Bounded root.
type Limits struct {
	// Timeout is how long one call may take; 0 means DefaultTimeout.
	Timeout time.Duration
	// Stuck is how many calls may hang at the same time; further calls then fail at once. 0 means DefaultStuck.
	Stuck int
}

// Defaults of Limits. A sysfs read takes microseconds to a few milliseconds (a sensor behind the GPU's firmware).
const (
	DefaultTimeout = 250 * time.Millisecond
	DefaultStuck   = 8
)

// ErrStuck says that an earlier call for the same file still hangs.
var ErrStuck = errors.New("an earlier read of this file has not returned")

// Bounded wraps a root so that every call returns in time. A read in the kernel cannot be cancelled: one that hangs, as
// sensor files do behind a GPU that lost its firmware, keeps a goroutine and, in the kernel, perhaps a thread. Their number
// is bounded, and a file whose read hangs is not read again until it returns.
//
// The error of a call that took too long has os.ErrDeadlineExceeded in its chain.
func Bounded(fsys FS, limits Limits) FS {
	if limits.Timeout <= 0 {
		limits.Timeout = DefaultTimeout
	}
	if limits.Stuck <= 0 {
		limits.Stuck = DefaultStuck
	}
	return &bounded{fs: fsys, timeout: limits.Timeout, slots: make(chan struct{}, limits.Stuck), hanging: map[string]bool{}}
}

type bounded struct {
	fs      FS
	timeout time.Duration
	slots   chan struct{} // holds one element for each call that runs

	mu      sync.Mutex
	hanging map[string]bool // files whose call was given up and has not returned
}

func (b *bounded) isHanging(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hanging[name]
}

// call runs do in a goroutine of its own and waits at most the timeout for a slot and the result together. discard frees
// what a call returns after it was given up; it may be nil.
func call[T any](b *bounded, op, name string, do func() (T, error), discard func(T)) (T, error) {
	var zero T
	fail := func(err error) (T, error) { return zero, &fs.PathError{Op: op, Path: name, Err: err} }
	if b.isHanging(name) {
		return fail(ErrStuck)
	}
	timer := time.NewTimer(b.timeout)
	defer timer.Stop()
	select {
	case b.slots <- struct{}{}:
	case <-timer.C:
		return fail(os.ErrDeadlineExceeded)
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := do()
		done <- result{v, err}
		<-b.slots
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
	}
	b.mu.Lock()
	b.hanging[name] = true
	b.mu.Unlock()
	go func() {
		r := <-done
		if discard != nil && r.err == nil {
			discard(r.value)
		}
		b.mu.Lock()
		delete(b.hanging, name)
		b.mu.Unlock()
	}()
	return fail(os.ErrDeadlineExceeded)
}

func (b *bounded) ReadFile(name string) ([]byte, error) {
	return call(b, "read", name, func() ([]byte, error) { return b.fs.ReadFile(name) }, nil)
}

func (b *bounded) ReadDir(name string) ([]string, error) {
	return call(b, "readdir", name, func() ([]string, error) { return b.fs.ReadDir(name) }, nil)
}

func (b *bounded) ReadLink(name string) (string, error) {
	return call(b, "readlink", name, func() (string, error) { return b.fs.ReadLink(name) }, nil)
}

func (b *bounded) Stat(name string) (Node, error) {
	return call(b, "stat", name, func() (Node, error) { return b.fs.Stat(name) }, nil)
}

func (b *bounded) Access(name string) error {
	_, err := call(b, "access", name, func() (struct{}, error) { return struct{}{}, b.fs.Access(name) }, nil)
	return err
}

// Open bounds the opening; reads through the file are not bounded.
func (b *bounded) Open(name string) (File, error) {
	return call(b, "open", name, func() (File, error) { return b.fs.Open(name) }, func(f File) { _ = f.Close() })
}
