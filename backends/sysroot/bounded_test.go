package sysroot_test

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"hearth/backends/sysroot"
)

// hanging is a root whose files named "hang" block until released.
type hanging struct {
	sysroot.FS
	release chan struct{}
	calls   atomic.Int32
}

func (h *hanging) ReadFile(name string) ([]byte, error) {
	if name[:4] == "hang" {
		h.calls.Add(1)
		<-h.release
	}
	return []byte(name), nil
}

func TestBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := &hanging{release: make(chan struct{})}
		root := sysroot.Bounded(inner, sysroot.Limits{Timeout: time.Second, Stuck: 2})
		start := time.Now()
		if _, err := root.ReadFile("hang1"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("hanging read: %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("gave up after %v", took)
		}
		if _, err := root.ReadFile("hang1"); !errors.Is(err, sysroot.ErrStuck) || inner.calls.Load() != 1 {
			t.Errorf("second read of the same file: %v, %d calls", err, inner.calls.Load())
		}
		if b, err := root.ReadFile("good"); string(b) != "good" || err != nil {
			t.Errorf("another file: %q, %v", b, err)
		}
		if _, err := root.ReadFile("hang2"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		// Both slots hang now: nothing more is started.
		if _, err := root.ReadFile("good"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("no slot left: %v", err)
		}
		close(inner.release)
		synctest.Wait()
		if b, err := root.ReadFile("hang1"); string(b) != "hang1" || err != nil {
			t.Errorf("after the release: %q, %v", b, err)
		}
		if inner.calls.Load() != 3 {
			t.Errorf("%d calls", inner.calls.Load())
		}
	})
}
