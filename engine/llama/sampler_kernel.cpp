// sampler_kernel.cpp: see sampler_kernel.h.
#include "sampler_terms.h"

namespace hs {
namespace {

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

double exp_sum_scalar(const float *x, int n, float m, float s, float *out) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        float e = term(x[i], m, s);
        sum += e;
        if (out) out[i] = e;
    }
    return sum;
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

HS_AVX2 inline float max_of_block(const float *x) {
    // max_ps(a, b) is b when either is NaN, so the accumulator goes second.
    __m256 m0 = _mm256_set1_ps(ninf), m1 = m0, m2 = m0, m3 = m0;
    for (int k = 0; k < block; k += 32) {
        m0 = _mm256_max_ps(_mm256_loadu_ps(x + k), m0);
        m1 = _mm256_max_ps(_mm256_loadu_ps(x + k + 8), m1);
        m2 = _mm256_max_ps(_mm256_loadu_ps(x + k + 16), m2);
        m3 = _mm256_max_ps(_mm256_loadu_ps(x + k + 24), m3);
    }
    return hmax(_mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3)));
}

HS_AVX2 float block_max_avx2(const float *x, int n, float *out) {
    // From four places of the row in turn: the CPU reads ahead within pages of 4 KB
    // only, and one place alone leaves the memory idle at each page's begin.
    const int whole = n / block, each = whole / 4;
    float     top = ninf;
    auto      take = [&](int b, float m) {
        out[b] = m;
        top    = m > top ? m : top;
    };
    for (int i = 0; i < each; i++)
        for (int b = i; b < 4 * each; b += each) take(b, max_of_block(x + b * block));
    for (int b = 4 * each; b < whole; b++) take(b, max_of_block(x + b * block));
    if (whole * block < n) take(whole, block_max_scalar(x + whole * block, n - whole * block, out + whole));
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

// One vector's terms, added to all, and to from[c] those with x >= t[c].
template <bool rough, int cuts>
HS_AVX2 inline void add_avx2(__m256 &all, __m256 *from, __m256 x, __m256 m, const __m256 *t) {
    __m256 e = rough ? rough_term_avx2(x, m) : term_avx2(x, m, _mm256_set1_ps(log2_e));
    all      = plus(all, e);
    for (int c = 0; c < cuts; c++) from[c] = plus(from[c], _mm256_and_ps(e, _mm256_cmp_ps(x, t[c], _CMP_GE_OQ)));
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

float block_max_sum_avx512(const float *x, int n, float *out, masses &to) {
    return to.ref = avx512::block_max_sum(x, n, out, &to.total);
}

constexpr kernels avx2_kernels = {
    block_max_avx2, avx2::block_max_mass, avx2::block_max_mass, avx2::block_max_rough, avx2::rough_above,
    collect_avx2,   exp_sum_avx2,         sum_from_avx2<false>, sum_from_avx2<true>,   sum_avx2<true, 2>};

constexpr kernels avx512_kernels = {
    block_max_avx2, block_max_sum_avx512, avx2::block_max_mass, avx2::block_max_rough,  avx2::rough_above,
    collect_avx2,   exp_sum_avx2,         avx512::exp_sum_from, avx512::rough_sum_from, avx512::rough_sum_from2};

#endif

constexpr kernels scalar_kernels = {
    block_max_scalar, scalar::block_max_mass, scalar::block_max_mass, scalar::block_max_rough, scalar::rough_above,
    collect_scalar,   exp_sum_scalar,         sum_from_scalar<false>, sum_from_scalar<true>,   rough_sum_from2_scalar};

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
