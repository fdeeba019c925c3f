// shim_gemm.cpp: proof that a device computes. A driver can list a GPU for which it has no kernels; the first kernel
// tells, and on some stacks it tells by ending the process, so this runs in a probe child.
#include "shim_gemm.h"
#include "shim_ggml.h"
#include "shim_internal.h"

#include <chrono>
#include <cmath>
#include <vector>

namespace {

// Large enough for the paths that prefill takes (rocBLAS and the quantised matrix kernels begin at a few columns).
constexpr int64_t K = 512, rows = 256, cols = 64;

bool type_by_name(const std::string &name, ggml_type *out) {
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const char *n = ggml_type_name((ggml_type) t);
        if (n && name == n) {
            *out = (ggml_type) t;
            return true;
        }
    }
    return false;
}

// Values between -1 and 1, the same on every machine.
std::vector<float> values(size_t n, uint32_t seed) {
    std::vector<float> v(n);
    for (float &x : v) {
        seed = seed * 1664525u + 1013904223u;
        x    = (float) (int32_t) seed / 2147483648.0f;
    }
    return v;
}

// The product in double precision, of the weights as the type holds them.
std::vector<double> reference(ggml_type type, const std::vector<uint8_t> &a, const std::vector<float> &b) {
    std::vector<float> row(K);
    std::vector<double> c(rows * cols);
    const ggml_type_traits *traits = ggml_get_type_traits(type);
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *src = a.data() + r * ggml_row_size(type, K);
        if (type == GGML_TYPE_F32) memcpy(row.data(), src, K * sizeof(float));
        else traits->to_float(src, row.data(), K);
        for (int64_t n = 0; n < cols; n++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) sum += (double) row[k] * b[n * K + k];
            c[n * rows + r] = sum;
        }
    }
    return c;
}

} // namespace

int hs_gemm(int i, const char *type_name, hs_gemm_result *out, hs_err *err) {
    return hs_guard(err, [&]() -> int {
        *out = {};
        ggml_type type;
        if (i < 0 || (size_t) i >= ggml_backend_dev_count()) return hs_fail(err, HS_RANGE, "no such device");
        if (!type_by_name(type_name, &type)) return hs_fail(err, HS_RANGE, "no such type");
        // Removed types have a block size of 0; some need an importance matrix, which would abort.
        if (ggml_blck_size(type) <= 0 || K % ggml_blck_size(type) != 0 || ggml_quantize_requires_imatrix(type) ||
            (type != GGML_TYPE_F32 && !ggml_get_type_traits(type)->to_float)) return hs_fail(err, HS_RANGE, "this type is not for weights");
        std::vector<float> wa = values(K * rows, 1), b = values(K * cols, 2);
        std::vector<uint8_t> a(ggml_row_size(type, K) * rows);
        if (type == GGML_TYPE_F32) memcpy(a.data(), wa.data(), a.size());
        else ggml_quantize_chunk(type, wa.data(), a.data(), 0, rows, K, nullptr);

        backend_ptr backend(ggml_backend_dev_init(ggml_backend_dev_get(i), nullptr));
        if (!backend) return hs_fail(err, HS_FAILED, "the device does not start");
        ctx_ptr ctx = small_context();
        if (!ctx) return hs_fail(err, HS_NOMEM, "");
        ggml_tensor *ta = ggml_new_tensor_2d(ctx.get(), type, K, rows);
        ggml_tensor *tb = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, K, cols);
        ggml_tensor *tc = ggml_mul_mat(ctx.get(), ta, tb);
        if (!ggml_backend_supports_op(backend.get(), tc)) return hs_fail(err, HS_FAILED, "the device does not multiply this type");
        ggml_cgraph *graph = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(graph, tc);
        buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));
        if (!buffer) return hs_fail(err, HS_NOMEM, "the device's memory is full");
        ggml_backend_tensor_set(ta, a.data(), 0, a.size());
        ggml_backend_tensor_set(tb, b.data(), 0, b.size() * sizeof(float));

        for (int run = 0; run < 2; run++) {
            auto begin = std::chrono::steady_clock::now();
            if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS) return hs_fail(err, HS_FAILED, "the product failed");
            out->ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
        }
        std::vector<float> c(rows * cols);
        ggml_backend_tensor_get(tc, c.data(), 0, c.size() * sizeof(float));
        std::vector<double> want = reference(type, a, b);
        double diff = 0, norm = 0;
        for (size_t n = 0; n < c.size(); n++) {
            double d = c[n] - want[n];
            diff += d * d;
            norm += want[n] * want[n];
        }
        out->error = std::sqrt(diff / norm);
        if (!std::isfinite(out->error)) out->error = HUGE_VAL;
        return HS_OK;
    });
}
