// sampler.cpp: what happens to one row. The pool that runs rows is in sampler_pool.cpp.
#include "sampler_internal.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace hs {
namespace {

constexpr float ninf = -std::numeric_limits<float>::infinity();
constexpr float nan_ = std::numeric_limits<float>::quiet_NaN();

// Bias and penalties are written into the row and taken back afterwards:
// they touch a few tokens, a copy would touch all.
class edits {
  public:
    edits(scratch &s, const hs_row *r, float *logits) : s_(s), r_(r), logits_(logits) {
        s.saved.clear();
        for (int i = 0; i < r->n_bias; i++) set(r->bias_tok[i], logits[r->bias_tok[i]] + r->bias_val[i]);
        if (r->rep == 1 && r->freq == 0 && r->pres == 0) return;
        for (int i = 0; i < r->n_pen; i++) {
            float l = logits[r->pen_tok[i]];
            l       = l <= 0 ? l * r->rep : l / r->rep;
            set(r->pen_tok[i], l - (float) r->pen_count[i] * r->freq - r->pres);
        }
    }
    ~edits() {
        // Backwards: a token edited twice gets its first value back last.
        for (size_t i = s_.saved.size(); i-- > 0;) logits_[s_.saved[i].tok] = s_.saved[i].logit;
    }
    edits(const edits &)            = delete;
    edits &operator=(const edits &) = delete;

  private:
    void set(int32_t tok, float v) {
        s_.saved.push_back({tok, logits_[tok]});
        logits_[tok] = v;
    }
    scratch      &s_;
    const hs_row *r_;
    float        *logits_;
};

int32_t argmax(const scratch &s, const float *x, float m) {
    for (int b = 0;; b++) {
        if (s.maxima[b] != m) continue;
        for (int i = b * block;; i++)
            if (x[i] == m) return i;
    }
}

// Brings the maxima up to date for the blocks that edits went to or left. Returns the overall one.
float update_maxima(scratch &s, const float *x) {
    const int nb = (int) s.maxima.size();
    if ((int) s.saved.size() > nb / 8) return s.k->block_max(x, s.n, s.maxima.data());
    for (const cand &c : s.saved) {
        int lo = c.tok / block * block;
        s.k->block_max(x + lo, std::min(block, s.n - lo), &s.maxima[c.tok / block]);
    }
    s.order.resize(nb);
    return s.k->block_max(s.maxima.data(), nb, s.order.data());
}

// Log-probabilities by the raw logits, whose maxima are in s; lse is the logarithm
// of their exponentials' sum. reuse: s.top_k is of the raw logits too.
void fill_logprobs(scratch &s, hs_row *r, const float *x, double lse, bool reuse) {
    r->logprob = (float) (x[r->token] - lse);
    int k      = std::min(r->n_logprobs, std::min(r->cap_top, s.n));
    if (k <= 0) return;
    if (reuse && k <= r->top_k) s.cands = s.top_k;
    else collect_top(s, x, k);
    std::sort(s.cands.begin(), s.cands.end(), likelier);
    r->n_top = std::min(k, (int32_t) s.cands.size());
    for (int i = 0; i < r->n_top; i++) {
        r->top_tok[i]     = s.cands[i].tok;
        r->top_logprob[i] = (float) (s.cands[i].logit - lse);
    }
}

void clear_results(hs_row *r) {
    r->status  = HS_OK;
    r->token   = -1;
    r->logprob = nan_;
    r->n_top   = 0;
}

} // namespace

scratch::scratch(int n_vocab, const kernels *kern) : n(n_vocab), k(kern) {
    maxima.resize((size_t) (n_vocab + block - 1) / block);
    idx.resize(block);
    held.resize(maxima.size());
    mass.chunk.resize((size_t) (n_vocab + chunk - 1) / chunk);
}

// Finds the maxima of an edited row. Returns the largest. Where the row before took its
// masses, and p is so large that little more is asked of these, it finds them too: a row
// then comes from memory once.
static float survey(scratch &s, const hs_row *r, const float *x) {
    if (top_p_alone(s, r) && r->wide && r->top_p >= 0.7f) {
        s.terms = scratch::rough;
        return s.k->block_max_rough(x, s.n, s.maxima.data(), s.mass);
    }
    s.terms = scratch::unknown;
    return s.k->block_max(x, s.n, s.maxima.data());
}

// The same for logprobs, of the raw row. Its tokens' mass, relative to the maximum, goes into *sum.
static float survey_all(scratch &s, const hs_row *r, const float *x, double *sum) {
    const bool  by_chunk = top_p_alone(s, r);
    const float m = (by_chunk ? s.k->block_max_mass : s.k->block_max_sum)(x, s.n, s.maxima.data(), s.mass);
    s.terms = scratch::exact;
    *sum    = std::max(1.0, s.mass.total * std::exp((double) s.mass.ref - m)); // less is rounding
    return m;
}

// The choice itself, on an edited row with its maxima in s and m the largest of them.
static void choose(scratch &s, hs_row *r, const float *x, float m, uint64_t seed) {
    if (!(m > ninf) || m == std::numeric_limits<float>::infinity()) {
        r->status = HS_FAILED; // nothing finite to choose from
    } else if (r->temp <= 0) {
        r->token = argmax(s, x, m);
    } else if (top_p_alone(s, r)) {
        draw_top_p(s, r, x, m, seed);
    } else if (filter(s, r, x, m)) {
        draw_cands(s, r, m, draw_unit(seed, r->draw));
    } else {
        draw_all(s, r, x, m, seed);
    }
}

