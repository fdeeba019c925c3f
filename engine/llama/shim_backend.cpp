// shim_backend.cpp: library start, plugins, devices and the log pipe.
#include "shim_internal.h"

#include <dlfcn.h>
#include <mutex>
#include <set>
#include <unistd.h>

namespace {

// The registry and the log callback of ggml are global to the process, so this
// state is too. It lives here and not in Go, where package state is banned.
std::atomic<int>      log_fd{-1};
std::atomic<int>      log_min{GGML_LOG_LEVEL_WARN};
std::atomic<uint64_t> log_dropped{0};

std::mutex            plugin_mu;
std::set<std::string> plugins;   // loaded paths
std::string           gpu_plugin; // the one GPU plugin, or ""

thread_local std::string error_text;
thread_local int         last_level = GGML_LOG_LEVEL_NONE;

constexpr size_t max_record = 1024; // text bytes; a record stays below PIPE_BUF, so its write is atomic
constexpr size_t max_error  = 900;

void log_callback(enum ggml_log_level level, const char *text, void *) {
    // A continuation belongs to the record before it on the same thread.
    int lv = level == GGML_LOG_LEVEL_CONT ? last_level : level;
    last_level = lv;
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '\n') n--;
    if (n == 0) return;
    if (lv == GGML_LOG_LEVEL_ERROR && error_text.size() + n < max_error) {
        try {
            if (!error_text.empty()) error_text += "; ";
            error_text.append(text, n);
        } catch (const std::bad_alloc &) {
            // The error's text is lost, its code is not.
        }
    }
    int fd = log_fd.load(std::memory_order_relaxed);
    if (fd < 0 || lv < log_min.load(std::memory_order_relaxed)) return;
    if (n > max_record) n = max_record;
    char rec[3 + max_record];
    rec[0] = (char) (n & 0xff);
    rec[1] = (char) (n >> 8);
    rec[2] = (char) lv;
    memcpy(rec + 3, text, n);
    // The pipe is non-blocking: a full one drops the record rather than stall a step.
    if (write(fd, rec, 3 + n) != (ssize_t) (3 + n)) log_dropped.fetch_add(1, std::memory_order_relaxed);
}

// Last words: ggml aborts right after this returns, so they go to stderr, where
// the supervisor keeps the tail, and not to the pipe, which dies with us.
void abort_callback(const char *msg) {
    static const char head[] = "ggml abort: ";
    ssize_t unused = write(STDERR_FILENO, head, sizeof head - 1);
    unused = write(STDERR_FILENO, msg, strlen(msg));
    unused = write(STDERR_FILENO, "\n", 1);
    // What ggml logged as an error just before says more ("invalid device function"), and the log pipe dies with us.
    if (!error_text.empty()) {
        unused = write(STDERR_FILENO, error_text.data(), error_text.size());
        unused = write(STDERR_FILENO, "\n", 1);
    }
    (void) unused;
}

} // namespace

void hs_errors_reset() { error_text.clear(); }
const std::string &hs_errors_text() { return error_text; }

int hs_fail(hs_err *err, int code, const std::string &msg) {
    if (!err) return code;
    const std::string &logged = error_text;
    std::string all = msg;
    if (!logged.empty() && logged != msg) all += all.empty() ? logged : ": " + logged;
    size_t n = all.size() < sizeof err->msg - 1 ? all.size() : sizeof err->msg - 1;
    memcpy(err->msg, all.data(), n);
    err->msg[n] = 0;
    return code;
}

int hs_init(int fd, int min_level, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        log_min.store(min_level);
        log_fd.store(fd);
        llama_log_set(log_callback, nullptr); // sets ggml's callback too
        ggml_set_abort_callback(abort_callback);
        static std::once_flag once;
        std::call_once(once, [] { llama_backend_init(); });
        return HS_OK;
    });
}

void     hs_log_detach(int fd) { log_fd.compare_exchange_strong(fd, -1); }
uint64_t hs_log_dropped(void) { return log_dropped.load(); }

const char *hs_llama_version(void) { return llama_version(); }
const char *hs_ggml_version(void) { return ggml_version(); }
size_t      hs_max_seqs(void) { return llama_max_parallel_sequences(); }

int hs_plugin_score(const char *path, int *score, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!h) return hs_fail(err, HS_FAILED, dlerror());
        auto fn = (int (*)()) dlsym(h, "ggml_backend_score");
        *score = fn ? fn() : 1;
        dlclose(h);
        return HS_OK;
    });
}

int hs_plugin_load(const char *path, bool is_gpu, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        std::lock_guard<std::mutex> lock(plugin_mu);
        if (plugins.count(path)) return HS_OK;
        if (is_gpu && !gpu_plugin.empty()) return hs_fail(err, HS_BUSY, "already loaded: " + gpu_plugin);
        // Opened once by hand, for the loader's own words when it does not work.
        void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!h) return hs_fail(err, HS_FAILED, dlerror());
        ggml_backend_reg_t reg = ggml_backend_load(path);
        dlclose(h);
        if (!reg) return hs_fail(err, HS_FAILED, "");
        plugins.insert(path);
        if (is_gpu) gpu_plugin = path;
        return HS_OK;
    });
}

int hs_device_count(void) { return (int) ggml_backend_dev_count(); }

int hs_device_get(int i, hs_device *out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        memset(out, 0, sizeof *out);
        if (i < 0 || (size_t) i >= ggml_backend_dev_count()) return hs_fail(err, HS_RANGE, "no such device");
        ggml_backend_dev_t     dev   = ggml_backend_dev_get(i);
        ggml_backend_dev_props props = {};
        ggml_backend_dev_get_props(dev, &props);
        const char *reg = ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev));
        snprintf(out->name, sizeof out->name, "%s", props.name ? props.name : "");
        snprintf(out->desc, sizeof out->desc, "%s", props.description ? props.description : "");
        snprintf(out->backend, sizeof out->backend, "%s", reg ? reg : "");
        snprintf(out->pci, sizeof out->pci, "%s", props.device_id ? props.device_id : "");
        out->type      = props.type;
        out->mem_free  = props.memory_free;
        out->mem_total = props.memory_total;
        return HS_OK;
    });
}
