// shim_gemm.cpp: one small matrix product on one device, checked against the CPU.
#include "shim_internal.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

namespace {

// 256x256x64: large enough that HIP takes the rocBLAS path for f16, small enough to cost nothing. 256 is also one block
// of the k-quants.
constexpr int64_t K = 256, N = 256, M = 64;

struct free_context { void operator()(ggml_context *p) const { ggml_free(p); } };
struct free_backend { void operator()(ggml_backend *p) const { ggml_backend_free(p); } };
struct free_buffer { void operator()(ggml_backend_buffer *p) const { ggml_backend_buffer_free(p); } };

// A fixed sequence in [-1, 1): the same values on every machine.
std::vector<float> values(size_t n, uint32_t seed) {
    std::vector<float> v(n);
    uint32_t x = seed;
    for (auto &f : v) {
        x = x * 1664525u + 1013904223u;
        f = (float) ((int32_t) (x >> 8) - (1 << 23)) / (float) (1 << 23);
    }
    return v;
}

// The product of a (N rows of K) and b (M rows of K) in double, laid out as ggml does: M rows of N.
std::vector<double> reference(const std::vector<float> &a, const std::vector<float> &b) {
    std::vector<double> c((size_t) (N * M));
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double s = 0;
            for (int64_t k = 0; k < K; k++) s += (double) a[(size_t) (n * K + k)] * b[(size_t) (m * K + k)];
            c[(size_t) (m * N + n)] = s;
        }
    return c;
}

// The matrix as the type stores it, and what those bytes mean.
bool encode(ggml_type type, const std::vector<float> &a, std::vector<uint8_t> &raw, std::vector<float> &meant) {
    raw.resize(ggml_row_size(type, K) * (size_t) N);
    meant.resize(a.size());
    if (type == GGML_TYPE_F32) {
        memcpy(raw.data(), a.data(), raw.size());
        meant = a;
        return true;
    }
    ggml_quantize_chunk(type, a.data(), raw.data(), 0, N, K, nullptr);
    const ggml_type_traits *t = ggml_get_type_traits(type);
    if (!t || !t->to_float) return false;
    t->to_float(raw.data(), meant.data(), N * K);
    return true;
}

int gemm(const char *device, ggml_type type, double *max_error, double *ms, hs_err *err) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_name(device);
    if (!dev) return hs_fail(err, HS_RANGE, std::string("no device ") + device);
    std::unique_ptr<ggml_backend, free_backend> be(ggml_backend_dev_init(dev, nullptr));
    if (!be) return hs_fail(err, HS_FAILED, "the device cannot be started");
    std::unique_ptr<ggml_context, free_context> ctx(ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true}));
    if (!ctx) return hs_fail(err, HS_NOMEM, "no context");
    ggml_tensor *a = ggml_new_tensor_2d(ctx.get(), type, K, N);
    ggml_tensor *b = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, K, M);
    ggml_tensor *c = ggml_mul_mat(ctx.get(), a, b);
    if (!ggml_backend_supports_op(be.get(), c)) return hs_fail(err, HS_FAILED, "the device does not multiply this type");
    ggml_cgraph *g = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(g, c);
    std::unique_ptr<ggml_backend_buffer, free_buffer> buf(ggml_backend_alloc_ctx_tensors(ctx.get(), be.get()));
    if (!buf) return hs_fail(err, HS_NOMEM, "the device has no memory for it");
    std::vector<float> va = values((size_t) (K * N), 1), vb = values((size_t) (K * M), 2), meant;
    std::vector<uint8_t> raw;
    if (!encode(type, va, raw, meant)) return hs_fail(err, HS_FAILED, "the type cannot be read back");
    ggml_backend_tensor_set(a, raw.data(), 0, raw.size());
    ggml_backend_tensor_set(b, vb.data(), 0, vb.size() * sizeof(float));
    auto began = std::chrono::steady_clock::now();
    ggml_status st = ggml_backend_graph_compute(be.get(), g); // waits for the device
    *ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    if (st != GGML_STATUS_SUCCESS) return hs_fail(err, HS_FAILED, "compute ended with status " + std::to_string((int) st));
    std::vector<float> got((size_t) (N * M));
    ggml_backend_tensor_get(c, got.data(), 0, got.size() * sizeof(float));
    std::vector<double> want = reference(meant, vb);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        largest = std::max(largest, std::fabs(want[i]));
        double d = std::fabs(want[i] - got[i]);
        if (!(d <= worst)) worst = d; // also for NaN
    }
    *max_error = worst / largest;
    return HS_OK;
}

} // namespace

extern "C" int hs_gemm(const char *device, int32_t kind, double *max_error, double *ms, hs_err *err) {
    return hs_guard(err, [&] {
        static const ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_Q4_K};
        if (kind < 0 || kind > 2) return hs_fail(err, HS_RANGE, "no such case");
        return gemm(device, types[kind], max_error, ms, err);
    });
}
