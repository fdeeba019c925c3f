// The rig's probe child: loads one llama.cpp plugin and reports as `hearth-engine devices` does, one JSON object a line
// on stdout, written before the step that may die. It is C so that the tests need no worker.
//
//	child devices PLUGIN [--gemm | --add]    --add: an element-wise kernel of the plugin itself, in place of rocBLAS
//	child load PLUGIN CPU_PLUGIN MODEL LAYERS    loads a model and decodes one token
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

// say writes one line in one piece.
static void say(const char *format, ...) {
	char line[2048];
	va_list ap;
	va_start(ap, format);
	int n = vsnprintf(line, sizeof line - 1, format, ap);
	va_end(ap);
	line[n++] = '\n';
	if (write(1, line, (size_t)n) != n) exit(9);
}

static const char *type_name(enum ggml_backend_dev_type t) {
	switch (t) {
	case GGML_BACKEND_DEVICE_TYPE_CPU: return "cpu";
	case GGML_BACKEND_DEVICE_TYPE_GPU: return "gpu";
	case GGML_BACKEND_DEVICE_TYPE_IGPU: return "igpu";
	case GGML_BACKEND_DEVICE_TYPE_ACCEL: return "accel";
	default: return "unknown";
	}
}

static ggml_backend_reg_t load(const char *plugin) {
	ggml_backend_reg_t reg = ggml_backend_load(plugin);
	if (reg == NULL) {
		say("{\"event\":\"error\",\"stage\":\"load\",\"message\":\"the plugin did not load\"}");
		exit(3);
	}
	return reg;
}

// compute makes one result from two matrices of ones on a device: their product, each element of which is 64, or their
// sum, each element 2.
static void compute(ggml_backend_dev_t dev, const char *name, int add) {
	enum { K = 64, N = 256 };
	const char *what = add ? "add" : "f32";
	float expected = add ? 2 : K;
	int size = add ? K * N : N * N;
	say("{\"event\":\"gemm\",\"device\":\"%s\",\"case\":\"%s\",\"state\":\"start\"}", name, what);
	ggml_backend_t backend = ggml_backend_dev_init(dev, NULL);
	struct ggml_init_params params = {ggml_tensor_overhead() * 8 + ggml_graph_overhead(), NULL, true};
	struct ggml_context *ctx = ggml_init(params);
	if (backend == NULL || ctx == NULL) {
		say("{\"event\":\"error\",\"stage\":\"gemm\",\"message\":\"no backend\"}");
		return;
	}
	struct ggml_tensor *a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, K, N), *b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, K, N);
	struct ggml_tensor *c = add ? ggml_add(ctx, a, b) : ggml_mul_mat(ctx, a, b);
	struct ggml_cgraph *graph = ggml_new_graph(ctx);
	ggml_build_forward_expand(graph, c);
	ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
	float *ones = malloc(sizeof(float) * K * N), *out = malloc(sizeof(float) * N * N); // N > K
	if (buffer == NULL || ones == NULL || out == NULL) exit(9);
	for (int i = 0; i < K * N; i++) ones[i] = 1;
	ggml_backend_tensor_set(a, ones, 0, sizeof(float) * K * N);
	ggml_backend_tensor_set(b, ones, 0, sizeof(float) * K * N);
	memset(out, 0, sizeof(float) * K);
	ggml_backend_tensor_get(a, out, 0, sizeof(float) * K);
	int copied = out[0] == 1 && out[K - 1] == 1; // copies to and from the device work even where kernels do not
	enum ggml_status status = ggml_backend_graph_compute(backend, graph);
	ggml_backend_tensor_get(c, out, 0, sizeof(float) * size);
	double worst = status == GGML_STATUS_SUCCESS ? 0 : 1e9;
	for (int i = 0; i < size; i++) {
		double d = out[i] - expected;
		if (d < 0) d = -d;
		if (!(d <= worst)) worst = d;
	}
	if (worst != worst || worst > 1e9) worst = 1e9;
	say("{\"event\":\"gemm\",\"device\":\"%s\",\"case\":\"%s\",\"state\":\"done\",\"ok\":%s,\"max_error\":%g,\"copied\":%s}", name,
		what, worst < 0.01 ? "true" : "false", worst, copied ? "true" : "false");
	ggml_backend_buffer_free(buffer);
	ggml_free(ctx);
	ggml_backend_free(backend);
}

static int devices(const char *plugin, const char *then) {
	ggml_backend_reg_t reg = load(plugin);
	say("{\"event\":\"loaded\",\"registry\":\"%s\"}", ggml_backend_reg_name(reg));
	for (size_t i = 0; i < ggml_backend_reg_dev_count(reg); i++) {
		struct ggml_backend_dev_props p;
		ggml_backend_dev_get_props(ggml_backend_reg_dev_get(reg, i), &p);
		say("{\"event\":\"device\",\"device\":{\"index\":%zu,\"name\":\"%s\",\"description\":\"%s\",\"type\":\"%s\",\"pci_id\":\"%s\",\"memory_free\":%zu,"
			"\"memory_total\":%zu,\"caps\":{\"async\":%s,\"host_buffer\":%s,\"events\":%s}}}", i, p.name, p.description, type_name(p.type),
			p.device_id ? p.device_id : "", p.memory_free, p.memory_total, p.caps.async ? "true" : "false", p.caps.host_buffer ? "true" : "false",
			p.caps.events ? "true" : "false");
	}
	for (size_t i = 0; then[0] != 0 && i < ggml_backend_reg_dev_count(reg); i++) {
		ggml_backend_dev_t dev = ggml_backend_reg_dev_get(reg, i);
		compute(dev, ggml_backend_dev_name(dev), strcmp(then, "--add") == 0);
	}
	return 0;
}

static int decode(const char *plugin, const char *cpu, const char *path, int layers) {
	load(plugin);
	load(cpu);
	llama_backend_init();
	struct llama_model_params mp = llama_model_default_params();
	mp.n_gpu_layers = layers;
	struct llama_model *model = llama_model_load_from_file(path, mp);
	if (model == NULL) {
		say("{\"event\":\"error\",\"stage\":\"load\",\"message\":\"the model did not load\"}");
		return 3;
	}
	struct llama_context_params cp = llama_context_default_params();
	cp.n_ctx = 512;
	struct llama_context *ctx = llama_init_from_model(model, cp);
	if (ctx == NULL) return 3;
	llama_token token = 1;
	int rc = llama_decode(ctx, llama_batch_get_one(&token, 1));
	say("{\"event\":\"decoded\",\"rc\":%d,\"logits\":%s}", rc, llama_get_logits_ith(ctx, -1) != NULL ? "true" : "false");
	llama_free(ctx);
	llama_model_free(model);
	return 0;
}

int main(int argc, char **argv) {
	if (argc < 3) return 2;
	say("{\"schema\":1,\"event\":\"start\",\"pid\":%d}", (int)getpid());
	int rc = 2;
	if (strcmp(argv[1], "devices") == 0) {
		rc = devices(argv[2], argc > 3 ? argv[3] : "");
	} else if (strcmp(argv[1], "load") == 0 && argc == 6) {
		rc = decode(argv[2], argv[3], argv[4], atoi(argv[5]));
	}
	if (rc == 0) say("{\"event\":\"done\"}");
	return rc;
}
