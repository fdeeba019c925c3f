// shim_blas.cpp: the CPU plugin's matrix products beside those of ggml's BLAS plugin, for the weights of one model.
//
// The BLAS plugin turns weights into floats and calls sgemm, which pays for prompts. How much depends on the type, on the
// CPU and above all on the BLAS library that the loader finds: OpenBLAS with threads of its own is 15 times slower
// beside OpenMP than without. So it is measured.
#include "shim_blas.h"
#include "shim_ggml.h"
#include "shim_internal.h"

#include "gguf.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <dlfcn.h>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace {

constexpr int64_t rows = 256;          // of activations: a common length of a prompt, or of its last chunk
constexpr int64_t least = 32;          // ggml-blas takes no smaller dimension
constexpr int64_t most_outputs = 1024; // rows of weights; more do not change the speed of either side
constexpr int64_t most_weights = 2 << 20;
constexpr double  limit_ms = 800;      // no further shape is begun
constexpr double  shape_ms = 100;      // no further run of one shape is begun, after the second
constexpr int     most_runs = 10;
constexpr double  clearly = 0.7;       // BLAS that takes at most this part of the CPU's time needs no further run

struct free_gguf { void operator()(gguf_context *g) const { gguf_free(g); } };

struct shape {
    ggml_type type;
    int64_t   k, n; // columns and rows of the weights
    double    count;
    double    weights() const { return (double) k * n * count; }
};

using shapes_map = std::map<std::tuple<int, int64_t, int64_t>, double>;

// Counts the 2-D weights of one file's blocks; experts (3-D) are multiplied by another operation. Returns the number
// of files the model is split into, 0 when the file cannot be read.
int count_weights(const std::string &path, shapes_map &out) {
    ggml_context *raw = nullptr;
    std::unique_ptr<gguf_context, free_gguf> file(gguf_init_from_file(path.c_str(), {true, &raw}));
    ctx_ptr tensors(raw);
    if (!file || !tensors) return 0;
    for (ggml_tensor *t = ggml_get_first_tensor(raw); t; t = ggml_get_next_tensor(raw, t)) {
        if (!strstr(ggml_get_name(t), "blk.") || ggml_n_dims(t) != 2 || t->ne[0] < least || t->ne[1] < least) continue;
        out[{t->type, t->ne[0], t->ne[1]}]++;
    }
    int64_t key = gguf_find_key(file.get(), "split.count");
    return key >= 0 && gguf_get_kv_type(file.get(), key) == GGUF_TYPE_UINT16 ? std::max<int>(1, gguf_get_val_u16(file.get(), key)) : 1;
}

// All files of a model, of which path is the first. Largest share of the work first.
bool read_shapes(const std::string &path, std::vector<shape> &out) {
    shapes_map counted;
    int files = count_weights(path, counted);
    if (files == 0) return false;
    char prefix[4096], part[4096];
    if (files > 1 && llama_split_prefix(prefix, sizeof prefix, path.c_str(), 0, files) <= 0) return false;
    for (int i = 1; i < files; i++) {
        llama_split_path(part, sizeof part, prefix, i, files);
        if (count_weights(part, counted) == 0) return false;
    }
    for (const auto &c : counted) out.push_back({(ggml_type) std::get<0>(c.first), std::get<1>(c.first), std::get<2>(c.first), c.second});
    std::sort(out.begin(), out.end(), [](const shape &a, const shape &b) { return a.weights() > b.weights(); });
    return true;
}

// Whether llama.cpp puts such weights into a buffer that only the CPU device reads, repacked or laid out for AMX. It
// asks in the same way when it loads them.
bool kept_by_cpu(ggml_backend_dev_t cpu, const shape &s) {
    auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t *types = extra ? extra(cpu) : nullptr;
    for (; types && *types; types++) {
        ctx_ptr ctx = small_context();
        if (!ctx) throw std::bad_alloc();
        ggml_tensor *w = ggml_new_tensor_2d(ctx.get(), s.type, s.k, s.n);
        ggml_tensor *product = ggml_mul_mat(ctx.get(), w, ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, s.k, 2 * rows));
        buffer_ptr buffer(ggml_backend_buft_alloc_buffer(*types, 0));
        w->buffer = buffer.get();
        if (ggml_backend_dev_supports_op(cpu, product)) return true;
    }
    return false;
}

void set_threads(ggml_backend_dev_t dev, ggml_backend_t backend, int threads) {
    auto set = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "ggml_backend_set_n_threads");
    if (set) set(backend, threads);
}

// One backend of each side.
struct sides {
    ggml_backend_dev_t cpu_dev, blas_dev;
    backend_ptr cpu, blas;

