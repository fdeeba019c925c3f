// shim_context.cpp: contexts, KV memory, sequence state, and the step.
#include "shim_internal.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

struct hs_ctx {
    llama_context       *ctx = nullptr;
    llama_memory_t       mem = nullptr; // NULL for encoder-only models
    std::atomic<bool>    abort{false};
    bool                 mrope  = false;
    bool                 logits = true; // false: encoder or pooled embeddings, which make none
    std::vector<float *> rows;
    std::vector<int32_t> out_index; // batch indices with output set, of the queued batch
    std::vector<int32_t> next;      // scratch: next position per sequence, -2 = not asked yet
};

namespace {

bool should_abort(void *data) { return ((std::atomic<bool> *) data)->load(std::memory_order_relaxed); }

// llama_decode answers a batch that does not continue its sequences with -1 and
// a log line; this finds the entry first. M-RoPE positions only have to grow,
// which llama_decode checks itself.
int check_positions(hs_ctx *c, const hs_batch *b, hs_err *err) {
    if (!c->mem || c->mrope) return HS_OK;
    std::fill(c->next.begin(), c->next.end(), -2);
    for (int32_t i = 0; i < b->n; i++) {
        for (int32_t k = 0; k < b->n_seq[i]; k++) {
            int32_t s = b->seq[i][k];
            if (c->next[s] == -2) {
                int32_t last = llama_memory_seq_pos_max(c->mem, s);
                c->next[s] = last < 0 ? -1 : last + 1; // an empty sequence may start anywhere
            }
            if (c->next[s] >= 0 && b->pos[i] != c->next[s]) {
                int rc = hs_fail(err, HS_POSITION,
                                 "sequence " + std::to_string(s) + " continues at " + std::to_string(c->next[s]) +
                                     ", not " + std::to_string(b->pos[i]));
                if (err) err->index = i;
                return rc;
            }
            c->next[s] = b->pos[i] + 1;
        }
    }
    return HS_OK;
}

int decode(hs_ctx *c, const hs_batch *b, hs_err *err) {
    int rc = check_positions(c, b, err);
    if (rc != HS_OK) return rc;
    llama_batch lb = {};
    lb.n_tokens = b->n;
    lb.token    = b->token;
    lb.pos      = b->pos;
    lb.n_seq_id = b->n_seq;
    lb.seq_id   = b->seq;
    lb.logits   = b->output;
    c->out_index.clear();
    rc = c->mem ? llama_decode(c->ctx, lb) : llama_encode(c->ctx, lb);
    if (rc != 0) return hs_fail(err, rc, "");
    for (int32_t i = 0; i < b->n; i++)
        if (b->output[i]) c->out_index.push_back(i);
    return HS_OK;
}

int sync_rows(hs_ctx *c, float *const **rows, int32_t *n_rows) {
    llama_synchronize(c->ctx);
    c->rows.clear();
    // Asking where there are none logs an error per row.
    for (int32_t i : c->out_index) c->rows.push_back(c->logits ? llama_get_logits_ith(c->ctx, i) : nullptr);
    *rows   = c->rows.data();
    *n_rows = (int32_t) c->rows.size();
    return HS_OK;
}

} // namespace

hs_batch *hs_batch_new(int32_t cap, int32_t seq_cap) {
    auto *b = (hs_batch *) calloc(1, sizeof(hs_batch));
    if (!b) return nullptr;
    size_t n = (size_t) cap;
    b->cap      = cap;
    b->seq_cap  = seq_cap;
    b->token    = (int32_t *) calloc(n, sizeof(int32_t));
    b->pos      = (int32_t *) calloc(n, sizeof(int32_t));
    b->n_seq    = (int32_t *) calloc(n, sizeof(int32_t));
    b->seq      = (int32_t **) calloc(n, sizeof(int32_t *));
    b->seq_data = (int32_t *) calloc(n * (size_t) seq_cap, sizeof(int32_t));
    b->output   = (int8_t *) calloc(n, 1);
    if (!b->token || !b->pos || !b->n_seq || !b->seq || !b->seq_data || !b->output) {
        hs_batch_free(b);
        return nullptr;
    }
    for (size_t i = 0; i < n; i++) b->seq[i] = b->seq_data + i * (size_t) seq_cap;
    return b;
}

