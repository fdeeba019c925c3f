// sampler_internal.h: what the files of the sampler share.
#ifndef HEARTH_SAMPLER_INTERNAL_H
#define HEARTH_SAMPLER_INTERNAL_H

#include "sampler.h"
#include "sampler_kernel.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace hs {

struct cand {
    int32_t tok;
    float   logit;
};

struct weighed {
    cand  c;
    float e; // exp of the logit over the maximum
};

// One thread's working memory; it grows to what the rows need and stays.
struct scratch {
    scratch(int n_vocab, const kernels *kern);

    int            n; // vocabulary
    const kernels *k;

    std::vector<float>   maxima; // of the row's blocks
    masses               mass;   // of the row's chunks, where top-p is alone ...
    enum { unknown, rough, exact } terms = unknown; // ... and of which terms they are
    std::vector<float>   order;  // copy of maxima to select in
    std::vector<int32_t> idx;    // hits in one block
    std::vector<int32_t> held;   // blocks with hits
    std::vector<cand>    cands;
    std::vector<cand>    top_k; // what top-k left of the last row that filter had it for
    std::vector<weighed> heavy; // candidates with their mass
    std::vector<cand>    saved; // raw logits under the edits
    std::vector<float>   vals, exps;
    std::vector<double>  bounds; // running sums over blocks
    std::vector<int32_t> proposed; // tokens out of them, in turn
    std::vector<float>   masked; // a row with only the allowed tokens left
    std::vector<char>    chain; // llama_token_data of the whole vocabulary
};

inline bool likelier(const cand &a, const cand &b) { return a.logit > b.logit || (a.logit == b.logit && a.tok < b.tok); }

// Which way a row's filters lead.
inline bool top_k_on(const scratch &s, const hs_row *r) { return r->top_k > 0 && r->top_k < s.n; }
inline bool top_p_on(const hs_row *r) { return r->top_p < 1; }
inline bool min_p_on(const hs_row *r) { return r->min_p > 0; }
// Top-p alone, which needs the masses of a row.
inline bool top_p_alone(const scratch &s, const hs_row *r) {
    return !r->chain && r->temp > 0 && top_p_on(r) && !min_p_on(r) && !top_k_on(s, r);
}

// Finite even for the smallest temperature, so that the maximum's 0 stays 0.
inline float inv_temp(const hs_row *r) { return std::min(1 / r->temp, 1e30f); }

// ---- sampler_filter.cpp; x is a row with its maxima in s, m the largest of them ----

// Leaves the candidates with a logit of at least t in s.cands, in the order of their ids.
void collect_from(scratch &s, const float *x, float t);
// The k likeliest, in no order.
void collect_top(scratch &s, const float *x, int k);
// exp((logit-m)*scale) of every candidate into s.exps; returns the sum.
double cand_exps(scratch &s, float m, float scale);
// Whether at most so many blocks hold a logit of at least t.
bool few_blocks_from(const scratch &s, float t, int few);
// Leaves the likeliest candidates that hold p of the vocabulary's mass, total(head)
// when head is the candidates', as far as they are above floor. False: that takes
// more than max_blocks.
bool collect_top_p(scratch &s, const float *x, float m, float p, float floor, int max_blocks,
                   const std::function<double(double)> &total);
// Leaves the nucleus in s.cands, as far as it is not below floor, which min-p sets.
void collect_nucleus(scratch &s, const float *x, float m, float p, float floor);
// Leaves the final candidates of an edited row in s.cands. False: there are no
// filters and the whole vocabulary stays (s.cands is empty then).
bool filter(scratch &s, const hs_row *r, const float *x, float m);

// ---- sampler_draw.cpp ----

// Uniform bits, and a double in [0, 1), of draw number draw of a seed.
uint64_t draw_bits(uint64_t seed, uint64_t draw);
double   draw_unit(uint64_t seed, uint64_t draw);
// Sets r's token, drawn at its temperature from s.cands by u in [0, 1).
void draw_cands(scratch &s, hs_row *r, float m, double u);
// The same from the whole row, and under top-p alone, by the masses in s if they are known.
void draw_all(scratch &s, hs_row *r, const float *x, float m, uint64_t seed);
void draw_top_p(scratch &s, hs_row *r, const float *x, float m, uint64_t seed);

// ---- sampler.cpp ----

// Samples one row into r's results. x is edited and restored. May throw bad_alloc.
void sample_row(scratch &s, hs_row *r, float *x);
// See the functions of the same purpose in sampler.h.
int32_t top_candidates(scratch &s, const hs_row *r, float *x, int32_t k, int32_t *tok, float *logit, double *rest);
void    resample_row(scratch &s, hs_row *r, const float *x, const int32_t *allowed, int32_t n);
int32_t distribution(scratch &s, hs_row *r, float *x, int32_t cap, int32_t *tok, float *prob);

// shim_sample.cpp: leaves what r->chain keeps of the edited row in s.cands, temperature
// included. HS_RANGE for mirostat, which selects instead.
int chain_filter(scratch &s, hs_row *r, const float *x, uint64_t seed);
// shim_sample.cpp: runs r->chain over the edited row with the draws of a seed; sets its token. An HS code.
int chain_sample(scratch &s, hs_row *r, const float *x, uint64_t seed);

} // namespace hs

#endif
