// sampler_kernel.h: the vector loops of the sampler, with a scalar twin each.
#ifndef HEARTH_SAMPLER_KERNEL_H
#define HEARTH_SAMPLER_KERNEL_H

#include <cstdint>

namespace hs {

// Elements per block. 128 floats are 8 cache lines: 1188 maxima for a
// vocabulary of 152k, and 40 candidates touch at most 5k elements.
constexpr int block = 128;

struct kernels {
    // Maximum of each block of x[0..n) into out; NaN counts as -inf. Returns the overall maximum.
    float (*block_max)(const float *x, int n, float *out);
    // Appends the i in [lo, hi) with x[i] >= t to idx; returns how many. idx has room for hi-lo more.
    int (*collect)(const float *x, int lo, int hi, float t, int32_t *idx);
    // Sum of exp((x[i]-m)*s) for i in [0, n); NaN and -inf count as 0. out, if given, receives the terms.
    double (*exp_sum)(const float *x, int n, float m, float s, float *out);
    // The sum of exp(x[i]-m) for i in [0, n); adds those with x[i] >= t to *from. NaN and -inf count as 0.
    double (*exp_sum_from)(const float *x, int n, float m, float t, double *from);
    // The same in less than half the time with a rough exp, which interpolates
    // linearly between the powers of 2: 1 to 1.0615 times the true one.
    double (*rough_sum_from)(const float *x, int n, float m, float t, double *from);
};

// Rounding included, the quotient of two rough sums is off by at most the first
// factor; a rough sum is at most by the second one too small.
constexpr double rough_quotient = 1.062, rough_low = 1.0001;

extern const kernels scalar_kernels;
// AVX2 kernels when this CPU has AVX2 and FMA, else the scalar ones.
const kernels &best_kernels();

} // namespace hs

#endif
