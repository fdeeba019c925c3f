// shim_sample.cpp: llama.cpp's own samplers, for what the fused kernel does not do, and grammars.
#include "sampler_internal.h"
#include "shim_internal.h"

#include <algorithm>

#include <cmath>
#include <limits>
#include <memory>

struct hs_chain {
    struct step {
        llama_sampler *smpl;
        bool           xtc; // rebuilt per token, so that its draw can be replayed
    };
    std::vector<step> steps;
    hs_chain_params   p{};
    bool              selects = false; // mirostat picks the token itself

    ~hs_chain() {
        for (auto &s : steps)
            if (s.smpl) llama_sampler_free(s.smpl);
    }
    void add(llama_sampler *s) {
        if (!s) throw std::bad_alloc();
        steps.push_back({s, false});
    }
};

struct hs_grammar {
    llama_sampler *smpl;
};

int hs_chain_new(const hs_model *m, const hs_chain_params *p, hs_chain **out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        auto c = std::unique_ptr<hs_chain>(new hs_chain);
        c->p   = *p;
        c->p.dry_breakers = nullptr; // the caller's memory, used only below
        if (p->dry_multiplier != 0) {
            std::vector<const char *> breakers(p->dry_breakers, p->dry_breakers + p->n_dry_breakers);
            c->add(llama_sampler_init_dry(m->vocab, p->dry_multiplier, p->dry_base, p->dry_allowed_length, p->dry_last_n,
                                          breakers.data(), breakers.size()));
        }
        if (p->mirostat == 0) {
            if (p->top_n_sigma > 0) c->add(llama_sampler_init_top_n_sigma(p->top_n_sigma));
            if (p->top_k > 0) c->add(llama_sampler_init_top_k(p->top_k));
            if (p->typical_p < 1) c->add(llama_sampler_init_typical(p->typical_p, p->min_keep));
            if (p->top_p < 1) c->add(llama_sampler_init_top_p(p->top_p, p->min_keep));
            if (p->min_p > 0) c->add(llama_sampler_init_min_p(p->min_p, p->min_keep));
            if (p->xtc_probability > 0) c->steps.push_back({nullptr, true});
            c->add(llama_sampler_init_temp_ext(p->temp, p->dyna_range, p->dyna_exponent));
        } else {
            c->selects = true;
            c->add(llama_sampler_init_temp(p->temp));
            uint32_t seed = (uint32_t) hs::draw_bits(p->seed, 0) & 0x7fffffff; // never LLAMA_DEFAULT_SEED
            if (p->mirostat == 1)
                c->add(llama_sampler_init_mirostat(llama_vocab_n_tokens(m->vocab), seed, p->mirostat_tau, p->mirostat_eta,
                                                   p->mirostat_m));
            else c->add(llama_sampler_init_mirostat_v2(seed, p->mirostat_tau, p->mirostat_eta));
        }
        *out = c.release();
        return HS_OK;
    });
}

void hs_chain_free(hs_chain *c) {
    hs_guard(nullptr, [&]() -> int {
        delete c;
        return HS_OK;
    });
}

int hs_chain_accept(hs_chain *c, int32_t tok, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        for (auto &s : c->steps)
            if (s.smpl) llama_sampler_accept(s.smpl, tok);
        return HS_OK;
    });
}

int hs_chain_reset(hs_chain *c, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        for (auto &s : c->steps)
            if (s.smpl) llama_sampler_reset(s.smpl);
        return HS_OK;
    });
}

namespace {

constexpr float ninf = -std::numeric_limits<float>::infinity();

// Runs the chain over the whole row; the candidates stay in s.chain.
llama_token_data_array run(hs::scratch &s, hs_row *r, const float *x, uint64_t row_seed) {
    hs_chain &c = *r->chain;
    s.chain.resize((size_t) s.n * sizeof(llama_token_data));
    auto *d = (llama_token_data *) s.chain.data();
    size_t n = 0;
    for (int i = 0; i < s.n; i++)
        if (x[i] > ninf) d[n++] = {i, x[i], 0}; // drops NaN as well
    llama_token_data_array a = {d, n, -1, false};
    if (n == 0) return a;
    for (auto &st : c.steps) {
        if (!st.xtc) {
            llama_sampler_apply(st.smpl, &a);
            continue;
        }
        // Its own stream of draws, apart from the final one's.
        uint32_t seed = (uint32_t) hs::draw_bits(~row_seed, r->draw) & 0x7fffffff;
        std::unique_ptr<llama_sampler, void (*)(llama_sampler *)> xtc(
            llama_sampler_init_xtc(c.p.xtc_probability, c.p.xtc_threshold, c.p.min_keep, seed), llama_sampler_free);
        if (!xtc) throw std::bad_alloc();
        llama_sampler_apply(xtc.get(), &a);
    }
    return a;
}

// The finite ones of a into s.cands.
int keep(hs::scratch &s, const llama_token_data_array &a) {
    s.cands.clear();
    for (size_t i = 0; i < a.size; i++)
        if (a.data[i].logit > ninf) s.cands.push_back({a.data[i].id, a.data[i].logit});
    return s.cands.empty() ? HS_FAILED : HS_OK;
}

} // namespace

int hs::chain_filter(scratch &s, hs_row *r, const float *x, uint64_t row_seed) {
    return hs_guard(nullptr, [&]() -> int {
        if (r->chain->selects) return HS_RANGE;
        return keep(s, run(s, r, x, row_seed));
    });
}

