// sampler_internal.h: what the files of the sampler share.
#ifndef HEARTH_SAMPLER_INTERNAL_H
#define HEARTH_SAMPLER_INTERNAL_H

#include "sampler.h"
#include "sampler_kernel.h"

#include <algorithm>
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
    std::vector<float>   order;  // copy of maxima to select in
    std::vector<int32_t> idx;    // one block's hits
    std::vector<cand>    cands;
    std::vector<weighed> heavy; // candidates with their mass
    std::vector<cand>    saved; // raw logits under the edits
    std::vector<float>   vals, exps;
    std::vector<double>  bounds; // running sums over blocks
    std::vector<float>   masked; // a row with only the allowed tokens left
    std::vector<char>    chain; // llama_token_data of the whole vocabulary
};

// Uniform bits, and a double in [0, 1), of draw number draw of a seed.
uint64_t draw_bits(uint64_t seed, uint64_t draw);
double   draw_unit(uint64_t seed, uint64_t draw);

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
