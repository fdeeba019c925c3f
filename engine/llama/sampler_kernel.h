// sampler_kernel.h: the vector loops of the sampler, with a scalar twin each.
#ifndef HEARTH_SAMPLER_KERNEL_H
#define HEARTH_SAMPLER_KERNEL_H

#include "sampler.h"

#include <vector>

namespace hs {

// Elements per block. 128 floats are 8 cache lines: 1188 maxima for a
// vocabulary of 152k, and 40 candidates touch at most 5k elements.
constexpr int block = 128;

// What a mass is kept of: as much as float accumulators sum up exactly to 1e-6.
constexpr int chunk_blocks = 8, chunk = chunk_blocks * block;

// Where a row's mass is: the sums of exp(x[i]-ref) of each chunk, and of all. ref
// is at most 40 below the row's largest logit.
struct masses {
    float              ref   = 0;
    double             total = 0;
    std::vector<float> chunk;
};

struct kernels {
    // Maximum of each block of x[0..n) into out; NaN counts as -inf. Returns the overall maximum.
    float (*block_max)(const float *x, int n, float *out);
    // The same, and the masses of the chunks, in which NaN and -inf count as (nearly) 0, as do
    // chunks that have no part in the sum. The first one may leave them out but for the sum.
    float (*block_max_sum)(const float *x, int n, float *out, masses &to);
    float (*block_max_mass)(const float *x, int n, float *out, masses &to);
    // The same with the terms of rough_sum_from.
    float (*block_max_rough)(const float *x, int n, float *out, masses &to);
    // The sum of such terms, exp(x[i]-ref), over the x[i] >= t, for no more than a chunk;
    // max are the maxima of its blocks.
    double (*rough_above)(const float *x, int n, const float *max, float ref, float t);
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

// sampler_kernel_mass.cpp
namespace scalar {
float  block_max_mass(const float *x, int n, float *out, masses &to);
float  block_max_rough(const float *x, int n, float *out, masses &to);
double rough_above(const float *x, int n, const float *max, float ref, float t);
} // namespace scalar
namespace avx2 {
float  block_max_mass(const float *x, int n, float *out, masses &to);
float  block_max_rough(const float *x, int n, float *out, masses &to);
double rough_above(const float *x, int n, const float *max, float ref, float t);
} // namespace avx2

// sampler_kernel_avx512.cpp
namespace avx512 {
float  block_max_sum(const float *x, int n, float *out, double *sum);
double exp_sum_from(const float *x, int n, float m, float t, double *from);
double rough_sum_from(const float *x, int n, float m, float t, double *from);
double rough_sum_from2(const float *x, int n, float m, const float t[2], double from[2]);
} // namespace avx512

} // namespace hs

#endif
