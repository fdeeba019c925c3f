// sampler_kernel_mass.cpp: the pass that finds the blocks' maxima and each
// chunk's mass, so that a row comes from memory once; and what is asked of the
// masses afterwards.
#include "sampler_terms.h"

#include <algorithm>

namespace hs {
namespace {

// How far a logit may lie above what the masses are relative to: exp(40) times a
// chunk is far from the largest float, and few rows have a second one.
constexpr float reach = 40;

// Chunks so far below the largest logit are not summed: with e^-28 each, a
// vocabulary of 256k is 2e-7 of the maximum alone.
constexpr float deep = 28;

// The masses while the row is read.
struct reading {
    masses &to;
    float   top = ninf;

    explicit reading(masses &m) : to(m) {
        to.ref   = ninf;
        to.total = 0;
    }
    // Takes in the maximum of chunk c, the next one. False: it need not be summed.
    bool chunk_counts(int c, float max) {
        to.chunk[c] = 0;
        top         = std::max(top, max);
        if (max < top - deep || !(max > ninf)) return false;
        if (max > to.ref + reach) {
            const double scale = std::exp((double) to.ref - max);
            for (int i = 0; i < c; i++) to.chunk[i] = (float) (to.chunk[i] * scale);
            to.total *= scale;
            to.ref = max;
        }
        return true;
    }
    void add(int c, double mass) {
        to.chunk[c] = (float) mass;
        to.total += mass;
    }
};

template <bool rough> float survey_scalar(const float *x, int n, float *out, masses &to) {
    reading row(to);
    for (int c = 0, lo = 0; lo < n; c++, lo += chunk) {
        const int hi = std::min(n, lo + chunk);
        float     max = ninf;
        for (int b = lo; b < hi; b += block) {
            float m = ninf;
            for (int i = b; i < std::min(hi, b + block); i++) m = x[i] > m ? x[i] : m;
            out[b / block] = m;
            max            = std::max(max, m);
        }
        if (!row.chunk_counts(c, max)) continue;
        double sum = 0;
        for (int i = lo; i < hi; i++) sum += rough ? rough_term(x[i], to.ref) : term(x[i], to.ref, 1);
        row.add(c, sum);
    }
    return row.top;
}

} // namespace

float scalar::block_max_mass(const float *x, int n, float *out, masses &to) {
    return survey_scalar<false>(x, n, out, to);
}

float scalar::block_max_rough(const float *x, int n, float *out, masses &to) {
    return survey_scalar<true>(x, n, out, to);
}

double scalar::rough_above(const float *x, int n, const float *max, float ref, float t) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (max[i / block] >= t && x[i] >= t) sum += rough_term(x[i], ref);
    return sum;
}

#if defined(__x86_64__)

namespace {

// The largest of the first, third, ... and of the second, fourth, ... of four of a's and of b's.
HS_AVX2 inline __m256 max_of_pairs(__m256 a, __m256 b) {
    return _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}

// What two of those leave: in each half the largest of four vectors' halves.
HS_AVX2 inline __m256 max_of_fours(const __m256 *v) {
    __m256 a = max_of_pairs(v[0], v[1]), b = max_of_pairs(v[2], v[3]);
    return _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
}

// The largest of each of eight vectors.
HS_AVX2 inline __m256 max_of_each(const __m256 *v) {
    __m256 a = max_of_fours(v), b = max_of_fours(v + 4);
    return _mm256_max_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// The maxima of a chunk's eight blocks.
HS_AVX2 inline __m256 chunk_max(const float *x) {
    __m256 v[chunk_blocks];
    for (int b = 0; b < chunk_blocks; b++, x += block) {
        // max_ps(a, b) is b when either is NaN, so the accumulator goes second.
        __m256 m0 = _mm256_set1_ps(ninf), m1 = m0;
        for (int k = 0; k < block; k += 16) {
            m0 = _mm256_max_ps(_mm256_loadu_ps(x + k), m0);
            m1 = _mm256_max_ps(_mm256_loadu_ps(x + k + 8), m1);
        }
        v[b] = _mm256_max_ps(m0, m1);
    }
    return max_of_each(v);
}

// Adds exp(x-m) to sum; what is below -87, and NaN, counts as -87. In units of
// ln(2)/4 the argument's nearest whole number goes into the exponent and, by its
// lowest two bits, into a table of four powers; the rest, in [-1/2, 1/2], through
// a polynomial of degree 3 interpolated at Chebyshev nodes. Relative error below
// 4e-7, as with degree 5 without the table, in 12 instructions where exp_sum's takes 16.
HS_AVX2 inline __m256 add_exp(__m256 sum, __m256 x, __m256 m, __m256 powers) {
    const __m256 unit = _mm256_set1_ps(4 * log2_e);
    const __m256 whole = _mm256_set1_ps(0x1.8p23f); // added to a float leaves its nearest integer in the low bits
    __m256       d = _mm256_max_ps(_mm256_sub_ps(x, m), _mm256_set1_ps(-87.0f));
    __m256       t = _mm256_fmadd_ps(d, unit, whole);
    __m256       f = _mm256_fmsub_ps(d, unit, _mm256_sub_ps(t, whole));
    __m256i      n = _mm256_castps_si256(t);
    __m256       p = _mm256_set1_ps(0.00086757727f);
    p              = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.015023552f));
    p              = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.17328678f));
    p              = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.9999997f));
    __m256i power  = _mm256_add_epi32(_mm256_castps_si256(_mm256_permutevar_ps(powers, n)), _mm256_slli_epi32(n, 21));
    return _mm256_fmadd_ps(p, _mm256_castsi256_ps(power), sum);
}

