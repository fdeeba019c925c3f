// sampler.h: the fused sampling kernel.
//
// One call samples every output row of a step. Per row, in this order, which is
// llama.cpp's: logit bias, penalties, top-k, top-p, min-p, temperature, draw.
// The vocabulary is read once for block maxima, and for its mass where logprobs
// ask for it; everything after that looks only at the blocks that can hold a
// candidate. Top-p without top-k may read parts of it a second time, to find
// where in the mass a token lies.
#ifndef HEARTH_SAMPLER_H
#define HEARTH_SAMPLER_H

#include "shim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hs_chain   hs_chain;
typedef struct hs_sampler hs_sampler;

// One request's settings and results. The caller owns the struct and fills the
// settings; arrays are malloc'd by hs_row_reserve.
typedef struct hs_row {
    // settings
    float    temp;       // <= 0: greedy
    float    top_p;      // >= 1: off
    float    min_p;      // <= 0: off
    float    rep, freq, pres; // penalties; 1, 0, 0: off
    int32_t  top_k;      // <= 0: off
    int32_t  n_logprobs; // -1: none, 0: of the chosen token, n: and the n likeliest
    uint64_t seed;
    uint64_t draw; // counts up by one per sampled token; (seed, draw) decides the draw
    // sparse edits of the logits
    int32_t  n_bias, cap_bias;
    int32_t *bias_tok;
    float   *bias_val;
    int32_t  n_pen, cap_pen;
    int32_t *pen_tok;   // distinct tokens of the penalty window ...
    int32_t *pen_count; // ... and how often each is in it
    hs_chain *chain;    // replaces the filters when set; not owned
    // state
    bool wide; // the last draw under top-p alone took the masses of the row: the next one finds them at once
    // results
    int32_t  status; // HS_OK, HS_FAILED: no finite logit, or another HS code
    int32_t  token;
    float    logprob; // of token, by the unedited logits; NaN without n_logprobs
    int32_t  n_top, cap_top;
    int32_t *top_tok; // likeliest first
    float   *top_logprob;
} hs_row;

typedef struct hs_job {
    hs_row *row;
    float  *logits; // edited and restored during the call
} hs_job;

hs_row *hs_row_new(void);
// Makes room for this many entries in the arrays; false: out of memory.
bool hs_row_reserve(hs_row *r, int32_t bias, int32_t pen, int32_t top);
void hs_row_free(hs_row *r);

// How much of the CPU's vectors the kernel uses.
enum { HS_SIMD_NONE = 0, HS_SIMD_AVX2 = 1, HS_SIMD_AVX512 = 2, HS_SIMD_BEST = 2 };

// threads counts the caller's too. simd is the most to use of what the CPU has; less than the best is for tests.
hs_sampler *hs_sampler_new(int32_t n_vocab, int32_t threads, int32_t max_jobs, int32_t simd);
void        hs_sampler_free(hs_sampler *s);
hs_job     *hs_sampler_jobs(hs_sampler *s); // max_jobs entries to fill
int32_t     hs_sampler_simd(const hs_sampler *s); // what it uses

// Samples jobs[0..n). Jobs that share a logits row run on one thread.
int hs_sample(hs_sampler *s, int32_t n);

// The k likeliest tokens after bias and penalties, likeliest first, into tok and
// logit (room for k). rest is the mass of all others in units of the likeliest
// token's, at the row's temperature where that is above 1. Returns how many, or an HS code.
int32_t hs_candidates(hs_sampler *s, hs_row *r, float *logits, int32_t k, int32_t *tok, float *logit, double *rest);
// Replaces the row's last token by one out of allowed: the whole procedure over
// the row without its other tokens. Keeps the draw counter where it is.
int hs_resample(hs_sampler *s, hs_row *r, const float *logits, const int32_t *allowed, int32_t n);
// The final candidates and probabilities hs_sample would draw from, likeliest first.
// HS_RANGE for a mirostat chain.
int32_t hs_distribution(hs_sampler *s, hs_row *r, float *logits, int32_t cap, int32_t *tok, float *prob);

// ---- shim_sample.cpp: llama.cpp's own samplers ----

typedef struct hs_chain_params {
    // 0 leaves a sampler out, except where noted
    float    dry_multiplier, dry_base;
    int32_t  dry_allowed_length, dry_last_n;
    const char *const *dry_breakers;
    int32_t  n_dry_breakers;
    float    top_n_sigma;
    int32_t  top_k;
    float    typical_p; // 1: off
    float    top_p, min_p; // 1 and 0: off
    float    xtc_probability, xtc_threshold;
    int32_t  min_keep; // least number of candidates that typical, top-p, min-p and XTC leave, at least 1
    float    temp, dyna_range, dyna_exponent;
    int32_t  mirostat; // 0, 1 or 2; replaces the filters
    float    mirostat_tau, mirostat_eta;
    int32_t  mirostat_m;
    uint64_t seed;
} hs_chain_params;

int  hs_chain_new(const hs_model *m, const hs_chain_params *p, hs_chain **out, hs_err *err);
void hs_chain_free(hs_chain *c);
int  hs_chain_accept(hs_chain *c, int32_t tok, hs_err *err);
int  hs_chain_reset(hs_chain *c, hs_err *err);

// What llama.cpp's own chain (logit bias, penalties, top-k, top-p, min-p,
// temperature, dist) makes of the row's settings: candidates and probabilities,
// likeliest first. For tests and the worker's self-test. Returns how many, or an HS code.
int32_t hs_reference(int32_t n_vocab, const float *logits, const hs_row *r, const int32_t *history, int32_t n_history,
                     int32_t last_n, int32_t cap, int32_t *tok, float *prob, hs_err *err);

typedef struct hs_grammar hs_grammar;

// patterns and tokens make the grammar lazy: it binds only after one of them.
int  hs_grammar_new(const hs_model *m, const char *gbnf, const char *root, const char *const *patterns, int32_t n_patterns,
                    const int32_t *tokens, int32_t n_tokens, bool lazy, hs_grammar **out, hs_err *err);
void hs_grammar_free(hs_grammar *g);
int  hs_grammar_clone(const hs_grammar *g, hs_grammar **out, hs_err *err);
// ok[i] = whether tok[i] may come next.
int  hs_grammar_check(hs_grammar *g, const int32_t *tok, int32_t n, uint8_t *ok, hs_err *err);
// HS_FAILED when the token may not come next; the grammar is unchanged then.
int  hs_grammar_accept(hs_grammar *g, int32_t tok, hs_err *err);

#ifdef __cplusplus
}
#endif
#endif
