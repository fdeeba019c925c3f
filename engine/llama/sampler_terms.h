// sampler_terms.h: what the kernels' files share: single terms, and reductions of a vector.
#ifndef HEARTH_SAMPLER_TERMS_H
#define HEARTH_SAMPLER_TERMS_H

#include "sampler_kernel.h"

#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#define HS_AVX2 __attribute__((target("avx2,fma")))
#endif

namespace hs {

constexpr float ninf = -std::numeric_limits<float>::infinity();

constexpr float log2_e = 1.44269504f;

// Below this argument a term is no longer seen beside the maximum's exp(0) = 1:
// 2^-125 is about the smallest normal float.
constexpr float exp_floor = -86.6f;

inline float term(float x, float m, float s) {
    float a = (x - m) * s;
    return a > exp_floor ? std::exp(a) : 0.0f; // false for NaN too
}

// See bits_per_nat.
inline float rough_term(float x, float m) {
    float   a    = (x - m) * bits_per_nat + bits_of_one;
    int32_t bits = a > 0 ? (int32_t) a : 0; // false for NaN too
    float   e;
    std::memcpy(&e, &bits, sizeof e);
    return e;
}

#if defined(__x86_64__)

HS_AVX2 inline float hmax(__m256 v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a        = _mm_max_ps(a, _mm_movehl_ps(a, a));
    a        = _mm_max_ss(a, _mm_shuffle_ps(a, a, 1));
    return _mm_cvtss_f32(a);
}

HS_AVX2 inline double hsum(__m256 v) {
    float  t[8];
    double sum = 0;
    _mm256_storeu_ps(t, v);
    for (float e : t) sum += e;
    return sum;
}

// a+b by the units that multiply: those that add have the conversions and comparisons
// of a rough term to do as well, and are what such a sum waits for.
HS_AVX2 inline __m256 plus(__m256 a, __m256 b) { return _mm256_fmadd_ps(b, _mm256_set1_ps(1.0f), a); }

HS_AVX2 inline __m256 rough_term_avx2(__m256 x, __m256 m) {
    __m256 a = _mm256_fmadd_ps(_mm256_sub_ps(x, m), _mm256_set1_ps(bits_per_nat), _mm256_set1_ps(bits_of_one));
    // max_ps(a, b) is b when either is NaN
    return _mm256_castsi256_ps(_mm256_cvtps_epi32(_mm256_max_ps(a, _mm256_setzero_ps())));
}

#endif

} // namespace hs

#endif