// 2^(i/4), with i taken off where add_exp adds it again: of the whole number's
// bits, which go to the exponent, the lowest two fall into the mantissa.
HS_AVX2 inline __m256 table_of_powers() {
    float powers[8];
    for (int i = 0; i < 8; i++) {
        const float power = std::exp2((float) (i % 4) / 4);
        int32_t     bits;
        std::memcpy(&bits, &power, sizeof bits);
        bits -= (i % 4) << 21;
        std::memcpy(&powers[i], &bits, sizeof bits);
    }
    return _mm256_loadu_ps(powers);
}

// Two chunks ahead: summing one takes as long as the next one's way from memory
// (row of 608 KB from the third level of the cache: 44 to 24 us with rough terms).
constexpr int ahead = 2 * chunk;

template <bool rough> HS_AVX2 inline double chunk_sum(const float *x, float ref, __m256 powers, const float *next) {
    const __m256 m = _mm256_set1_ps(ref);
    __m256       a = _mm256_setzero_ps(), b = a;
    for (int k = 0; k < chunk; k += 16) {
        _mm_prefetch((const char *) (next + k), _MM_HINT_T0);
        __m256 x0 = _mm256_loadu_ps(x + k), x1 = _mm256_loadu_ps(x + k + 8);
        if (rough) {
            a = plus(a, rough_term_avx2(x0, m));
            b = plus(b, rough_term_avx2(x1, m));
        } else {
            a = add_exp(a, x0, m, powers);
            b = add_exp(b, x1, m, powers);
        }
    }
    return hsum(_mm256_add_ps(a, b));
}

template <bool rough> HS_AVX2 float survey_avx2(const float *x, int n, float *out, masses &to) {
    const __m256 powers = table_of_powers();
    reading      row(to);
    float        filled[chunk], maxima[chunk_blocks];
    for (int c = 0, i = 0; i < n; c++, i += chunk) {
        const float *part = x + i;
        if (n - i < chunk) { // the last one
            std::fill(std::copy(part, x + n, filled), filled + chunk, ninf);
            part = filled;
        }
        const __m256 max = chunk_max(part);
        _mm256_storeu_ps(maxima, max);
        std::copy(maxima, maxima + std::min(chunk_blocks, (n - i + block - 1) / block), out + c * chunk_blocks);
        if (row.chunk_counts(c, hmax(max))) row.add(c, chunk_sum<rough>(part, to.ref, powers, x + i + ahead));
    }
    return row.top;
}

} // namespace

float avx2::block_max_mass(const float *x, int n, float *out, masses &to) { return survey_avx2<false>(x, n, out, to); }
float avx2::block_max_rough(const float *x, int n, float *out, masses &to) { return survey_avx2<true>(x, n, out, to); }

HS_AVX2 double avx2::rough_above(const float *x, int n, const float *max, float ref, float t) {
    const __m256 m = _mm256_set1_ps(ref), cut = _mm256_set1_ps(t);
    __m256       a = _mm256_setzero_ps(), b = a;
    double       sum = 0;
    for (int lo = 0; lo < n; lo += block, max++) {
        if (!(*max >= t)) continue;
        const int hi = std::min(n, lo + block);
        int       i = lo;
        for (; i + 16 <= hi; i += 16) {
            __m256 x0 = _mm256_loadu_ps(x + i), x1 = _mm256_loadu_ps(x + i + 8);
            a = plus(a, _mm256_and_ps(rough_term_avx2(x0, m), _mm256_cmp_ps(x0, cut, _CMP_GE_OQ)));
            b = plus(b, _mm256_and_ps(rough_term_avx2(x1, m), _mm256_cmp_ps(x1, cut, _CMP_GE_OQ)));
        }
        for (; i < hi; i++)
            if (x[i] >= t) sum += rough_term(x[i], ref);
    }
    return sum + hsum(_mm256_add_ps(a, b));
}

#endif

} // namespace hs
