// sampler_kernel.cpp: see sampler_kernel.h.
#include "sampler_kernel.h"

#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#define HS_AVX2 __attribute__((target("avx2,fma")))
#endif

namespace hs {
namespace {

constexpr float ninf = -std::numeric_limits<float>::infinity();

constexpr float log2_e = 1.44269504f;

// Below this argument a term is no longer seen beside the maximum's exp(0) = 1:
// 2^-125 is about the smallest normal float.
constexpr float exp_floor = -86.6f;

float block_max_scalar(const float *x, int n, float *out) {
    float top = ninf;
    for (int b = 0, i = 0; i < n; b++) {
        float m = ninf;
        for (int end = i + block < n ? i + block : n; i < end; i++) m = x[i] > m ? x[i] : m;
        out[b] = m;
        top    = m > top ? m : top;
    }
    return top;
}

int collect_scalar(const float *x, int lo, int hi, float t, int32_t *idx) {
    int k = 0;
    for (int i = lo; i < hi; i++)
        if (x[i] >= t) idx[k++] = i;
    return k;
}

inline float term(float x, float m, float s) {
    float a = (x - m) * s;
    return a > exp_floor ? std::exp(a) : 0.0f; // false for NaN too
}

double exp_sum_scalar(const float *x, int n, float m, float s, float *out) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        float e = term(x[i], m, s);
        sum += e;
        if (out) out[i] = e;
    }
    return sum;
}

// See bits_per_nat.
inline float rough_term(float x, float m) {
    float   a    = (x - m) * bits_per_nat + bits_of_one;
    int32_t bits = a > 0 ? (int32_t) a : 0; // false for NaN too
    float   e;
    std::memcpy(&e, &bits, sizeof e);
    return e;
}

float block_max_sum_scalar(const float *x, int n, float *out, double *sum) {
    float m = block_max_scalar(x, n, out);
    *sum    = exp_sum_scalar(x, n, m, 1, nullptr);
    return m;
}

template <bool rough> double sum_from_scalar(const float *x, int n, float m, float t, double *from) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        float e = rough ? rough_term(x[i], m) : term(x[i], m, 1);
        sum += e;
        if (from && x[i] >= t) *from += e;
    }
    return sum;
}

double rough_sum_from2_scalar(const float *x, int n, float m, const float t[2], double from[2]) {
    sum_from_scalar<true>(x, n, m, t[1], from + 1);
    return sum_from_scalar<true>(x, n, m, t[0], from);
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

HS_AVX2 float block_max_avx2(const float *x, int n, float *out) {
    float top = ninf;
    int   b = 0, i = 0;
    for (; i + block <= n; b++, i += block) {
        // max_ps(a, b) is b when either is NaN, so the accumulator goes second.
        __m256 m0 = _mm256_set1_ps(ninf), m1 = m0, m2 = m0, m3 = m0;
        for (int k = 0; k < block; k += 32) {
            m0 = _mm256_max_ps(_mm256_loadu_ps(x + i + k), m0);
            m1 = _mm256_max_ps(_mm256_loadu_ps(x + i + k + 8), m1);
            m2 = _mm256_max_ps(_mm256_loadu_ps(x + i + k + 16), m2);
            m3 = _mm256_max_ps(_mm256_loadu_ps(x + i + k + 24), m3);
        }
        float m = hmax(_mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3)));
        out[b]  = m;
        top     = m > top ? m : top;
    }
    if (i < n) {
        float m = block_max_scalar(x + i, n - i, out + b);
        top     = m > top ? m : top;
    }
    return top;
}

HS_AVX2 int collect_avx2(const float *x, int lo, int hi, float t, int32_t *idx) {
    int    k  = 0, i = lo;
    __m256 vt = _mm256_set1_ps(t);
    for (; i + 8 <= hi; i += 8) {
        unsigned mask = (unsigned) _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), vt, _CMP_GE_OQ));
        for (; mask; mask &= mask - 1) idx[k++] = i + __builtin_ctz(mask);
    }
    return k + collect_scalar(x, i, hi, t, idx + k);
}

// 2^a for a in [-126, 0]: the integer part goes into the exponent, the rest, in
// [-1/2, 1/2], through a polynomial of degree 5 interpolated at Chebyshev
// nodes; relative error below 2e-7.
HS_AVX2 inline __m256 exp2_avx2(__m256 a) {
    __m256i n = _mm256_cvtps_epi32(a);
    __m256  f = _mm256_sub_ps(a, _mm256_cvtepi32_ps(n));
    __m256  p = _mm256_set1_ps(0.0013390863f);
    p         = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.009676032f));
    p         = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.05550357f));
    p         = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.24022107f));
    p         = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.6931472f));
    p         = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0000001f));
    // adding to the exponent bits multiplies by 2^n
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(n, 23)));
}

HS_AVX2 inline __m256 term_avx2(__m256 x, __m256 m, __m256 s) {
    const __m256 lo = _mm256_set1_ps(-125.0f);
    __m256       a  = _mm256_mul_ps(_mm256_sub_ps(x, m), s);
    return _mm256_and_ps(exp2_avx2(_mm256_max_ps(a, lo)), _mm256_cmp_ps(a, lo, _CMP_GT_OQ));
}

