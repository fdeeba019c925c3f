// shim_internal.h: what the C++ files of the shim share.
#ifndef HEARTH_SHIM_INTERNAL_H
#define HEARTH_SHIM_INTERNAL_H

#include "shim.h"

#include "llama.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

struct hs_model {
    llama_model       *model;
    const llama_vocab *vocab;
    bool               vocab_only;
};

struct hs_adapter {
    llama_adapter_lora *adapter;
};

// Text of the errors llama.cpp logs on this thread since the last hs_errors_reset.
void hs_errors_reset();
const std::string &hs_errors_text();

// Formats msg into err and returns code; err may be NULL.
int hs_fail(hs_err *err, int code, const std::string &msg);

// Runs body, which returns a code, and turns exceptions into codes with text.
template <typename F> int hs_guard(hs_err *err, F body) {
    if (err) {
        err->index  = -1;
        err->msg[0] = 0;
    }
    hs_errors_reset();
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return hs_fail(err, HS_NOMEM, "out of memory");
    } catch (const std::exception &e) {
        return hs_fail(err, HS_EXCEPTION, e.what());
    } catch (...) {
        return hs_fail(err, HS_EXCEPTION, "unknown exception");
    }
}

#endif