int hs::chain_sample(scratch &s, hs_row *r, const float *x, uint64_t row_seed) {
    return hs_guard(nullptr, [&]() -> int {
        llama_token_data_array a = run(s, r, x, row_seed);
        if (a.size == 0) return HS_FAILED;
        if (r->chain->selects) {
            if (a.selected < 0 || (size_t) a.selected >= a.size) return HS_FAILED;
            r->token = a.data[a.selected].id;
            return HS_OK;
        }
        if (keep(s, a) != HS_OK) return HS_FAILED;
        float m = ninf;
        for (const cand &c : s.cands) m = std::max(m, c.logit);
        double total = 0, cum = 0;
        for (const cand &c : s.cands) total += std::exp((double) c.logit - m);
        double left = draw_unit(row_seed, r->draw) * total;
        for (const cand &c : s.cands) {
            double e = std::exp((double) c.logit - m);
            if (e <= 0) continue;
            r->token = c.tok;
            cum += e;
            if (cum > left) break;
        }
        return HS_OK;
    });
}

int32_t hs_reference(int32_t n_vocab, const float *logits, const hs_row *r, const int32_t *history, int32_t n_history,
                     int32_t last_n, int32_t cap, int32_t *tok, float *prob, hs_err *err) {
    int32_t n  = 0;
    int     rc = hs_guard(err, [&]() -> int {
        std::vector<llama_logit_bias> bias;
        for (int32_t i = 0; i < r->n_bias; i++) bias.push_back({r->bias_tok[i], r->bias_val[i]});
        std::unique_ptr<llama_sampler, void (*)(llama_sampler *)> chain(
            llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free);
        llama_sampler *pen = llama_sampler_init_penalties(n_vocab, last_n, r->rep, r->freq, r->pres);
        for (llama_sampler *s : {llama_sampler_init_logit_bias(n_vocab, (int32_t) bias.size(), bias.data()), pen,
                                 llama_sampler_init_top_k(r->top_k), llama_sampler_init_top_p(r->top_p, 1),
                                 llama_sampler_init_min_p(r->min_p, 1), llama_sampler_init_temp(r->temp),
                                 llama_sampler_init_dist(1)}) {
            if (!s) throw std::bad_alloc();
            llama_sampler_chain_add(chain.get(), s);
        }
        for (int32_t i = 0; i < n_history; i++) llama_sampler_accept(chain.get(), history[i]);
        std::vector<llama_token_data> d((size_t) n_vocab);
        for (int32_t i = 0; i < n_vocab; i++) d[i] = {i, logits[i], 0};
        llama_token_data_array a = {d.data(), d.size(), -1, false};
        llama_sampler_apply(chain.get(), &a);
        std::sort(a.data, a.data + a.size, [](const llama_token_data &x, const llama_token_data &y) {
            return x.p > y.p || (x.p == y.p && x.id < y.id);
        });
        n = (int32_t) std::min((size_t) cap, a.size);
        for (int32_t i = 0; i < n; i++) {
            tok[i]  = a.data[i].id;
            prob[i] = a.data[i].p;
        }
        return HS_OK;
    });
    return rc == HS_OK ? n : rc;
}

int hs_grammar_new(const hs_model *m, const char *gbnf, const char *root, const char *const *patterns, int32_t n_patterns,
                   const int32_t *tokens, int32_t n_tokens, bool lazy, hs_grammar **out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        std::vector<const char *> pats(patterns, patterns + n_patterns);
        llama_sampler *s = lazy ? llama_sampler_init_grammar_lazy_patterns(m->vocab, gbnf, root, pats.data(), pats.size(), tokens,
                                                                           (size_t) n_tokens)
                                : llama_sampler_init_grammar(m->vocab, gbnf, root);
        if (!s) return hs_fail(err, HS_FAILED, "");
        auto *g = new (std::nothrow) hs_grammar{s};
        if (!g) {
            llama_sampler_free(s);
            throw std::bad_alloc();
        }
        *out = g;
        return HS_OK;
    });
}

void hs_grammar_free(hs_grammar *g) {
    hs_guard(nullptr, [&]() -> int {
        if (g) llama_sampler_free(g->smpl);
        delete g;
        return HS_OK;
    });
}

int hs_grammar_clone(const hs_grammar *g, hs_grammar **out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        llama_sampler *s = llama_sampler_clone(g->smpl);
        if (!s) return hs_fail(err, HS_FAILED, "");
        auto *c = new (std::nothrow) hs_grammar{s};
        if (!c) {
            llama_sampler_free(s);
            throw std::bad_alloc();
        }
        *out = c;
        return HS_OK;
    });
}

namespace {

int check(hs_grammar *g, const int32_t *tok, int32_t n, uint8_t *ok) {
    std::vector<llama_token_data> d((size_t) n);
    for (int32_t i = 0; i < n; i++) d[i] = {tok[i], 0, 0};
    llama_token_data_array a = {d.data(), d.size(), -1, false};
    llama_sampler_apply(g->smpl, &a);
    // A grammar lowers what it rejects to -inf and leaves the order alone.
    for (int32_t i = 0; i < n; i++) ok[i] = a.data[i].logit > -std::numeric_limits<float>::infinity();
    return HS_OK;
}

} // namespace

int hs_grammar_check(hs_grammar *g, const int32_t *tok, int32_t n, uint8_t *ok, hs_err *err) {
    return hs_guard(err, [&]() -> int { return check(g, tok, n, ok); });
}

int hs_grammar_accept(hs_grammar *g, int32_t tok, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        uint8_t ok = 0;
        check(g, &tok, 1, &ok);
        if (!ok) return hs_fail(err, HS_FAILED, "");
        llama_sampler_accept(g->smpl, tok);
        return HS_OK;
    });
}
