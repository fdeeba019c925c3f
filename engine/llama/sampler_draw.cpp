// sampler_draw.cpp: the draws, from candidates and from the whole vocabulary.
#include "sampler_internal.h"

#include <cmath>
#include <limits>

namespace hs {
namespace {

constexpr float ninf = -std::numeric_limits<float>::infinity();

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

namespace {

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
        s.proposed.clear();
        s.k->exp_sum(s.maxima.data(), nb, m, scale_, s.exps.data());
        for (int b = 0; b < nb; b++) s.bounds[b] = total_ += s.exps[b] * (double) size(b);
    }
    // The next proposal; -1: not taken.
    int32_t next() { return at(taken_++); }
    // The one that k calls from now next() will give.
    int32_t ahead(uint64_t k) { return at(taken_ + k); }
    // A uniform value for another purpose, after the last proposal.
    double unit() { return draw_unit(stream_, 3 * taken_ + units_++); }

  private:
    int size(int b) const { return std::min(block, s_.n - b * block); }

    int32_t at(uint64_t i) {
        while (s_.proposed.size() <= i) s_.proposed.push_back(propose(3 * s_.proposed.size()));
        return s_.proposed[i];
    }
    int32_t propose(uint64_t i) const {
        double u = draw_unit(stream_, i) * total_;
        int    b = (int) (std::upper_bound(s_.bounds.begin(), s_.bounds.end(), u) - s_.bounds.begin());
        double v = draw_unit(stream_, i + 1), w = draw_unit(stream_, i + 2);
        if (b >= (int) s_.bounds.size()) return -1;
        int   at = b * block + (int) (v * size(b));
        float a = (x_[at] - s_.maxima[b]) * scale_;
        if (a < -10 && w > 5e-5) return -1; // exp(-10) is less: under a peak most end here
        return w < std::exp(a) ? at : -1;
    }

    scratch     &s_;
    const float *x_;
    float        scale_;
    uint64_t     stream_; // of its own per draw, since it takes any number of values
    uint64_t     taken_ = 0, units_ = 0;
    double       total_ = 0;
};

} // namespace

void draw_all(scratch &s, hs_row *r, const float *x, float m, uint64_t seed) {
    proposals draw(s, r, x, m, seed);
    do r->token = draw.next();
    while (r->token < 0);
}

namespace {

// Tells whether a token lies in the nucleus, that is whether the likelier ones
// hold less than p of the mass, without building it. Rough sums decide for all
// but the few tokens that lie nearest to the cut.
class nucleus {
  public:
    // mass is exp_sum's of the row; 0: not known.
    nucleus(scratch &s, proposals &draw, const float *x, float m, float p, double mass)
        : s_(s), draw_(draw), x_(x), m_(m), p_(p), exact_(mass) {}
    bool has(int32_t tok) {
        if (exact_ <= 0 || !shallow(x_[tok])) {
            if (!looked_ && p_ < 0.9 && !shallow(x_[tok]) && !shallow(m_ - 6)) look_ahead(tok);
            if (x_[tok] >= in_) return true;
            if (x_[tok] < out_) return false;
            double above = before(tok, s_.k->rough_sum_from, rough_);
            if (above <= 0) return true; // the likeliest
            if (surely_in(above)) return true;
            if (surely_out(above)) return false;
        }
        double above = before(tok, s_.k->exp_sum_from, exact_);
        return above <= 0 || above < p_ * exact_;
    }
    // Leaves a little more than the nucleus in s.cands, none of it below floor, which
    // is not in it. False: as in collect_top_p.
    bool collect(float floor) {
        auto most = [this](double head) {
            if (rough_ <= 0) rough_ = s_.k->rough_sum_from(x_, s_.n, m_, 0, nullptr);
            return rough_ * rough_low - s_.k->rough_sum_from(s_.vals.data(), (int) s_.vals.size(), m_, 0, nullptr) + head;
        };
        return collect_top_p(s_, x_, m_, (float) p_, floor, few(), most);
    }

  private:
    // So many blocks are quickly gone through.
    int  few() const { return (int) s_.maxima.size() / 8 + 1; }
    bool shallow(float t) const { return few_blocks_from(s_, t, few()); }

    // What holds for a token by the rough mass of the likelier ones: whether
    // above < p * all, with all = above + the rest.
    bool surely_in(double above) const { return above * (1 - p_) * rough_quotient < (rough_ - above) * p_; }
    bool surely_out(double above) const { return above * (1 - p_) >= (rough_ - above) * p_ * rough_quotient; }

