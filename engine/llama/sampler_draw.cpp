// sampler_draw.cpp: the draws, from candidates and from the whole vocabulary.
#include "sampler_draw.h"

#include <cmath>

namespace hs {
namespace {

// splitmix64's finaliser: every bit of the input moves every bit of the output.
uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

// Where a seed's draws start from, and the bits of one of them.
uint64_t stream_of(uint64_t seed) { return mix(seed + 0x9e3779b97f4a7c15ULL); }
uint64_t bits_in(uint64_t stream, uint64_t draw) { return mix(stream + (draw + 1) * 0x9e3779b97f4a7c15ULL); }
double   unit(uint64_t bits) { return (double) (bits >> 11) * 0x1p-53; }

} // namespace

uint64_t draw_bits(uint64_t seed, uint64_t draw) { return bits_in(stream_of(seed), draw); }

double draw_unit(uint64_t seed, uint64_t draw) { return unit(draw_bits(seed, draw)); }

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

proposals::proposals(scratch &s, const hs_row *r, const float *x, float m, uint64_t seed)
    : s_(s), x_(x), scale_(inv_temp(r)), stream_(stream_of(draw_bits(seed, r->draw))) {
    int nb = (int) s.maxima.size();
    s.bounds.resize(nb);
    s.exps.resize(nb);
    s.proposed.clear();
    s.k->exp_sum(s.maxima.data(), nb, m, scale_, s.exps.data());
    for (int b = 0; b < nb; b++) s.bounds[b] = total_ += s.exps[b] * (double) size(b);
}

double proposals::value(uint64_t i) const { return hs::unit(bits_in(stream_, i)); }

int32_t proposals::at(uint64_t i) {
    while (s_.proposed.size() <= i) s_.proposed.push_back(propose(3 * s_.proposed.size()));
    return s_.proposed[i];
}

int32_t proposals::propose(uint64_t i) const {
    double u = value(i) * total_, v = value(i + 1), w = value(i + 2);
    int    b = (int) (std::upper_bound(s_.bounds.begin(), s_.bounds.end(), u) - s_.bounds.begin());
    if (b >= (int) s_.bounds.size()) return -1;
    int   at = b * block + (int) (v * size(b));
    float a = (x_[at] - s_.maxima[b]) * scale_;
    if (a < -10 && w > 5e-5) return -1; // exp(-10) is less: under a peak most end here
    return w < std::exp(a) ? at : -1;
}

void draw_all(scratch &s, hs_row *r, const float *x, float m, uint64_t seed) {
    proposals draw(s, r, x, m, seed);
    do r->token = draw.next();
    while (r->token < 0);
}

} // namespace hs
