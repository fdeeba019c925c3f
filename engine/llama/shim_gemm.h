// shim_gemm.h: one small matrix product on one device, checked against the CPU.
#ifndef HEARTH_SHIM_GEMM_H
#define HEARTH_SHIM_GEMM_H

#include "shim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hs_gemm_result {
    double error; // root mean square of the difference over that of the product; 0 is exact
    double ms;    // of the second run; the first one loads kernels
} hs_gemm_result;

// Multiplies a matrix of ggml type name ("f32", "f16", "q4_K") with one of f32 on device i.
int hs_gemm(int i, const char *type, hs_gemm_result *out, hs_err *err);

#ifdef __cplusplus
}
#endif

#endif
