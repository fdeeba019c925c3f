// shim.h: the C face of the C++ shim over libllama, for cgo.
//
// Contract of every function that can fail: no C++ exception leaves it; it
// returns HS_OK or an HS_* code and, where it takes an hs_err, leaves there one
// line of text (llama.cpp's own error log of this call, or the exception's
// what()). Nothing here keeps a pointer into memory of the caller.
#ifndef HEARTH_SHIM_H
#define HEARTH_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    HS_OK        = 0,
    HS_EXCEPTION = -100, // a C++ exception was caught; the object involved is suspect
    HS_NOMEM     = -101, // std::bad_alloc or malloc failure
    HS_FAILED    = -102, // llama.cpp said no (NULL or false)
    HS_CANCELLED = -103, // the progress callback asked to stop
    HS_RANGE     = -104, // an argument llama.cpp would abort on
    HS_POSITION  = -105, // batch positions do not continue their sequence
    HS_BUSY      = -106, // another GPU plugin is loaded already
};

typedef struct hs_err {
    int32_t index; // batch entry an HS_POSITION is about, else -1
    char    msg[1020];
} hs_err;

// ---- shim_backend.cpp: library, plugins, devices, log ----

typedef struct hs_device {
    char     name[64];
    char     desc[256];
    char     backend[32];
    char     pci[32]; // "" when unknown
    int32_t  type;    // ggml_backend_dev_type
    uint64_t mem_free, mem_total; // bytes
} hs_device;

// Starts the library once per process and sends its log to the pipe log_fd
// (records: uint16 length, uint8 level, text; one write each, dropped when the
// pipe is full). min_level is the lowest ggml_log_level to forward.
int hs_init(int log_fd, int min_level, hs_err *err);
// Stops writing to fd, if that is where the log goes.
void hs_log_detach(int fd);
// Records dropped because the pipe was full, since the start of the process.
uint64_t hs_log_dropped(void);
const char *hs_llama_version(void);
const char *hs_ggml_version(void);
// ggml_backend_score of a plugin file, 0 when it cannot run here; 1 when it has no score.
int hs_plugin_score(const char *path, int *score, hs_err *err);
// Loads and registers a plugin. Loading a path again is a no-op. is_gpu: at
// most one distinct path with is_gpu set is accepted per process (HS_BUSY).
int hs_plugin_load(const char *path, bool is_gpu, hs_err *err);
int hs_device_count(void);
int hs_device_get(int i, hs_device *out, hs_err *err);
size_t hs_max_seqs(void);

// ---- shim_model.cpp: model, vocabulary, adapters ----

typedef struct hs_model   hs_model;
typedef struct hs_adapter hs_adapter;

typedef struct hs_model_params {
    const char *const *devices; // names; n_devices 0 = CPU only
    int32_t n_devices;
    int32_t n_gpu_layers; // < 0: all
    int32_t load_mode;    // llama_load_mode
    bool vocab_only, check_tensors, no_repack;
    uintptr_t progress;   // handle for hearthProgress, 0 = none
} hs_model_params;

typedef struct hs_model_info {
    uint64_t size, n_params; // bytes, elements
    int32_t n_ctx_train, n_embd, n_embd_out, n_layer, n_head, n_head_kv, n_swa, n_vocab, n_cls_out;
    int32_t vocab_type, rope_type;
    bool recurrent, hybrid, has_encoder, has_decoder, diffusion, add_bos, add_eos, has_template;
    int32_t bos, eos, eot, sep, nl, pad, mask, fim_pre, fim_suf, fim_mid, fim_pad, fim_rep, fim_sep;
    char desc[128];
} hs_model_info;

int  hs_model_load(const char *path, const hs_model_params *p, hs_model **out, hs_err *err);
void hs_model_free(hs_model *m);
int  hs_model_get_info(const hs_model *m, hs_model_info *out, hs_err *err);
int  hs_meta_count(const hs_model *m);
// Copies key and value i as NUL-terminated text into a malloc'd block; free with hs_free.
int  hs_meta_get(const hs_model *m, int i, char **key, char **val, hs_err *err);
const char *hs_chat_template(const hs_model *m, const char *name); // NULL: none
void hs_free(void *p);

// Tokens written, or -(needed) when cap is too small; INT32_MIN+1 on exception or overflow.
int32_t hs_tokenize(const hs_model *m, const char *text, int32_t len, int32_t *out, int32_t cap,
                    bool add_special, bool parse_special, hs_err *err);
int32_t hs_detokenize(const hs_model *m, const int32_t *tok, int32_t n, char *out, int32_t cap,
                      bool remove_special, bool unparse_special, hs_err *err);
