package llama

import (
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
)

// lease is the part every handle shares: closed once, and reported when the
// garbage collector finds it open.
type lease struct {
	closed  atomic.Bool
	cleanup runtime.Cleanup
}

// leak is what remains of a handle that was dropped without Close.
type leak struct {
	kind, opened string
	log          *slog.Logger
}

// track arms the leak report of obj. The C memory is not freed then: a
// finalizer's goroutine may not touch a context another thread could still use.
func track[T any](l *lease, obj *T, kind string, log *slog.Logger) {
	l.cleanup = runtime.AddCleanup(obj, func(k leak) {
		k.log.Error("llama: handle was never closed", "kind", k.kind, "opened", k.opened)
	}, leak{kind, caller(), log})
}

// release reports whether this call is the one that closes the handle.
func (l *lease) release() bool {
	if l.closed.Swap(true) {
		return false
	}
	l.cleanup.Stop()
	return true
}

// caller names the first frame outside this package as file:line.
func caller() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "engine/llama.") || strings.HasSuffix(f.File, "_test.go") || !more {
			return f.File[strings.LastIndexByte(f.File, '/')+1:] + ":" + strconv.Itoa(f.Line)
		}
	}
}

// refs counts the users of a handle so that it is not freed under them. The
// zero value is open and unused.
type refs struct{ n atomic.Int64 }

const refsClosed = -1 << 62

// acquire adds a user; false once the handle is closed.
func (r *refs) acquire() bool {
	if r.n.Add(1) > 0 {
		return true
	}
	r.n.Add(-1)
	return false
}

func (r *refs) release() { r.n.Add(-1) }

// shut closes the handle to new users; false while it has some, or when it was shut before.
func (r *refs) shut() bool { return r.n.CompareAndSwap(0, refsClosed) }
