// sampler_kernel.h: the vector loops of the sampler, with a scalar twin each.
#ifndef HEARTH_SAMPLER_KERNEL_H
#define HEARTH_SAMPLER_KERNEL_H

#include "sampler.h"

namespace hs {

// Elements per block. 128 floats are 8 cache lines: 1188 maxima for a
// vocabulary of 152k, and 40 candidates touch at most 5k elements.
constexpr int block = 128;

struct kernels {
    // Maximum of each block of x[0..n) into out; NaN counts as -inf. Returns the overall maximum.
    float (*block_max)(const float *x, int n, float *out);
    // The same, and the sum of exp(x[i]-maximum) into *sum, in which NaN and -inf count as (nearly) 0.
    float (*block_max_sum)(const float *x, int n, float *out, double *sum);
    // Appends the i in [lo, hi) with x[i] >= t to idx; returns how many. idx has room for hi-lo more.
    int (*collect)(const float *x, int lo, int hi, float t, int32_t *idx);
    // Sum of exp((x[i]-m)*s) for i in [0, n); NaN and -inf count as 0. out, if given, receives the
    // terms. They decide draws: the same in every set that has vectors.
    double (*exp_sum)(const float *x, int n, float m, float s, float *out);
    // The sum of exp(x[i]-m) for i in [0, n); adds those with x[i] >= t to *from, if given. NaN and -inf
    // count as (nearly) 0.
    double (*exp_sum_from)(const float *x, int n, float m, float t, double *from);
    // The same in less than half the time with a rough exp, which interpolates
    // linearly between the powers of 2: 1 to 1.0615 times the true one.
    double (*rough_sum_from)(const float *x, int n, float m, float t, double *from);
    // The same for two t at once.
    double (*rough_sum_from2)(const float *x, int n, float m, const float t[2], double from[2]);
};

// Rounding included, the quotient of two rough sums is off by at most the first
// factor; a rough sum is at most by the second one too small.
constexpr double rough_quotient = 1.062, rough_low = 1.0001;

// The bits of a float, read as an integer, are its logarithm to base 2, in units
// of 2^-23 from a bias of 127, with the mantissa interpolated linearly.
constexpr float bits_per_nat = 0x1p23f * 1.44269504f, bits_of_one = 0x1p23f * 127;

// The best kernels that this CPU runs, of at most the given level (HS_SIMD_...).
const kernels &kernels_up_to(int level);
// The level of such kernels.
int level_of(const kernels &k);

// sampler_kernel_avx512.cpp
namespace avx512 {
float  block_max_sum(const float *x, int n, float *out, double *sum);
double exp_sum_from(const float *x, int n, float m, float t, double *from);
double rough_sum_from(const float *x, int n, float m, float t, double *from);
double rough_sum_from2(const float *x, int n, float m, const float t[2], double from[2]);
} // namespace avx512

} // namespace hs

#endif