// Writes the pieces of all tokens back to back. off has n_vocab+1 entries.
// Returns bytes needed (call again with that capacity), or a negative HS code.
int64_t hs_pieces(const hs_model *m, bool special, char *out, int64_t cap, int64_t *off, hs_err *err);
// attr: llama_token_attr per token; eog: 1 where the token ends generation. n_vocab entries each.
int hs_token_table(const hs_model *m, int32_t *attr, uint8_t *eog, hs_err *err);

int  hs_adapter_load(hs_model *m, const char *path, hs_adapter **out, hs_err *err);
void hs_adapter_free(hs_adapter *a);

// ---- shim_context.cpp: context, memory, state, steps ----

typedef struct hs_ctx hs_ctx;

typedef struct hs_ctx_params {
    uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_outputs_max;
    int32_t n_threads, n_threads_batch;
    int32_t flash_attn, type_k, type_v, pooling, attention;
    float rope_freq_base, rope_freq_scale;
    bool embeddings, offload_kqv, op_offload, swa_full, kv_unified, no_perf;
} hs_ctx_params;

typedef struct hs_ctx_info {
    uint32_t n_ctx, n_ctx_seq, n_batch, n_ubatch, n_seq_max;
    int32_t pooling;
    bool has_memory, can_shift;
} hs_ctx_info;

// A batch in C memory; the caller fills the arrays through views.
typedef struct hs_batch {
    int32_t   n, cap, seq_cap;
    int32_t  *token, *pos, *n_seq;
    int32_t **seq; // seq[i] points into seq_data
    int32_t  *seq_data;
    int8_t   *output;
} hs_batch;

typedef struct hs_perf {
    double t_load_ms, t_prefill_ms, t_decode_ms;
    int32_t n_prefill, n_decode, n_reused, n_reallocs_same, n_reallocs_diff;
} hs_perf;

hs_batch *hs_batch_new(int32_t cap, int32_t seq_cap); // NULL: out of memory
void hs_batch_free(hs_batch *b);

int  hs_ctx_new(hs_model *m, const hs_ctx_params *p, hs_ctx **out, hs_err *err);
void hs_ctx_free(hs_ctx *c);
int  hs_ctx_get_info(hs_ctx *c, hs_ctx_info *out, hs_err *err);
// Raises or lowers the flag the CPU backend polls between graph nodes. Any thread.
void hs_ctx_abort(hs_ctx *c, bool on);
int  hs_ctx_set_threads(hs_ctx *c, int32_t n, int32_t n_batch, hs_err *err);
int  hs_ctx_perf(hs_ctx *c, bool reset, hs_perf *out, hs_err *err);
int  hs_ctx_set_adapters(hs_ctx *c, hs_adapter **a, const float *scales, int32_t n, hs_err *err);

// Queues one batch. Returns llama_decode's code (0, 1, 2, -1, -2, -3) or an HS code.
int  hs_decode(hs_ctx *c, const hs_batch *b, hs_err *err);
// Waits for the queued batch and gathers its row pointers: rows[k] is the logits
// row (or NULL) of the k-th entry with output set. Valid until the next decode.
int  hs_sync(hs_ctx *c, float *const **rows, int32_t *n_rows, hs_err *err);
// hs_decode and hs_sync in one crossing.
int  hs_step(hs_ctx *c, const hs_batch *b, float *const **rows, int32_t *n_rows, hs_err *err);
// NULL when there is none. n_embd_out floats (n_cls_out for rank pooling).
int  hs_embd_seq(hs_ctx *c, int32_t seq, const float **out, hs_err *err);
int  hs_embd_ith(hs_ctx *c, int32_t i, const float **out, hs_err *err);

int  hs_mem_clear(hs_ctx *c, bool data, hs_err *err);
int  hs_seq_rm(hs_ctx *c, int32_t seq, int32_t p0, int32_t p1, bool *removed, hs_err *err);
int  hs_seq_cp(hs_ctx *c, int32_t src, int32_t dst, int32_t p0, int32_t p1, hs_err *err);
int  hs_seq_keep(hs_ctx *c, int32_t seq, hs_err *err);
int  hs_seq_add(hs_ctx *c, int32_t seq, int32_t p0, int32_t p1, int32_t delta, hs_err *err);
int32_t hs_pos_min(hs_ctx *c, int32_t seq); // -1: empty
int32_t hs_pos_max(hs_ctx *c, int32_t seq);

int  hs_state_size(hs_ctx *c, int32_t seq, uint32_t flags, size_t *out, hs_err *err);
int  hs_state_get(hs_ctx *c, int32_t seq, uint32_t flags, uint8_t *dst, size_t cap, size_t *out, hs_err *err);
int  hs_state_set(hs_ctx *c, int32_t seq, uint32_t flags, const uint8_t *src, size_t len, size_t *out, hs_err *err);

#ifdef __cplusplus
}
#endif
#endif
