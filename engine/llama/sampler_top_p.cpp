// sampler_top_p.cpp: draws under top-p alone, without the list of candidates.
#include "sampler_draw.h"

#include <cmath>
#include <limits>

namespace hs {
namespace {

constexpr float ninf = -std::numeric_limits<float>::infinity();

// Tells whether a token lies in the nucleus, that is whether the likelier ones
// hold less than p of the mass, without building it. Rough sums decide for all
// but the few tokens that lie nearest to the cut.
class nucleus {
  public:
    // wide becomes whether it was worth to have the row's masses at once.
    nucleus(scratch &s, proposals &draw, const float *x, float m, float p, bool &wide)
        : s_(s), draw_(draw), x_(x), m_(m), p_(p), wide_(wide) {
        wide_ = false;
        if (s.terms == scratch::exact) exact_ = s.mass.total * std::exp((double) s.mass.ref - m);
    }
    bool has(int32_t tok) {
        if (exact_ <= 0 || !shallow(x_[tok])) {
            if (!judged_ && clearly_in(tok)) return true;
            if (!judged_) wide_ = judged_ = true;
            if (s_.terms == scratch::unknown) weigh(tok);
            if (x_[tok] >= in_) return true;
            if (x_[tok] < out_) return false;
            const verdict v = judge(tok);
            if (v != verdict::unsure) return v == verdict::in;
        }
        double above = before(tok);
        return above <= 0 || above < p_ * exact_;
    }
    // Leaves a little more than the nucleus in s.cands, none of it below floor, which
    // is not in it. False: as in collect_top_p.
    bool collect(float floor) {
        auto most = [this](double head) {
            if (rough_ <= 0) rough_ = s_.k->rough_sum_from(x_, s_.n, m_, 0, nullptr);
            wide_ = false; // weigh would have found this one too
            return rough_ * rough_low - s_.k->rough_sum_from(s_.vals.data(), (int) s_.vals.size(), m_, 0, nullptr) + head;
        };
        return collect_top_p(s_, x_, m_, (float) p_, floor, few(), most);
    }

  private:
    // So many blocks are quickly gone through.
    int  few() const { return (int) s_.maxima.size() / 8 + 1; }
    bool shallow(float t) const { return few_blocks_from(s_, t, few()); }

    enum class verdict { in, out, unsure };

