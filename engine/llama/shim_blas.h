// shim_blas.h: whether ggml's BLAS plugin multiplies a model's weights faster than the CPU plugin.
#ifndef HEARTH_SHIM_BLAS_H
#define HEARTH_SHIM_BLAS_H

#include "shim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hs_blas_gain {
    double   cpu_ms, blas_ms; // of the products measured, each as often as the model has it
    int      shapes;          // distinct (type, columns, rows) that BLAS could take
    int      measured;        // of these, the ones there was time for
    uint64_t buffer;          // bytes that a context keeps for the largest of them as floats
    char     types[128];      // "q4_1 q8_0", of the shapes
} hs_blas_gain;

// Times the products of the model file's block weights with 256 rows on the CPU device and on the plugin's, which is
// not registered: contexts made later do not have it.
int hs_blas_measure(const char *plugin, const char *model, int threads, hs_blas_gain *out, hs_err *err);

#ifdef __cplusplus
}
#endif

#endif
