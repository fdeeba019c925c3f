// shim_ggml.h: owners of ggml's objects, for the files that multiply by themselves.
#ifndef HEARTH_SHIM_GGML_H
#define HEARTH_SHIM_GGML_H

#include "ggml-backend.h"
#include "ggml.h"

#include <memory>

struct free_backend { void operator()(ggml_backend_t b) const { ggml_backend_free(b); } };
struct free_ctx { void operator()(ggml_context *c) const { ggml_free(c); } };
struct free_buffer { void operator()(ggml_backend_buffer_t b) const { ggml_backend_buffer_free(b); } };
using backend_ptr = std::unique_ptr<ggml_backend, free_backend>;
using ctx_ptr = std::unique_ptr<ggml_context, free_ctx>;
using buffer_ptr = std::unique_ptr<ggml_backend_buffer, free_buffer>;

// A context for the tensors of one product, without their data; null when there is no memory.
inline ctx_ptr small_context() { return ctx_ptr(ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true})); }

#endif
