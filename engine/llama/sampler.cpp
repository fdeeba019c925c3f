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

bool likelier(const cand &a, const cand &b) { return a.logit > b.logit || (a.logit == b.logit && a.tok < b.tok); }

// Candidates with a logit of at least t, in the order of their ids.
void collect_from(scratch &s, const float *x, float t) {
    s.cands.clear();
    if (!(t > ninf)) t = -std::numeric_limits<float>::max(); // -inf is never a candidate
    for (int b = 0; b * block < s.n; b++) {
        if (!(s.maxima[b] >= t)) continue;
        int hi = std::min(s.n, (b + 1) * block);
        int k  = s.k->collect(x, b * block, hi, t, s.idx.data());
        for (int i = 0; i < k; i++) s.cands.push_back({s.idx[i], x[s.idx[i]]});
    }
}

// The k likeliest, in no order. The k-th largest block maximum is a lower bound
// for the k-th largest logit, so only k blocks (and ties) can hold candidates.
void collect_top(scratch &s, const float *x, int k) {
    float t  = ninf;
    int   nb = (int) s.maxima.size();
    if (k <= nb) {
        s.order = s.maxima;
        std::nth_element(s.order.begin(), s.order.begin() + (k - 1), s.order.end(), std::greater<float>());
        t = s.order[k - 1];
    }
    collect_from(s, x, t);
    if ((int) s.cands.size() > k) {
        std::nth_element(s.cands.begin(), s.cands.begin() + k, s.cands.end(), likelier);
        s.cands.resize(k);
    }
}

// exp((logit-m)*scale) of every candidate into s.exps; returns the sum.
double cand_exps(scratch &s, float m, float scale) {
    size_t n = s.cands.size();
    s.vals.resize(n);
    s.exps.resize(n);
    for (size_t i = 0; i < n; i++) s.vals[i] = s.cands[i].logit;
    return s.k->exp_sum(s.vals.data(), (int) n, m, scale, s.exps.data());
}

// Keeps the likeliest candidates whose mass first reaches p of total (0: their
// own sum), in no order. Selecting by mass, as quickselect does by rank, costs
// twice a scan where sorting 100k candidates of a flat row would take 5 ms.
void cut_top_p(scratch &s, float m, float p, double total) {
    double sum = cand_exps(s, m, 1);
    double want = p * (total > 0 ? total : sum);
    s.heavy.clear();
    for (size_t i = 0; i < s.cands.size(); i++) s.heavy.push_back({s.cands[i], s.exps[i]});
    auto   before = [](const weighed &a, const weighed &b) { return likelier(a.c, b.c); };
    size_t lo = 0, hi = s.heavy.size(); // the cut lies in [lo, hi]
    double above = 0;                   // mass of [0, lo)
    while (hi - lo > 32) {
        size_t mid = lo + (hi - lo) / 2;
        std::nth_element(s.heavy.begin() + lo, s.heavy.begin() + mid, s.heavy.begin() + hi, before);
        double part = 0;
        for (size_t i = lo; i < mid; i++) part += s.heavy[i].e;
        if (above + part >= want) {
            hi = mid;
        } else {
            above += part;
            lo = mid;
        }
    }
    std::sort(s.heavy.begin() + lo, s.heavy.begin() + hi, before);
    for (size_t i = lo; i < hi; i++) {
        above += s.heavy[i].e;
        if (above >= want) hi = i + 1;
    }
    s.cands.clear();
    for (size_t i = 0; i < hi; i++) s.cands.push_back(s.heavy[i].c);
}

void cut_min_p(scratch &s, float m, float p) {
    float t = m + std::log(p);
    s.cands.erase(std::remove_if(s.cands.begin(), s.cands.end(), [t](const cand &c) { return c.logit < t; }), s.cands.end());
}

// How many blocks hold a logit of at least t.
int blocks_from(const scratch &s, float t) {
    return (int) std::count_if(s.maxima.begin(), s.maxima.end(), [t](float m) { return m >= t; });
}

