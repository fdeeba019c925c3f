// shim_model.cpp: model files, metadata, vocabulary and LoRA adapters.
#include "shim_internal.h"

#include <climits>
#include <cstdlib>
#include <vector>

// Go, in progress.go: returns false to stop the load.
extern "C" bool hearthProgress(uintptr_t handle, float fraction);

namespace {

struct progress_state {
    uintptr_t handle;
    bool      stopped;
};

bool on_progress(float fraction, void *data) {
    auto *st = (progress_state *) data;
    if (hearthProgress(st->handle, fraction)) return true;
    st->stopped = true;
    return false;
}

} // namespace

int hs_model_load(const char *path, const hs_model_params *p, hs_model **out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        std::vector<ggml_backend_dev_t> devs;
        for (int32_t i = 0; i < p->n_devices; i++) {
            ggml_backend_dev_t d = ggml_backend_dev_by_name(p->devices[i]);
            if (!d) return hs_fail(err, HS_RANGE, std::string("no device named ") + p->devices[i]);
            devs.push_back(d);
        }
        devs.push_back(nullptr);
        progress_state     st = {p->progress, false};
        llama_model_params mp = llama_model_default_params();
        mp.devices         = devs.data();
        mp.n_gpu_layers    = p->n_devices ? p->n_gpu_layers : 0;
        mp.split_mode      = LLAMA_SPLIT_MODE_NONE;
        mp.main_gpu        = p->n_devices ? 0 : -1;
        mp.load_mode       = (enum llama_load_mode) p->load_mode;
        mp.vocab_only      = p->vocab_only;
        mp.check_tensors   = p->check_tensors;
        mp.use_extra_bufts = !p->no_repack;
        if (p->progress) {
            mp.progress_callback           = on_progress;
            mp.progress_callback_user_data = &st;
        }
        llama_model *m = llama_model_load_from_file(path, mp);
        if (!m) return hs_fail(err, st.stopped ? HS_CANCELLED : HS_FAILED, "");
        auto *h = new (std::nothrow) hs_model{m, llama_model_get_vocab(m), p->vocab_only};
        if (!h) {
            llama_model_free(m);
            throw std::bad_alloc();
        }
        *out = h;
        return HS_OK;
    });
}

void hs_model_free(hs_model *m) {
    hs_guard(nullptr, [&]() -> int {
        if (m) llama_model_free(m->model);
        delete m;
        return HS_OK;
    });
}

int hs_model_get_info(const hs_model *h, hs_model_info *o, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        const llama_model *m = h->model;
        const llama_vocab *v = h->vocab;
        memset(o, 0, sizeof *o);
        o->size        = llama_model_size(m);
        o->n_params    = llama_model_n_params(m);
        o->n_ctx_train = llama_model_n_ctx_train(m);
        o->n_embd      = llama_model_n_embd(m);
        o->n_layer     = llama_model_n_layer(m);
        if (!h->vocab_only) { // these abort where no layers are known
            o->n_embd_out = llama_model_n_embd_out(m);
            o->n_head     = llama_model_n_head(m);
            o->n_head_kv  = llama_model_n_head_kv(m);
            o->n_swa      = llama_model_n_swa(m);
        }
        o->n_vocab     = llama_vocab_n_tokens(v);
        o->n_cls_out   = (int32_t) llama_model_n_cls_out(m);
        o->vocab_type  = llama_vocab_type(v);
        o->rope_type   = llama_model_rope_type(m);
        o->recurrent   = llama_model_is_recurrent(m);
        o->hybrid      = llama_model_is_hybrid(m);
        o->has_encoder = llama_model_has_encoder(m);
        o->has_decoder = llama_model_has_decoder(m);
        o->diffusion   = llama_model_is_diffusion(m);
        o->add_bos     = llama_vocab_get_add_bos(v);
        o->add_eos     = llama_vocab_get_add_eos(v);
        o->bos         = llama_vocab_bos(v);
        o->eos         = llama_vocab_eos(v);
        o->eot         = llama_vocab_eot(v);
        o->sep         = llama_vocab_sep(v);
        o->nl          = llama_vocab_nl(v);
        o->pad         = llama_vocab_pad(v);
        o->mask        = llama_vocab_mask(v);
        o->fim_pre     = llama_vocab_fim_pre(v);
        o->fim_suf     = llama_vocab_fim_suf(v);
        o->fim_mid     = llama_vocab_fim_mid(v);
        o->fim_pad     = llama_vocab_fim_pad(v);
        o->fim_rep     = llama_vocab_fim_rep(v);
        o->fim_sep     = llama_vocab_fim_sep(v);
        llama_model_desc(m, o->desc, sizeof o->desc);
        return HS_OK;
    });
}