    sides(ggml_backend_dev_t c, ggml_backend_dev_t b, int threads) : cpu_dev(c), blas_dev(b), cpu(ggml_backend_dev_init(c, nullptr)), blas(ggml_backend_dev_init(b, nullptr)) {
        if (cpu) set_threads(c, cpu.get(), threads);
        if (blas) set_threads(b, blas.get(), threads);
    }
};

double run_ms(ggml_backend_t backend, ggml_cgraph *graph) {
    auto begin = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) throw std::runtime_error("the product failed");
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// Adds the time of all products of a shape to out, on both sides. False: BLAS does not multiply this type.
bool time_shape(const sides &on, const shape &s, hs_blas_gain *out) {
    int64_t n = std::min({s.n, most_outputs, std::max(2 * least, most_weights / s.k)});
    ctx_ptr ctx = small_context();
    if (!ctx) throw std::bad_alloc();
    ggml_tensor *w = ggml_new_tensor_2d(ctx.get(), s.type, s.k, n);
    ggml_tensor *x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, s.k, rows);
    ggml_tensor *product = ggml_mul_mat(ctx.get(), w, x);
    ggml_cgraph *graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, product);
    buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
    if (!buffer) throw std::bad_alloc();
    if (!ggml_backend_dev_supports_op(on.blas_dev, product)) return false;
    // Zeros are weights of every type, and a product takes as long with them. Written, for they must lie in memory of their own.
    ggml_backend_buffer_clear(buffer.get(), 0);
    // The first run starts threads and touches memory. Of the others the fastest counts: where other processes want the cores, it is
    // the one that was left alone. ggml-blas makes a thread for each product, which waits for a core when OpenMP's threads spin, so that one
    // run in three took four times as long on two cores, and two loads in six went without BLAS for it.
    double cpu = HUGE_VAL, blas = HUGE_VAL, spent = 0;
    for (int run = 0; run < 2 || (run < most_runs && spent < shape_ms && blas > clearly * cpu); run++) {
        double c = run_ms(on.cpu.get(), graph), b = run_ms(on.blas.get(), graph);
        spent += c + b;
        if (run == 0) continue;
        cpu  = std::min(cpu, c);
        blas = std::min(blas, b);
    }
    double times = s.count * (double) s.n / (double) n;
    out->cpu_ms += cpu * times;
    out->blas_ms += blas * times;
    return true;
}

// The device of a plugin that is not registered. The library stays loaded: OpenBLAS has handlers of its own at fork and exit.
ggml_backend_dev_t open_device(const char *plugin, hs_err *err) {
    void *h = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (!h) {
        hs_fail(err, HS_FAILED, dlerror());
        return nullptr;
    }
    auto init = (ggml_backend_reg_t (*)()) dlsym(h, "ggml_backend_init");
    ggml_backend_reg_t reg = init ? init() : nullptr;
    if (!reg || ggml_backend_reg_dev_count(reg) == 0) {
        hs_fail(err, HS_FAILED, "the plugin has no device");
        return nullptr;
    }
    return ggml_backend_reg_dev_get(reg, 0);
}

} // namespace

int hs_blas_measure(const char *plugin, const char *model, int threads, hs_blas_gain *out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        *out = {};
        auto begin = std::chrono::steady_clock::now();
        std::vector<shape> all;
        if (!read_shapes(model, all)) return hs_fail(err, HS_FAILED, "the model's file cannot be read");
        ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        if (!cpu) return hs_fail(err, HS_FAILED, "no CPU device");
        all.erase(std::remove_if(all.begin(), all.end(), [&](const shape &s) { return kept_by_cpu(cpu, s); }), all.end());
        if (all.empty()) return HS_OK;
        ggml_backend_dev_t blas = open_device(plugin, err);
        if (!blas) return HS_FAILED;
        sides on(cpu, blas, threads);
        if (!on.cpu || !on.blas) return hs_fail(err, HS_FAILED, "the device does not start");
        std::set<std::string> types;
        for (const shape &s : all) {
            double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
            if (out->measured > 0 && ms > limit_ms) { // the largest shares came first, and speak for the rest
                out->shapes++;
            } else if (time_shape(on, s, out)) {
                out->shapes++;
                out->measured++;
            } else {
                continue;
            }
            types.insert(ggml_type_name(s.type));
            if (s.type != GGML_TYPE_F32) out->buffer = std::max<uint64_t>(out->buffer, (uint64_t) s.k * s.n * sizeof(float));
        }
        std::string names;
        for (const std::string &t : types) names += (names.empty() ? "" : " ") + t;
        snprintf(out->types, sizeof out->types, "%s", names.c_str());
        return HS_OK;
    });
}