HS_AVX2 double exp_sum_avx2(const float *x, int n, float m, float s, float *out) {
    const __m256 vm = _mm256_set1_ps(m), vs = _mm256_set1_ps(s * log2_e);
    double       sum = 0;
    int          i   = 0;
    while (i + 16 <= n) {
        // 1024 terms of at most 1 keep float accumulators exact to 1e-6
        int    end = i + 1024 < n ? i + 1024 : n;
        __m256 a0 = _mm256_setzero_ps(), a1 = a0;
        for (; i + 16 <= end; i += 16) {
            __m256 e0 = term_avx2(_mm256_loadu_ps(x + i), vm, vs), e1 = term_avx2(_mm256_loadu_ps(x + i + 8), vm, vs);
            a0 = _mm256_add_ps(a0, e0);
            a1 = _mm256_add_ps(a1, e1);
            if (out) {
                _mm256_storeu_ps(out + i, e0);
                _mm256_storeu_ps(out + i + 8, e1);
            }
        }
        sum += hsum(_mm256_add_ps(a0, a1));
    }
    return sum + exp_sum_scalar(x + i, n - i, m, s, out ? out + i : nullptr);
}

HS_AVX2 inline __m256 rough_term_avx2(__m256 x, __m256 m) {
    __m256 a = _mm256_fmadd_ps(_mm256_sub_ps(x, m), _mm256_set1_ps(bits_per_nat), _mm256_set1_ps(bits_of_one));
    // max_ps(a, b) is b when either is NaN
    return _mm256_castsi256_ps(_mm256_cvtps_epi32(_mm256_max_ps(a, _mm256_setzero_ps())));
}

// One vector's terms, added to all, and to from[c] those with x >= t[c].
template <bool rough, int cuts>
HS_AVX2 inline void add_avx2(__m256 &all, __m256 *from, __m256 x, __m256 m, const __m256 *t) {
    __m256 e = rough ? rough_term_avx2(x, m) : term_avx2(x, m, _mm256_set1_ps(log2_e));
    all      = _mm256_add_ps(all, e);
    for (int c = 0; c < cuts; c++)
        from[c] = _mm256_add_ps(from[c], _mm256_and_ps(e, _mm256_cmp_ps(x, t[c], _CMP_GE_OQ)));
}

template <bool rough, int cuts> HS_AVX2 double sum_avx2(const float *x, int n, float m, const float *cut, double *from) {
    const __m256 vm = _mm256_set1_ps(m), zero = _mm256_setzero_ps();
    __m256       t[2] = {zero, zero};
    for (int c = 0; c < cuts; c++) t[c] = _mm256_set1_ps(cut[c]);
    double sum = 0;
    int    i   = 0;
    while (i + 16 <= n) {
        int    end = i + 1024 < n ? i + 1024 : n; // as in exp_sum
        __m256 a0 = zero, a1 = zero, f0[2] = {zero, zero}, f1[2] = {zero, zero};
        for (; i + 16 <= end; i += 16) {
            add_avx2<rough, cuts>(a0, f0, _mm256_loadu_ps(x + i), vm, t);
            add_avx2<rough, cuts>(a1, f1, _mm256_loadu_ps(x + i + 8), vm, t);
        }
        sum += hsum(_mm256_add_ps(a0, a1));
        for (int c = 0; c < cuts; c++) from[c] += hsum(_mm256_add_ps(f0[c], f1[c]));
    }
    for (; i < n; i++) {
        float e = rough ? rough_term(x[i], m) : term(x[i], m, 1);
        sum += e;
        for (int c = 0; c < cuts; c++)
            if (x[i] >= cut[c]) from[c] += e;
    }
    return sum;
}

template <bool rough> double sum_from_avx2(const float *x, int n, float m, float t, double *from) {
    return from ? sum_avx2<rough, 1>(x, n, m, &t, from) : sum_avx2<rough, 0>(x, n, m, &t, from);
}

float block_max_sum_avx2(const float *x, int n, float *out, double *sum) {
    float m = block_max_avx2(x, n, out);
    *sum    = sum_avx2<false, 0>(x, n, m, nullptr, nullptr);
    return m;
}

constexpr kernels avx2_kernels = {block_max_avx2,       block_max_sum_avx2,  collect_avx2,      exp_sum_avx2,
                                  sum_from_avx2<false>, sum_from_avx2<true>, sum_avx2<true, 2>};

constexpr kernels avx512_kernels = {block_max_avx2,       avx512::block_max_sum,  collect_avx2, exp_sum_avx2,
                                    avx512::exp_sum_from, avx512::rough_sum_from, avx512::rough_sum_from2};

#endif

constexpr kernels scalar_kernels = {block_max_scalar,       block_max_sum_scalar,  collect_scalar, exp_sum_scalar,
                                    sum_from_scalar<false>, sum_from_scalar<true>, rough_sum_from2_scalar};

} // namespace

const kernels &kernels_up_to(int level) {
#if defined(__x86_64__)
    // VBMI stands for the CPUs (Ice Lake, Zen 4 and later) that do not slow
    // their clock down for vectors of 512 bits.
    if (level >= HS_SIMD_AVX512 && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi"))
        return avx512_kernels;
    if (level >= HS_SIMD_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels;
#endif
    return scalar_kernels;
}

int level_of(const kernels &k) {
#if defined(__x86_64__)
    if (&k == &avx512_kernels) return HS_SIMD_AVX512;
    if (&k == &avx2_kernels) return HS_SIMD_AVX2;
#endif
    return HS_SIMD_NONE;
}

} // namespace hs