void hs_batch_free(hs_batch *b) {
    if (!b) return;
    free(b->token);
    free(b->pos);
    free(b->n_seq);
    free(b->seq);
    free(b->seq_data);
    free(b->output);
    free(b);
}

int hs_ctx_new(hs_model *m, const hs_ctx_params *p, hs_ctx **out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        auto c = new hs_ctx;
        llama_context_params cp = llama_context_default_params();
        cp.n_ctx                 = p->n_ctx;
        cp.n_batch               = p->n_batch;
        cp.n_ubatch              = p->n_ubatch;
        cp.n_seq_max             = p->n_seq_max;
        cp.n_outputs_max         = p->n_outputs_max;
        cp.n_outputs_max_per_seq = 0;
        cp.n_threads             = p->n_threads;
        cp.n_threads_batch       = p->n_threads_batch;
        cp.pooling_type          = (enum llama_pooling_type) p->pooling;
        cp.attention_type        = (enum llama_attention_type) p->attention;
        cp.flash_attn_type       = (enum llama_flash_attn_type) p->flash_attn;
        cp.type_k                = (enum ggml_type) p->type_k;
        cp.type_v                = (enum ggml_type) p->type_v;
        cp.rope_freq_base        = p->rope_freq_base;
        cp.rope_freq_scale       = p->rope_freq_scale;
        cp.abort_callback        = should_abort;
        cp.abort_callback_data   = &c->abort;
        cp.embeddings            = p->embeddings;
        cp.offload_kqv           = p->offload_kqv;
        cp.op_offload            = p->op_offload;
        cp.swa_full              = p->swa_full;
        cp.kv_unified            = p->kv_unified;
        cp.no_perf               = p->no_perf;
        try {
            c->ctx = llama_init_from_model(m->model, cp);
            if (!c->ctx) {
                delete c;
                return hs_fail(err, HS_FAILED, "");
            }
            c->mem = llama_get_memory(c->ctx);
            enum llama_rope_type rope = llama_model_rope_type(m->model);
            c->mrope = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE;
            bool pooled = p->embeddings && llama_pooling_type(c->ctx) != LLAMA_POOLING_TYPE_NONE;
            c->logits   = c->mem && !pooled;
            uint32_t n  = llama_n_batch(c->ctx);
            c->rows.reserve(n);
            c->out_index.reserve(n);
            c->next.resize(llama_max_parallel_sequences());
        } catch (...) {
            if (c->ctx) llama_free(c->ctx);
            delete c;
            throw;
        }
        *out = c;
        return HS_OK;
    });
}

void hs_ctx_free(hs_ctx *c) {
    hs_guard(nullptr, [&]() -> int {
        if (c) llama_free(c->ctx);
        return HS_OK;
    });
    delete c;
}

int hs_ctx_get_info(hs_ctx *c, hs_ctx_info *o, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        o->n_ctx      = llama_n_ctx(c->ctx);
        o->n_ctx_seq  = llama_n_ctx_seq(c->ctx);
        o->n_batch    = llama_n_batch(c->ctx);
        o->n_ubatch   = llama_n_ubatch(c->ctx);
        o->n_seq_max  = llama_n_seq_max(c->ctx);
        o->pooling    = llama_pooling_type(c->ctx);
        o->has_memory = c->mem != nullptr;
        o->can_shift  = c->mem && llama_memory_can_shift(c->mem);
        return HS_OK;
    });
}

void hs_ctx_abort(hs_ctx *c, bool on) { c->abort.store(on); }

int hs_ctx_set_threads(hs_ctx *c, int32_t n, int32_t n_batch, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        llama_set_n_threads(c->ctx, n, n_batch);
        return HS_OK;
    });
}