    // Whether a token of a peaked row is in by what the few blocks with likelier ones and
    // the others' maxima hold: most draws are, and need no masses. False: not known.
    bool clearly_in(int32_t tok) const {
        const float t = x_[tok];
        if (!few_blocks_from(s_, t, 32)) return false;
        double       held = 0, above = 0, maxima = 0;
        const double own = s_.k->rough_sum_from(x_ + tok, 1, m_, 0, nullptr);
        const double all = s_.k->rough_sum_from(s_.maxima.data(), (int) s_.maxima.size(), m_, t, &maxima);
        runs(t, [&](int lo, int hi, bool likelier) {
            if (likelier) held += s_.k->rough_sum_from(x_ + lo, hi - lo, m_, t, &above);
        });
        const double rest = own + held - above + all - maxima; // at least what is not likelier
        return (above - own) * (1 - p_) * rough_quotient < rest * p_;
    }
    // Finds the masses. With a small p most proposals are outside, and to tell that of
    // each takes a pass over the row. So, if tok looks as if it were outside, this one is
    // for the next proposal that looks inside and for the likeliest of those before it.
    void weigh(int32_t tok) {
        constexpr float inf = std::numeric_limits<float>::infinity();
        float           from[2] = {inf, inf};
        // Where few blocks come near the maximum judge is quick, and the first one outside leads to collect.
        const bool deep = !shallow(x_[tok]) && !shallow(m_ - 6);
        if (deep) look_ahead(tok, from);
        double above[2] = {0, 0};
        s_.terms      = scratch::rough;
        s_.mass.ref   = m_;
        s_.mass.total = 0;
        for (int c = 0, lo = 0; lo < s_.n; c++, lo += chunk) {
            const int    n = std::min(s_.n - lo, chunk);
            const double sum = deep ? s_.k->rough_sum_from2(x_ + lo, n, m_, from, above)
                                    : s_.k->rough_sum_from(x_ + lo, n, m_, 0, nullptr);
            s_.mass.chunk[c] = (float) sum;
            s_.mass.total += sum;
        }
        rough_ = s_.mass.total;
        if (by(above[0], 0) == verdict::in) in_ = from[0];
        if (above[1] > 0 && by(above[1], 0) == verdict::out) out_ = from[1];
    }
    // Which two logits to ask for.
    void look_ahead(int32_t tok, float from[2]) {
        constexpr uint64_t far = 400; // 10 us
        const float cut = guess();
        if (x_[tok] >= cut) {
            from[0] = x_[tok];
            return;
        }
        from[1] = x_[tok];
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

    // Sums up chunk by chunk what is likelier than tok, until the chunks that are left
    // cannot change the answer: for a token far from the cut that is soon.
    verdict judge(int32_t tok) const {
        // Of equal ones those with a smaller id are likelier.
        const float t = x_[tok], next = std::nextafter(t, std::numeric_limits<float>::infinity());
        double      above = 0, left = s_.mass.total;
        auto        add = [&](int lo, int hi, float from) {
            if (lo < hi) above += s_.k->rough_above(x_ + lo, hi - lo, &s_.maxima[lo / block], s_.mass.ref, from);
        };
        for (int c = 0, lo = 0; lo < s_.n; c++, lo += chunk) {
            const int hi = std::min(s_.n, lo + chunk), own = tok / block * block;
            if (tok >= hi) {
                add(lo, hi, t);
            } else if (tok < lo) {
                add(lo, hi, next);
            } else {
                add(lo, own, t);
                add(own, tok, t);
                add(tok, std::min(hi, own + block), next);
                add(own + block, hi, next);
            }
            left -= s_.mass.chunk[c];
            const verdict v = by(above, left);
            if (v != verdict::unsure && above > 0) return v;
        }
        return above > 0 ? by(above, 0) : verdict::in;
    }
    // What holds for a token by the rough mass of the likelier ones, above and up to left more.
    verdict by(double above, double left) const {
        const double all = s_.mass.total, slack = 2e-6 * all; // rounding, and chunks that are not summed
        const double most = above + std::max(left, 0.0) + slack;
        if (s_.terms == scratch::exact) {
            if (most < p_ * all) return verdict::in;
            return above >= (p_ * all + slack) * rough_quotient ? verdict::out : verdict::unsure;
        }
        // above < p * all, with all = above + the rest
        if (most * (1 - p_) * rough_quotient < (all - most) * p_) return verdict::in;
        return above * (1 - p_) >= (all - above + slack) * p_ * rough_quotient ? verdict::out : verdict::unsure;
    }

    // Calls f(lo, hi, held) for the runs of blocks that hold a logit of at least t,
    // and of those that do not.
    template <typename F> void runs(float t, F f) const {
        const int nb = (int) s_.maxima.size();
        for (int b = 0, end; b < nb; b = end) {
            bool held = s_.maxima[b] >= t;
            for (end = b + 1; end < nb && (s_.maxima[end] >= t) == held;) end++;
            f(b * block, std::min(s_.n, end * block), held);
        }
    }
    // Exact mass of the tokens likelier than tok. The first call reads the whole row
    // and sets exact_, later ones only blocks with a likelier token.
    double before(int32_t tok) {
        // Of equal ones those with a smaller id are likelier.
        const float t = x_[tok], above = std::nextafter(t, std::numeric_limits<float>::infinity());
        double      mass = 0, sum = 0;
        runs(t, [&](int lo, int hi, bool held) {
            if (!held) {
                if (exact_ <= 0) sum += s_.k->exp_sum_from(x_ + lo, hi - lo, m_, t, nullptr);
                return;
            }
            int mid = std::clamp(tok, lo, hi);
            sum += s_.k->exp_sum_from(x_ + lo, mid - lo, m_, t, &mass);
            sum += s_.k->exp_sum_from(x_ + mid, hi - mid, m_, above, &mass);
        });
        if (exact_ <= 0) exact_ = sum;
        return mass;
    }

    scratch     &s_;
    proposals   &draw_;
    const float *x_;
    float        m_;
    double       p_;
    bool        &wide_, judged_ = false;
    double       rough_ = 0, exact_ = 0; // mass of the vocabulary over m_, once known
    // A token with at least the one logit is in the nucleus, below the other one it is not.
    float in_ = std::numeric_limits<float>::infinity(), out_ = ninf;
};

} // namespace

// Draws under top-p alone: from the whole vocabulary until a token of the nucleus
// comes. A flat row's nucleus is most of the vocabulary and soon hit, and a miss
// tells that nothing less likely is in it. Where the rest is small enough to
// collect, or luck is bad, the draw is from candidates.
void draw_top_p(scratch &s, hs_row *r, const float *x, float m, uint64_t seed) {
    constexpr int max_proposals = 2000, max_misses = 8; // 40 us, and at most 150 us
    proposals     draw(s, r, x, m, seed);
    nucleus       in(s, draw, x, m, r->top_p, r->wide);
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