int hs_meta_count(const hs_model *m) { return llama_model_meta_count(m->model); }

int hs_meta_get(const hs_model *m, int i, char **key, char **val, hs_err *err) {
    *key = *val = nullptr;
    return hs_guard(err, [&]() -> int {
        int32_t nk = llama_model_meta_key_by_index(m->model, i, nullptr, 0);
        int32_t nv = llama_model_meta_val_str_by_index(m->model, i, nullptr, 0);
        if (nk < 0 || nv < 0) return hs_fail(err, HS_RANGE, "no such key");
        *key = (char *) malloc((size_t) nk + 1);
        *val = (char *) malloc((size_t) nv + 1);
        if (!*key || !*val) {
            free(*key);
            free(*val);
            *key = *val = nullptr;
            throw std::bad_alloc();
        }
        llama_model_meta_key_by_index(m->model, i, *key, (size_t) nk + 1);
        llama_model_meta_val_str_by_index(m->model, i, *val, (size_t) nv + 1);
        return HS_OK;
    });
}

const char *hs_chat_template(const hs_model *m, const char *name) {
    try {
        return llama_model_chat_template(m->model, name);
    } catch (...) {
        return nullptr;
    }
}

void hs_free(void *p) { free(p); }

int32_t hs_tokenize(const hs_model *m, const char *text, int32_t len, int32_t *out, int32_t cap,
                    bool add_special, bool parse_special, hs_err *err) {
    int32_t n  = 0;
    int     rc = hs_guard(err, [&]() -> int {
        n = llama_tokenize(m->vocab, text, len, out, cap, add_special, parse_special);
        return n == INT32_MIN ? hs_fail(err, HS_FAILED, "more tokens than an int32 counts") : HS_OK;
    });
    return rc == HS_OK ? n : INT32_MIN + 1;
}

int32_t hs_detokenize(const hs_model *m, const int32_t *tok, int32_t n_tok, char *out, int32_t cap,
                      bool remove_special, bool unparse_special, hs_err *err) {
    int32_t n  = 0;
    int     rc = hs_guard(err, [&]() -> int {
        n = llama_detokenize(m->vocab, tok, n_tok, out, cap, remove_special, unparse_special);
        return n == INT32_MIN ? hs_fail(err, HS_FAILED, "more text than an int32 counts") : HS_OK;
    });
    return rc == HS_OK ? n : INT32_MIN + 1;
}

int64_t hs_pieces(const hs_model *m, bool special, char *out, int64_t cap, int64_t *off, hs_err *err) {
    int64_t at = 0;
    int     rc = hs_guard(err, [&]() -> int {
        std::vector<char> buf(256);
        int32_t           n_vocab = llama_vocab_n_tokens(m->vocab);
        for (int32_t t = 0; t < n_vocab; t++) {
            off[t]    = at;
            int32_t n = llama_token_to_piece(m->vocab, t, buf.data(), (int32_t) buf.size(), 0, special);
            if (n < 0) {
                buf.resize((size_t) -n);
                n = llama_token_to_piece(m->vocab, t, buf.data(), (int32_t) buf.size(), 0, special);
            }
            if (n < 0) return hs_fail(err, HS_FAILED, "piece of token " + std::to_string(t));
            if (at + n <= cap) memcpy(out + at, buf.data(), (size_t) n);
            at += n;
        }
        off[n_vocab] = at;
        return HS_OK;
    });
    return rc == HS_OK ? at : rc;
}

int hs_token_table(const hs_model *m, int32_t *attr, uint8_t *eog, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        int32_t n = llama_vocab_n_tokens(m->vocab);
        for (int32_t t = 0; t < n; t++) {
            attr[t] = (int32_t) llama_vocab_get_attr(m->vocab, t);
            eog[t]  = llama_vocab_is_eog(m->vocab, t);
        }
        return HS_OK;
    });
}

int hs_adapter_load(hs_model *m, const char *path, hs_adapter **out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        llama_adapter_lora *a = llama_adapter_lora_init(m->model, path);
        if (!a) return hs_fail(err, HS_FAILED, "");
        auto *h = new (std::nothrow) hs_adapter{a};
        if (!h) {
            llama_adapter_lora_free(a);
            throw std::bad_alloc();
        }
        *out = h;
        return HS_OK;
    });
}

void hs_adapter_free(hs_adapter *a) {
    hs_guard(nullptr, [&]() -> int {
        if (a) llama_adapter_lora_free(a->adapter);
        delete a;
        return HS_OK;
    });
}