// Without top-k, top-p needs the whole vocabulary's mass, which total(head) gives
// when head is the candidates', and then enough of the head to reach p of it.
// Steps of 6 (a factor of 400) end after two or three for any text. Nothing below
// floor is wanted. False: that takes more than max_blocks.
template <typename F> bool collect_top_p(scratch &s, const float *x, float m, float p, float floor, int max_blocks, F total) {
    for (float depth = 6;; depth += 6) {
        bool  last = depth > 90 || m - depth <= floor; // exp(-90) no longer counts
        float t    = last ? floor : m - depth;
        if (blocks_from(s, t) > max_blocks) return false;
        collect_from(s, x, t);
        double head = cand_exps(s, m, 1), all = total(head);
        if (!last && head < p * all) continue;
        cut_top_p(s, m, p, all);
        return true;
    }
}

// Leaves the nucleus in s.cands, as far as it is not below floor, which min-p sets.
void collect_nucleus(scratch &s, const float *x, float m, float p, float floor) {
    double all = s.k->exp_sum(x, s.n, m, 1, nullptr);
    collect_top_p(s, x, m, p, floor, s.n, [all](double) { return all; });
}

// Which way a row's filters lead.
bool top_k_on(const scratch &s, const hs_row *r) { return r->top_k > 0 && r->top_k < s.n; }
bool top_p_on(const hs_row *r) { return r->top_p < 1; }
bool min_p_on(const hs_row *r) { return r->min_p > 0; }

// Leaves the final candidates of an edited row in s.cands. False: there are no
// filters and the whole vocabulary stays (s.cands is empty then).
bool filter(scratch &s, const hs_row *r, const float *x, float m) {
    if (top_k_on(s, r)) {
        collect_top(s, x, r->top_k);
        if (top_p_on(r)) cut_top_p(s, m, r->top_p, 0);
        if (min_p_on(r)) cut_min_p(s, m, r->min_p);
        return true;
    }
    if (top_p_on(r)) {
        collect_nucleus(s, x, m, r->top_p, min_p_on(r) ? m + std::log(r->min_p) : ninf);
        return true;
    }
    if (min_p_on(r)) {
        collect_from(s, x, m + std::log(r->min_p));
        return true;
    }
    s.cands.clear();
    return false;
}

int32_t argmax(const scratch &s, const float *x, float m) {
    for (int b = 0;; b++) {
        if (s.maxima[b] != m) continue;
        for (int i = b * block;; i++)
            if (x[i] == m) return i;
    }
}

// Finite even for the smallest temperature, so that the maximum's 0 stays 0.
float inv_temp(const hs_row *r) { return std::min(1 / r->temp, 1e30f); }

// Draws from the candidates at the row's temperature.
void draw_cands(scratch &s, hs_row *r, float m, double u) {
    double left = u * cand_exps(s, m, inv_temp(r)), sum = 0;
    size_t pick = 0;
    for (size_t i = 0; i < s.cands.size(); i++) {
        if (s.exps[i] <= 0) continue;
        pick = i; // rounding can leave a little at the end: the last one takes it
        sum += s.exps[i];
        if (sum > left) break;
    }
    r->token = s.cands[pick].tok;
}

// Draws from the whole vocabulary without summing it: a block is proposed with
// the weight it would have if all its tokens were as likely as its maximum, a
// token of it uniformly, and taken with its share of that maximum. Exact; a
// block's own maximum makes it at most 128 proposals on average, 20 ns each,
// where the sum of 152k exponentials takes 40 us.
class proposals {
  public:
    proposals(scratch &s, const hs_row *r, const float *x, float m, uint64_t seed)
        : s_(s), x_(x), scale_(inv_temp(r)), stream_(draw_bits(seed, r->draw)) {
        int nb = (int) s.maxima.size();
        s.bounds.resize(nb);
        s.exps.resize(nb);
        s.k->exp_sum(s.maxima.data(), nb, m, scale_, s.exps.data());
        for (int b = 0; b < nb; b++) s.bounds[b] = total_ += s.exps[b] * (double) size(b);
    }
    // One proposal; -1: not taken.
    int32_t next() {
        double u = unit() * total_;
        int    b = (int) (std::upper_bound(s_.bounds.begin(), s_.bounds.end(), u) - s_.bounds.begin());
        double v = unit(), w = unit();
        if (b >= (int) s_.bounds.size()) return -1;
        int at = b * block + (int) (v * size(b));
        return w < std::exp((x_[at] - s_.maxima[b]) * scale_) ? at : -1;
    }
    // The next uniform value.
    double unit() { return draw_unit(stream_, i_++); }

