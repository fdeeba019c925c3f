package llama

// #include <stdlib.h>
// #include "shim_blas.h"
import "C"

import (
	"strings"
	"time"
	"unsafe"
)

// BLASGain is what ggml's BLAS plugin would make of the products of a model's block weights with 256 rows of prompt.
type BLASGain struct {
	// CPU and BLAS are how long the measured products take, each as often as the model has it.
	CPU, BLAS time.Duration
	// Types are ggml's names of the weights that BLAS would multiply; none where the CPU device keeps all of them in
	// buffers of its own (repacked, AMX), which nothing else reads.
	Types []string
	// Shapes counts the distinct types and shapes of these weights, Measured those that there was time for.
	Shapes, Measured int
	// Buffer is what a context keeps, in bytes, for the largest of these weights as floats.
	Buffer uint64
}

// Share is the time that BLAS takes of the CPU's; 1 when nothing was measured.
func (g BLASGain) Share() float64 {
	if g.CPU <= 0 || g.Measured == 0 {
		return 1
	}
	return float64(g.BLAS) / float64(g.CPU)
}

// MeasureBLAS compares the BLAS plugin at that path with the CPU plugin, for the weights in a model's file, in about a
// second. The plugin's device is not registered: contexts made later do not have it, unless LoadBLAS is called.
//
// It computes on the calling OS thread with that many threads, so the goroutine should be locked to one that ends, or that
// computes later, too: see the package comment. Errors: ErrPlugin.
func (r *Runtime) MeasureBLAS(plugin, model string, threads int) (BLASGain, error) {
	cp, cm := C.CString(plugin), C.CString(model)
	defer C.free(unsafe.Pointer(cp))
	defer C.free(unsafe.Pointer(cm))
	var out C.hs_blas_gain
	var e C.hs_err
	if rc := C.hs_blas_measure(cp, cm, C.int(threads), &out, &e); rc != C.HS_OK {
		return BLASGain{}, shimError("measure "+plugin, ErrPlugin, rc, &e)
	}
	ms := func(v C.double) time.Duration { return time.Duration(float64(v) * float64(time.Millisecond)) }
	return BLASGain{
		CPU: ms(out.cpu_ms), BLAS: ms(out.blas_ms), Types: strings.Fields(C.GoString(&out.types[0])),
		Shapes: int(out.shapes), Measured: int(out.measured), Buffer: uint64(out.buffer),
	}, nil
}

// LoadBLAS registers the BLAS plugin at that path. Contexts made from now on have its device beside the CPU's and give it products
// with 32 rows or more of weights in plain host buffers; models that are loaded already take part. It stays for the
// process's lifetime. Errors: ErrPlugin.
func (r *Runtime) LoadBLAS(plugin string) error { return loadPlugin(plugin, false) }