int hs_ctx_perf(hs_ctx *c, bool reset, hs_perf *o, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        llama_perf_context_data d = llama_perf_context(c->ctx);
        o->t_load_ms       = d.t_load_ms;
        o->t_prefill_ms    = d.t_p_eval_ms;
        o->t_decode_ms     = d.t_eval_ms;
        o->n_prefill       = d.n_p_eval;
        o->n_decode        = d.n_eval;
        o->n_reused        = d.n_reused;
        o->n_reallocs_same = d.n_reallocs_same;
        o->n_reallocs_diff = d.n_reallocs_diff;
        if (reset) llama_perf_context_reset(c->ctx);
        return HS_OK;
    });
}

int hs_ctx_set_adapters(hs_ctx *c, hs_adapter **a, const float *scales, int32_t n, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        std::vector<llama_adapter_lora *> ad;
        std::vector<float>                sc(scales, scales + n);
        for (int32_t i = 0; i < n; i++) ad.push_back(a[i]->adapter);
        if (llama_set_adapters_lora(c->ctx, ad.data(), ad.size(), sc.data()) != 0) return hs_fail(err, HS_FAILED, "");
        return HS_OK;
    });
}

int hs_decode(hs_ctx *c, const hs_batch *b, hs_err *err) {
    return hs_guard(err, [&]() -> int { return decode(c, b, err); });
}

int hs_sync(hs_ctx *c, float *const **rows, int32_t *n_rows, hs_err *err) {
    *n_rows = 0;
    return hs_guard(err, [&]() -> int { return sync_rows(c, rows, n_rows); });
}

int hs_step(hs_ctx *c, const hs_batch *b, float *const **rows, int32_t *n_rows, hs_err *err) {
    *n_rows = 0;
    return hs_guard(err, [&]() -> int {
        int rc = decode(c, b, err);
        return rc == HS_OK ? sync_rows(c, rows, n_rows) : rc;
    });
}

int hs_embd_seq(hs_ctx *c, int32_t seq, const float **out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        *out = llama_get_embeddings_seq(c->ctx, seq);
        return HS_OK;
    });
}

int hs_embd_ith(hs_ctx *c, int32_t i, const float **out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        *out = llama_get_embeddings_ith(c->ctx, i);
        return HS_OK;
    });
}

int hs_mem_clear(hs_ctx *c, bool data, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        llama_memory_clear(c->mem, data);
        return HS_OK;
    });
}

int hs_seq_rm(hs_ctx *c, int32_t seq, int32_t p0, int32_t p1, bool *removed, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        *removed = llama_memory_seq_rm(c->mem, seq, p0, p1);
        return HS_OK;
    });
}

int hs_seq_cp(hs_ctx *c, int32_t src, int32_t dst, int32_t p0, int32_t p1, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        llama_memory_seq_cp(c->mem, src, dst, p0, p1);
        return HS_OK;
    });
}

int hs_seq_keep(hs_ctx *c, int32_t seq, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        llama_memory_seq_keep(c->mem, seq);
        return HS_OK;
    });
}

int hs_seq_add(hs_ctx *c, int32_t seq, int32_t p0, int32_t p1, int32_t delta, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        llama_memory_seq_add(c->mem, seq, p0, p1, delta);
        return HS_OK;
    });
}

int32_t hs_pos_min(hs_ctx *c, int32_t seq) { return llama_memory_seq_pos_min(c->mem, seq); }
int32_t hs_pos_max(hs_ctx *c, int32_t seq) { return llama_memory_seq_pos_max(c->mem, seq); }

int hs_state_size(hs_ctx *c, int32_t seq, uint32_t flags, size_t *out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        *out = llama_state_seq_get_size_ext(c->ctx, seq, flags);
        return HS_OK;
    });
}

int hs_state_get(hs_ctx *c, int32_t seq, uint32_t flags, uint8_t *dst, size_t cap, size_t *out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        *out = llama_state_seq_get_data_ext(c->ctx, dst, cap, seq, flags);
        return *out ? HS_OK : hs_fail(err, HS_FAILED, "");
    });
}

int hs_state_set(hs_ctx *c, int32_t seq, uint32_t flags, const uint8_t *src, size_t len, size_t *out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        *out = llama_state_seq_set_data_ext(c->ctx, src, len, seq, flags);
        return *out ? HS_OK : hs_fail(err, HS_FAILED, "");
    });
}