  private:
    int size(int b) const { return std::min(block, s_.n - b * block); }

    scratch     &s_;
    const float *x_;
    float        scale_;
    uint64_t     stream_, i_ = 0; // of its own per draw, since it takes any number of values
    double       total_ = 0;
};

void draw_all(scratch &s, hs_row *r, const float *x, float m, uint64_t seed) {
    proposals draw(s, r, x, m, seed);
    do r->token = draw.next();
    while (r->token < 0);
}

// Tells whether a token lies in the nucleus, that is whether the likelier ones
// hold less than p of the mass, without building it. Rough sums decide for all
// but the few tokens that lie nearest to the cut.
class nucleus {
  public:
    nucleus(scratch &s, const float *x, float m, float p) : s_(s), x_(x), m_(m), p_(p) {}
    bool has(int32_t tok) {
        double above = before(tok, s_.k->rough_sum_from, rough_);
        if (above <= 0) return true; // the likeliest
        // above < p * all, with all = above + the rest
        double out = above * (1 - p_), in = (rough_ - above) * p_;
        if (out * rough_quotient < in) return true;
        if (out >= in * rough_quotient) return false;
        above = before(tok, s_.k->exp_sum_from, exact_);
        return above < p_ * exact_;
    }
    // Leaves a little more than the nucleus in s.cands, none of it below floor, which
    // is not in it. False: as in collect_top_p. has has to come first.
    bool collect(float floor, int max_blocks) {
        auto most = [this](double head) {
            return rough_ * rough_low - s_.k->rough_sum_from(s_.vals.data(), (int) s_.vals.size(), m_, 0, nullptr) + head;
        };
        return collect_top_p(s_, x_, m_, (float) p_, floor, max_blocks, most);
    }

  private:
    // Calls f(lo, hi, held) for the runs of blocks that hold a logit of at least t,
    // and of those that do not.
    template <typename F> void runs(float t, F f) {
        const int nb = (int) s_.maxima.size();
        for (int b = 0, end; b < nb; b = end) {
            bool held = s_.maxima[b] >= t;
            for (end = b + 1; end < nb && (s_.maxima[end] >= t) == held;) end++;
            f(b * block, std::min(s_.n, end * block), held);
        }
    }
    // Mass of the tokens likelier than tok. The first call with a kernel reads the
    // whole row and sets all, later ones only blocks with a likelier token.
    template <typename F> double before(int32_t tok, F sum_from, double &all) {
        // Of equal ones those with a smaller id are likelier.
        const float t = x_[tok], above = std::nextafter(t, std::numeric_limits<float>::infinity());
        double      mass = 0, sum = 0;
        runs(t, [&](int lo, int hi, bool held) {
            if (!held) {
                if (all <= 0) sum += sum_from(x_ + lo, hi - lo, m_, t, nullptr);
                return;
            }
            int mid = std::clamp(tok, lo, hi);
            sum += sum_from(x_ + lo, mid - lo, m_, t, &mass);
            sum += sum_from(x_ + mid, hi - mid, m_, above, &mass);
        });
        if (all <= 0) all = sum;
        return mass;
    }

    scratch     &s_;
    const float *x_;
    float        m_;
    double       p_, rough_ = 0, exact_ = 0; // mass of the vocabulary, once known
};

