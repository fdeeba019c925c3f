package llama

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"math"
	"time"
	"unsafe"
)

// GemmCase is the type of the weights in Gemm.
type GemmCase string

// Cases of Gemm: HIP takes rocBLAS for the first, its own kernels for the last, which is what decoding uses.
const (
	GemmF16 GemmCase = "f16"
	GemmF32 GemmCase = "f32"
	GemmQ4K GemmCase = "q4_K"
)

// GemmCases lists them in the order in which they are worth trying.
func GemmCases() []GemmCase { return []GemmCase{GemmF16, GemmF32, GemmQ4K} }

// GemmResult is a matrix product that came back. MaxError is the largest deviation from the CPU's result over the
// largest value of that, NaN when the device gave no numbers; OK says whether it is within what the types explain.
type GemmResult struct {
	OK       bool
	MaxError float64
	Took     time.Duration
}

// tolerance is the error that a case's own rounding explains. Devices multiply f16 weights with activations rounded to
// f16 and k-quants with activations rounded to 8 bits. Measured on a CPU: 2e-4, 1e-7, 4e-3; on a software Vulkan device:
// 2e-3, 3e-4, 2e-3. A wrong kernel is off by about 1.
func (c GemmCase) tolerance() float64 {
	return map[GemmCase]float64{GemmF16: 0.02, GemmF32: 0.02, GemmQ4K: 0.05}[c]
}

// Gemm multiplies a 256x256 matrix of the case's type by 64 vectors on the device of that name and compares with the
// CPU. A wrong value is a result, not an error. Errors: ErrRange for an unknown device or case, ErrCompute when the
// device refuses or fails, ErrOutOfMemory, ErrClosed. A broken driver may end the process.
func (r *Runtime) Gemm(device string, c GemmCase) (GemmResult, error) {
	if r.closed.Load() {
		return GemmResult{}, fail("gemm", ErrClosed, "")
	}
	kind, ok := map[GemmCase]C.int32_t{GemmF16: 0, GemmF32: 1, GemmQ4K: 2}[c]
	if !ok {
		return GemmResult{}, fail("gemm", ErrRange, "case "+string(c))
	}
	name := C.CString(device)
	defer C.free(unsafe.Pointer(name))
	var worst, ms C.double
	var e C.hs_err
	if rc := C.hs_gemm(name, kind, &worst, &ms, &e); rc != C.HS_OK {
		return GemmResult{}, shimError("gemm", ErrCompute, rc, &e)
	}
	res := GemmResult{MaxError: float64(worst), Took: time.Duration(float64(ms) * float64(time.Millisecond))}
	res.OK = !math.IsNaN(res.MaxError) && res.MaxError <= c.tolerance()
	return res, nil
}
