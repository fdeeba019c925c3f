package llama

// #include <stdbool.h>
// #include <stdint.h>
import "C"

import (
	"context"
	"runtime/cgo"
)

// loadProgress is what a load in flight reports to.
type loadProgress struct {
	ctx context.Context
	fn  func(fraction float64)
}

// hearthProgress is called by the loader a few times per tensor, on the thread
// that loads; false stops the load.
//
//export hearthProgress
func hearthProgress(handle C.uintptr_t, fraction C.float) C.bool {
	p, ok := cgo.Handle(handle).Value().(*loadProgress)
	if !ok || p.ctx.Err() != nil {
		return false
	}
	if p.fn != nil {
		p.fn(float64(fraction))
	}
	return true
}
