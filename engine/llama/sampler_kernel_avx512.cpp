// sampler_kernel_avx512.cpp: the sums over a whole row with vectors of 16, which
// halve what they cost. The other loops wait for the cache and stay AVX2's.
#include "sampler_kernel.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <immintrin.h>
#include <limits>

// The header's own "undefined" vectors look so to GCC 12 (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define HS_AVX512 __attribute__((target("avx512f,avx512dq,avx2,fma")))

namespace hs {
namespace {

constexpr float ninf = -std::numeric_limits<float>::infinity();

// How close a sum's terms come: rough as in rough_sum_from, good to 3e-6 of each,
// exact to 3e-7.
enum kind { rough, good, exact };

// exp(d) for d <= 0. What is below -87, and NaN, counts as -87, where the result
// is about the smallest normal float: nothing beside a sum of 1 or more.
// The whole part of d/ln 2 goes into the exponent, the rest, in [0, 1), through the
// polynomial with the least relative error of those that are 1 at 0: the logprob
// of a token with all the mass is 0, and never above.
template <kind how> HS_AVX512 inline __m512 exp_avx512(__m512 d) {
    // max_ps(a, b) is b when either is NaN
    __m512 a = _mm512_mul_ps(_mm512_max_ps(d, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(1.44269504f));
    __m512 f = _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF);
    __m512 p;
    if (how == exact) {
        p = _mm512_set1_ps(0.0018671305f);
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.009017029f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.055799913f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24016444f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931513f));
    } else {
        p = _mm512_set1_ps(0.0134267f);
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.052242436f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24128023f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69304484f));
    }
    return _mm512_scalef_ps(_mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f)), a);
}

// See rough_term in sampler_kernel.cpp.
HS_AVX512 inline __m512 rough_exp_avx512(__m512 d) {
    __m512 a = _mm512_fmadd_ps(d, _mm512_set1_ps(bits_per_nat), _mm512_set1_ps(bits_of_one));
    return _mm512_castsi512_ps(_mm512_cvtps_epi32(_mm512_max_ps(a, _mm512_setzero_ps())));
}

// Sums of terms, as far as float accumulators stay exact to 1e-6: 1024 terms.
struct sums {
    __m512 all, from[2];
};

HS_AVX512 inline void clear(sums &s) { s.all = s.from[0] = s.from[1] = _mm512_setzero_ps(); }

template <kind how, int cuts> HS_AVX512 inline void add(sums &s, __m512 x, __m512 m, const __m512 *t) {
    __m512 d = _mm512_sub_ps(x, m), e = how == rough ? rough_exp_avx512(d) : exp_avx512<how>(d);
    s.all    = _mm512_add_ps(s.all, e);
    for (int c = 0; c < cuts; c++)
        s.from[c] = _mm512_mask_add_ps(s.from[c], _mm512_cmp_ps_mask(x, t[c], _CMP_GE_OQ), s.from[c], e);
}

// Rows are read ahead into the first level of the cache: the adding takes so long
// that one which comes from memory then costs no more than its way from there.
constexpr int ahead = 2048; // bytes

template <kind how, int cuts>
HS_AVX512 double sum(const float *x, int n, float m, const float *cut, double *from) {
    const __m512 vm = _mm512_set1_ps(m), none = _mm512_set1_ps(ninf);
    __m512       t[2] = {none, none};
    for (int c = 0; c < cuts; c++) t[c] = _mm512_set1_ps(cut[c]);
    double total = 0;
    for (int i = 0; i < n;) {
        const int end = std::min(n, i + 1024);
        sums      a, b; // two, for their additions to overlap
        clear(a);
        clear(b);
        for (; i + 32 <= end; i += 32) {
            _mm_prefetch((const char *) (x + i) + ahead, _MM_HINT_T0);
            _mm_prefetch((const char *) (x + i + 16) + ahead, _MM_HINT_T0);
            add<how, cuts>(a, _mm512_loadu_ps(x + i), vm, t);
            add<how, cuts>(b, _mm512_loadu_ps(x + i + 16), vm, t);
        }
        for (; i < end; i += 16) {
            __mmask16 held = (__mmask16) (end - i < 16 ? (1 << (end - i)) - 1 : 0xffff);
            add<how, cuts>(a, _mm512_mask_loadu_ps(none, held, x + i), vm, t);
        }
        total += _mm512_reduce_add_ps(_mm512_add_ps(a.all, b.all));
        for (int c = 0; c < cuts; c++) from[c] += _mm512_reduce_add_ps(_mm512_add_ps(a.from[c], b.from[c]));
    }
    return total;
}

template <kind how> double sum_from(const float *x, int n, float m, float t, double *from) {
    return from ? sum<how, 1>(x, n, m, &t, from) : sum<how, 0>(x, n, m, &t, from);
}

} // namespace

// While the maximum is not known the sum is kept over the largest logit so far,
// and scaled when a larger one comes: some ten times in a row of any length.
HS_AVX512 float avx512::block_max_sum(const float *x, int n, float *out, double *sum) {
    constexpr int lines = block / 16;
    const __m512  none = _mm512_set1_ps(ninf);
    float         top = ninf, last[block];
    __m512        vm = none;
    sums          a, b;
    clear(a);
    clear(b);
    *sum = 0;
    for (int i = 0, at = 0; i < n; i += block, at++) {
        const float *row = x + i;
        if (n - i < block) { // the last one, filled up
            std::fill(std::copy(row, x + n, last), last + block, ninf);
            row = last;
        }
        __m512 v[lines], m0 = none, m1 = none;
        for (int k = 0; k < lines; k++) _mm_prefetch((const char *) (row + k * 16) + ahead, _MM_HINT_T0);
        for (int k = 0; k < lines; k++) v[k] = _mm512_loadu_ps(row + k * 16);
        for (int k = 0; k < lines; k += 2) {
            m0 = _mm512_max_ps(v[k], m0); // NaN as in block_max
            m1 = _mm512_max_ps(v[k + 1], m1);
        }
        const float m = out[at] = _mm512_reduce_max_ps(_mm512_max_ps(m0, m1));
        if (m > top || at % 8 == 0) {
            *sum += _mm512_reduce_add_ps(_mm512_add_ps(a.all, b.all));
            clear(a);
            clear(b);
        }
        if (m > top) {
            *sum *= std::exp((double) top - m);
            top = m;
            vm  = _mm512_set1_ps(top);
        }
        for (int k = 0; k < lines; k += 2) {
            add<good, 0>(a, v[k], vm, nullptr);
            add<good, 0>(b, v[k + 1], vm, nullptr);
        }
    }
    *sum += _mm512_reduce_add_ps(_mm512_add_ps(a.all, b.all));
    return top;
}

double avx512::exp_sum_from(const float *x, int n, float m, float t, double *from) { return sum_from<exact>(x, n, m, t, from); }

double avx512::rough_sum_from(const float *x, int n, float m, float t, double *from) { return sum_from<rough>(x, n, m, t, from); }

double avx512::rough_sum_from2(const float *x, int n, float m, const float t[2], double from[2]) {
    return sum<rough, 2>(x, n, m, t, from);
}

} // namespace hs

#endif