    // With a small p most proposals are outside, and to tell that of each takes a pass
    // over the row. So when tok looks as if it were outside, one pass is for the next
    // proposal that looks inside and for the likeliest of those before it. (Not where
    // few blocks come near the maximum: there the first one outside leads to collect.)
    void look_ahead(int32_t tok) {
        constexpr uint64_t far = 400; // 10 us
        looked_ = true;
        const float cut = guess();
        if (x_[tok] >= cut) return;
        float from[2] = {std::numeric_limits<float>::infinity(), x_[tok]};
        for (uint64_t k = 0; k < far; k++) {
            int32_t next = draw_.ahead(k);
            if (next < 0) continue;
            if (x_[next] >= cut) {
                from[0] = x_[next];
                break;
            }
            from[1] = std::max(from[1], x_[next]);
        }
        from[1] = std::nextafter(from[1], std::numeric_limits<float>::infinity());
        double above[2] = {0, 0};
        rough_ = s_.k->rough_sum_from2(x_, s_.n, m_, from, above);
        if (surely_in(above[0])) in_ = from[0];
        if (surely_out(above[1])) out_ = from[1];
    }
    // About where the nucleus ends, by the maxima, which are most of the likeliest
    // logits, and by a sample of the rest: a line of 16 of every so many blocks.
    float guess() {
        constexpr int line = 16, lines = 64;
        const int     nb = (int) s_.maxima.size(), whole = s_.n / block, step = whole / lines + 1;
        const float   floor = m_ - 24; // nothing to a sum beside the maximum
        float         lo = m_, hi = m_;
        s_.vals.clear();
        for (int b = 0; b < whole; b += step) {
            const float *v = x_ + b * block + b / step % (block / line) * line, top = s_.maxima[b];
            float        rest[line];
            for (int i = 0; i < line; i++) rest[i] = v[i] < top ? v[i] : ninf; // no NaN either
            s_.vals.insert(s_.vals.end(), rest, rest + line);
            if (rest[0] > floor) lo = std::min(lo, rest[0]);
        }
        const int    nv = (int) s_.vals.size();
        const double each = (double) (s_.n - nb) / std::max(nv, 1); // what one of the sample stands for
        for (int i = 0; i < 5; i++) {
            const float t[2] = {hi - (hi - lo) / 3, lo + (hi - lo) / 3};
            double      top[2] = {0, 0}, rest[2] = {0, 0};
            double      want = s_.k->rough_sum_from2(s_.maxima.data(), nb, m_, t, top);
            want             = p_ * (want + each * s_.k->rough_sum_from2(s_.vals.data(), nv, m_, t, rest));
            if (top[0] + each * rest[0] >= want) lo = t[0];
            else if (top[1] + each * rest[1] >= want) lo = t[1], hi = t[0];
            else hi = t[1];
        }
        return lo;
    }

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
    proposals   &draw_;
    const float *x_;
    float        m_;
    double       p_, rough_ = 0, exact_; // mass of the vocabulary, once known
    // A token with at least the one logit is in the nucleus, below the other one it is not.
    float in_ = std::numeric_limits<float>::infinity(), out_ = ninf;
    bool  looked_ = false;
};

} // namespace

// Draws under top-p alone: from the whole vocabulary until a token of the nucleus
// comes. A flat row's nucleus is most of the vocabulary and soon hit, and a miss
// tells that nothing less likely is in it. Where the rest is small enough to
// collect, or luck is bad, the draw is from candidates.
void draw_top_p(scratch &s, hs_row *r, const float *x, float m, double mass, uint64_t seed) {
    constexpr int max_proposals = 2000, max_misses = 8; // 40 us, and at most 150 us
    proposals     draw(s, r, x, m, seed);
    nucleus       in(s, draw, x, m, r->top_p, mass);
    cand          floor = {0, ninf}; // likeliest token known to be outside
    bool          collected = false;
    for (int i = 0, misses = 0; i < max_proposals && misses < max_misses && !collected; i++) {
        int32_t tok = draw.next();
        if (tok < 0 || !likelier({tok, x[tok]}, floor)) continue;
        r->token = tok;
        if (in.has(tok)) return;
        floor = {tok, x[tok]};
        misses++;
        collected = in.collect(floor.logit);
    }
    if (collected) {
        draw_cands(s, r, m, draw.unit());
        if (in.has(r->token)) return;
    }
    collect_nucleus(s, x, m, r->top_p, floor.logit);
    draw_cands(s, r, m, draw.unit());
}

} // namespace hs