// Draws under top-p alone: from the whole vocabulary until a token of the nucleus
// comes. A flat row's nucleus is most of the vocabulary and soon hit, and a miss
// tells that nothing less likely is in it. Where the rest is small enough to
// collect, or luck is bad, the draw is from candidates.
void draw_top_p(scratch &s, hs_row *r, const float *x, float m, uint64_t seed) {
    constexpr int max_proposals = 2000, max_misses = 8; // 40 us, and at most 150 us
    const int     few = (int) s.maxima.size() / 8 + 1;
    proposals     draw(s, r, x, m, seed);
    nucleus       in(s, x, m, r->top_p);
    cand          floor = {0, ninf}; // likeliest token known to be outside
    bool          collected = false;
    for (int i = 0, misses = 0; i < max_proposals && misses < max_misses && !collected; i++) {
        int32_t tok = draw.next();
        if (tok < 0 || !likelier({tok, x[tok]}, floor)) continue;
        r->token = tok;
        if (in.has(tok)) return;
        floor = {tok, x[tok]};
        misses++;
        collected = in.collect(floor.logit, few);
    }
    if (collected) {
        draw_cands(s, r, m, draw.unit());
        if (in.has(r->token)) return;
    }
    collect_nucleus(s, x, m, r->top_p, floor.logit);
    draw_cands(s, r, m, draw.unit());
}

// Log-probabilities by the raw logits.
void fill_logprobs(scratch &s, hs_row *r, const float *x) {
    float  m   = s.k->block_max(x, s.n, s.maxima.data());
    double lse = m + std::log(s.k->exp_sum(x, s.n, m, 1, nullptr));
    r->logprob = (float) (x[r->token] - lse);
    int k      = std::min(r->n_logprobs, std::min(r->cap_top, s.n));
    if (k <= 0) return;
    collect_top(s, x, k);
    std::sort(s.cands.begin(), s.cands.end(), likelier);
    r->n_top = (int32_t) s.cands.size();
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

// splitmix64's finaliser: every bit of the input moves every bit of the output.
uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

} // namespace

uint64_t draw_bits(uint64_t seed, uint64_t draw) {
    return mix(mix(seed + 0x9e3779b97f4a7c15ULL) + (draw + 1) * 0x9e3779b97f4a7c15ULL);
}

double draw_unit(uint64_t seed, uint64_t draw) { return (double) (draw_bits(seed, draw) >> 11) * 0x1p-53; }

scratch::scratch(int n_vocab, const kernels *kern) : n(n_vocab), k(kern) {
    maxima.resize((size_t) (n_vocab + block - 1) / block);
    idx.resize(block);
}

// The choice itself, on an edited row. Leaves the row's block maxima behind.
static void choose(scratch &s, hs_row *r, const float *x, uint64_t seed) {
    float m = s.k->block_max(x, s.n, s.maxima.data());
    if (!(m > ninf) || m == std::numeric_limits<float>::infinity()) {
        r->status = HS_FAILED; // nothing finite to choose from
    } else if (r->temp <= 0) {
        r->token = argmax(s, x, m);
    } else if (top_p_on(r) && !min_p_on(r) && !top_k_on(s, r)) {
        draw_top_p(s, r, x, m, seed);
    } else if (filter(s, r, x, m)) {
        draw_cands(s, r, m, draw_unit(seed, r->draw));
    } else {
        draw_all(s, r, x, m, seed);
    }
}

void sample_row(scratch &s, hs_row *r, float *x) {
    clear_results(r);
    {
        edits guard(s, r, x);
        if (r->chain) r->status = chain_sample(s, r, x, r->seed);
        else choose(s, r, x, r->seed);
    }
    if (r->status != HS_OK) return;
    r->draw++;
    if (r->n_logprobs >= 0) fill_logprobs(s, r, x);
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
        else choose(s, r, s.masked.data(), stream);
    }
    r->draw++;
    if (r->status == HS_OK && r->n_logprobs >= 0) fill_logprobs(s, r, x);
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
