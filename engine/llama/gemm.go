package llama

// #include <stdlib.h>
// #include "shim_gemm.h"
import "C"

import (
	"math"
	"time"
	"unsafe"
)

// Gemm is the outcome of a small matrix product on a device.
type Gemm struct {
	// Error is the root mean square of the difference to the CPU's double-precision product, over that of the product;
	// +Inf when the device gave NaN or Inf.
	Error float64
	Took  time.Duration // of one product, kernels loaded
}

// GemmTolerance is the largest Gemm.Error of a device that computes. Kernels for quantised weights round the activations
// to 8 bits, which costs up to 0.01; a wrong layout or a race gives 0.1 and more.
const GemmTolerance = 0.03

// OK says that the product was right.
func (g Gemm) OK() bool { return g.Error <= GemmTolerance && !math.IsNaN(g.Error) }

// Gemm multiplies a 256 x 512 matrix of ggml type typ ("f32", "f16", "q4_K") with a 512 x 64 one of f32 on the device
// with the given name ("ROCm0"), twice. It exists for probe children: a device without kernels may end the process.
// Errors: ErrRange for an unknown device or type, ErrCompute when the device refuses.
func (r *Runtime) Gemm(device, typ string) (Gemm, error) {
	devices, err := r.Devices()
	if err != nil {
		return Gemm{}, err
	}
	index := -1
	for i, d := range devices {
		if d.Name == device {
			index = i
		}
	}
	ct := C.CString(typ)
	defer C.free(unsafe.Pointer(ct))
	var out C.hs_gemm_result
	var e C.hs_err
	if rc := C.hs_gemm(C.int(index), ct, &out, &e); rc != C.HS_OK {
		return Gemm{}, shimError("gemm "+device+" "+typ, ErrCompute, rc, &e)
	}
	return Gemm{Error: float64(out.error), Took: time.Duration(float64(out.ms) * float64(time.Millisecond))}, nil
}