// Logprobs are of the raw row, the choice of the edited one: one pass is for both,
// since edits change the maxima of few blocks. (Under top-p alone edits take a second one.)
static void sample_with_logprobs(scratch &s, hs_row *r, float *x) {
    double sum = 0;
    float  m   = survey_all(s, r, x, &sum);
    bool   raw;
    {
        edits guard(s, r, x);
        raw = s.saved.empty();
        if (r->chain) r->status = chain_sample(s, r, x, r->seed);
        else if (raw) choose(s, r, x, m, r->seed);
        else choose(s, r, x, top_p_alone(s, r) ? survey(s, r, x) : update_maxima(s, x), r->seed);
    }
    if (r->status != HS_OK) return;
    if (!raw) update_maxima(s, x);
    fill_logprobs(s, r, x, m + std::log(sum), raw && !r->chain && r->temp > 0 && top_k_on(s, r));
}

void sample_row(scratch &s, hs_row *r, float *x) {
    clear_results(r);
    if (r->n_logprobs >= 0) {
        sample_with_logprobs(s, r, x);
    } else {
        edits guard(s, r, x);
        if (r->chain) r->status = chain_sample(s, r, x, r->seed);
        else choose(s, r, x, survey(s, r, x), r->seed);
    }
    if (r->status == HS_OK) r->draw++;
}

void resample_row(scratch &s, hs_row *r, const float *x, const int32_t *allowed, int32_t n) {
    clear_results(r);
    s.masked.assign((size_t) s.n, ninf);
    for (int32_t i = 0; i < n; i++) s.masked[allowed[i]] = x[allowed[i]];
    // The rejected draw is not independent of the set that is left, so the
    // second one comes from another stream, under the same number.
    const uint64_t stream = r->seed ^ 0xd6e8feb86659fd93ULL;
    r->draw--;
    {
        edits guard(s, r, s.masked.data());
        if (r->chain) r->status = chain_sample(s, r, s.masked.data(), stream);
        else choose(s, r, s.masked.data(), survey(s, r, s.masked.data()), stream);
    }
    r->draw++;
    if (r->status != HS_OK || r->n_logprobs < 0) return;
    double sum = 0;
    float  m   = survey_all(s, r, x, &sum);
    fill_logprobs(s, r, x, m + std::log(sum), false);
}

int32_t top_candidates(scratch &s, const hs_row *r, float *x, int32_t k, int32_t *tok, float *logit, double *rest) {
    edits guard(s, r, x);
    float m = s.k->block_max(x, s.n, s.maxima.data());
    collect_top(s, x, std::min(k, (int32_t) s.n));
    std::sort(s.cands.begin(), s.cands.end(), likelier);
    for (size_t i = 0; i < s.cands.size(); i++) {
        tok[i]   = s.cands[i].tok;
        logit[i] = s.cands[i].logit;
    }
    float scale = r->temp > 1 ? 1 / r->temp : 1;
    *rest       = s.cands.empty() ? 0 : s.k->exp_sum(x, s.n, m, scale, nullptr) - cand_exps(s, m, scale);
    return (int32_t) s.cands.size();
}

int32_t distribution(scratch &s, hs_row *r, float *x, int32_t cap, int32_t *tok, float *prob) {
    edits guard(s, r, x);
    float m;
    if (r->chain) {
        int rc = chain_filter(s, r, x, r->seed);
        if (rc != HS_OK) return rc;
        std::sort(s.cands.begin(), s.cands.end(), likelier);
        m = s.cands[0].logit;
    } else {
        m = s.k->block_max(x, s.n, s.maxima.data());
        if (!(m > ninf)) return HS_FAILED;
        if (r->temp <= 0) s.cands = {{argmax(s, x, m), m}};
        else if (!filter(s, r, x, m)) collect_from(s, x, ninf);
        std::sort(s.cands.begin(), s.cands.end(), likelier);
    }
    // A chain has done the temperature itself.
    double  total = cand_exps(s, m, r->chain || r->temp <= 0 ? 1 : inv_temp(r));
    int32_t n     = (int32_t) std::min((size_t) cap, s.cands.size());
    for (int32_t i = 0; i < n; i++) {
        tok[i]  = s.cands[i].tok;
        prob[i] = (float) (s.exps[i] / total);
    }
    return n;
}

} // namespace hs

hs_row *hs_row_new(void) {
    auto *r = (hs_row *) calloc(1, sizeof(hs_row));
    if (!r) return nullptr;
    r->top_p      = 1;
    r->rep        = 1;
    r->n_logprobs = -1;
    hs::clear_results(r);
    return r;
}

namespace {

template <typename T> bool grow(T *&p, int32_t cap) {
    auto *q = (T *) realloc(p, (size_t) cap * sizeof(T));
    if (!q) return false;
    p = q;
    return true;
}

} // namespace

bool hs_row_reserve(hs_row *r, int32_t bias, int32_t pen, int32_t top) {
    if (bias > r->cap_bias) {
        if (!grow(r->bias_tok, bias) || !grow(r->bias_val, bias)) return false;
        r->cap_bias = bias;
    }
    if (pen > r->cap_pen) {
        if (!grow(r->pen_tok, pen) || !grow(r->pen_count, pen)) return false;
        r->cap_pen = pen;
    }
    if (top > r->cap_top) {
        if (!grow(r->top_tok, top) || !grow(r->top_logprob, top)) return false;
        r->cap_top = top;
    }
    return true;
}

void hs_row_free(hs_row *r) {
    if (!r) return;
    free(r->bias_tok);
    free(r->bias_val);
    free(r->pen_tok);
    free(r->pen_count);
    free(r->top_tok);
    free(r->top_logprob);
    free(r);
}
