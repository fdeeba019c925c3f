// sampler_filter.cpp: from a row and its blocks' maxima to the candidates.
#include "sampler_internal.h"

#include <cmath>
#include <limits>

namespace hs {

constexpr float ninf = -std::numeric_limits<float>::infinity();

void collect_from(scratch &s, const float *x, float t) {
    s.cands.clear();
    if (!(t > ninf)) t = -std::numeric_limits<float>::max(); // -inf is never a candidate
    int held = s.k->collect(s.maxima.data(), 0, (int) s.maxima.size(), t, s.held.data());
    for (int h = 0; h < held; h++) {
        int b = s.held[h], hi = std::min(s.n, (b + 1) * block);
        int k  = s.k->collect(x, b * block, hi, t, s.idx.data());
        for (int i = 0; i < k; i++) s.cands.push_back({s.idx[i], x[s.idx[i]]});
    }
}

namespace {

// The k-th largest of the blocks' maxima. As its blocks do for the row, blocks of
// maxima bound it from below and leave a few to select from.
float kth_maximum(scratch &s, int k) {
    constexpr int group = 8;
    const int     nb = (int) s.maxima.size();
    auto          select = [&] {
        std::nth_element(s.order.begin(), s.order.begin() + (k - 1), s.order.end(), std::greater<float>());
        return s.order[k - 1];
    };
    s.order.clear();
    if (k * 2 <= nb / group) {
        for (int b = 0; b + group <= nb; b += group) {
            float m = ninf;
            for (int i = b; i < b + group; i++) m = std::max(m, s.maxima[i]);
            s.order.push_back(m);
        }
        int held = s.k->collect(s.maxima.data(), 0, nb, select(), s.held.data());
        s.order.clear();
        for (int i = 0; i < held; i++) s.order.push_back(s.maxima[s.held[i]]);
    } else {
        s.order = s.maxima;
    }
    return select();
}

} // namespace

// The k-th largest block maximum is a lower bound for the k-th largest logit, so
// only k blocks (and ties) can hold candidates.
void collect_top(scratch &s, const float *x, int k) {
    collect_from(s, x, k <= (int) s.maxima.size() ? kth_maximum(s, k) : ninf);
    if ((int) s.cands.size() > k) {
        std::nth_element(s.cands.begin(), s.cands.begin() + k, s.cands.end(), likelier);
        s.cands.resize(k);
    }
}

double cand_exps(scratch &s, float m, float scale) {
    size_t n = s.cands.size();
    s.vals.resize(n);
    s.exps.resize(n);
    for (size_t i = 0; i < n; i++) s.vals[i] = s.cands[i].logit;
    return s.k->exp_sum(s.vals.data(), (int) n, m, scale, s.exps.data());
}

namespace {

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

} // namespace

bool few_blocks_from(const scratch &s, float t, int few) {
    for (float m : s.maxima)
        if (m >= t && --few < 0) return false;
    return true;
}

// Enough of the head to reach p of the mass: steps of 6 (a factor of 400) end after two or three for any text.
bool collect_top_p(scratch &s, const float *x, float m, float p, float floor, int max_blocks,
                   const std::function<double(double)> &total) {
    for (float depth = 6;; depth += 6) {
        bool  last = depth > 90 || m - depth <= floor; // exp(-90) no longer counts
        float t    = last ? floor : m - depth;
        if (!few_blocks_from(s, t, max_blocks)) return false;
        collect_from(s, x, t);
        double head = cand_exps(s, m, 1), all = total(head);
        if (!last && head < p * all) continue;
        cut_top_p(s, m, p, all);
        return true;
    }
}

void collect_nucleus(scratch &s, const float *x, float m, float p, float floor) {
    double all = s.k->exp_sum(x, s.n, m, 1, nullptr);
    collect_top_p(s, x, m, p, floor, s.n, [all](double) { return all; });
}

bool filter(scratch &s, const hs_row *r, const float *x, float m) {
    if (top_k_on(s, r)) {
        collect_top(s, x, r->top_k);
        s.top_k = s.cands;
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

} // namespace hs
