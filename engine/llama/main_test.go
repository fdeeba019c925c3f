package llama_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

// rt is the one runtime of the test process.
var rt *llama.Runtime

// vulkanSkip and hipSkip say why those tests do not run, "" when they do.
var vulkanSkip, hipSkip string

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	bundle := filepath.Join("..", "..", "build", "engine", "default")
	if b := os.Getenv("HEARTH_TEST_BUNDLE"); b != "" {
		bundle = b
	}
	hip := os.Getenv("HEARTH_TEST_HIP_BUNDLE")
	if hip != "" {
		bundle = hip
	}
	bundle = filepath.Join(bundle, "backends")
	cfg := llama.Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))}
	var err error
	if cfg.CPUPlugins, err = filepath.Glob(filepath.Join(bundle, "libggml-cpu-*.so")); err != nil || len(cfg.CPUPlugins) == 0 {
		fmt.Fprintln(os.Stderr, "no CPU plugins in", bundle)
		return 1
	}
	hipSkip = "HEARTH_TEST_HIP_BUNDLE names no bundle"
	if hip != "" { // one GPU plugin per process
		vulkanSkip, hipSkip = "the process holds the HIP plugin", ""
		cfg.GPUPlugin = filepath.Join(bundle, "libggml-hip.so")
	} else if icd := os.Getenv("HEARTH_TEST_VK_DRIVER_FILES"); icd == "" {
		vulkanSkip = "HEARTH_TEST_VK_DRIVER_FILES names no Vulkan driver"
	} else {
		os.Setenv("VK_DRIVER_FILES", icd)
		if os.Getenv("GGML_VK_VISIBLE_DEVICES") == "" {
			os.Setenv("GGML_VK_VISIBLE_DEVICES", "0") // a software driver is left out otherwise
		}
		cfg.GPUPlugin = filepath.Join(bundle, "libggml-vulkan.so")
	}
	if rt, err = llama.Open(cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	toys.dir, err = os.MkdirTemp("", "hearth-toys")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(toys.dir)
	code := m.Run()
	for _, mod := range toys.models {
		if err := mod.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "a test left something open:", err)
			code = 1
		}
	}
	if err := rt.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// toys caches the models of a test run.
var toys struct {
	mu     sync.Mutex
	dir    string
	models map[string]*llama.Model
}

func toyPath(t testing.TB, s toygguf.Spec) string {
	t.Helper()
	path := filepath.Join(toys.dir, fmt.Sprintf("%s-%d-%d-%d-%d-%d-%d-%g.gguf", s.Kind, s.Context, s.Vocab, s.SWA, s.Pooling, s.Layers, s.Embd, s.LogitScale))
	toys.mu.Lock()
	defer toys.mu.Unlock()
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := toygguf.Write(path, s); err != nil {
		t.Fatal(err)
	}
	return path
}

// toy returns the CPU model of a spec, loaded once per run.
func toy(t testing.TB, s toygguf.Spec) *llama.Model {
	t.Helper()
	path := toyPath(t, s)
	toys.mu.Lock()
	defer toys.mu.Unlock()
	if m := toys.models[path]; m != nil {
		return m
	}
	m, err := rt.LoadModel(context.Background(), path, llama.ModelParams{})
	if err != nil {
		t.Fatal(err)
	}
	if toys.models == nil {
		toys.models = map[string]*llama.Model{}
	}
	toys.models[path] = m
	return m
}

func dense(t testing.TB) *llama.Model { return toy(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 2}) }

func newContext(t testing.TB, m *llama.Model, p llama.ContextParams) *llama.Context {
	t.Helper()
	c, err := m.NewContext(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func newBatch(t testing.TB, n, seqs int) *llama.Batch {
	t.Helper()
	b, err := llama.NewBatch(n, seqs, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// prompt makes n word tokens, different for different salts.
func prompt(n, salt int) []llama.Token {
	out := make([]llama.Token, n)
	for i := range out {
		out[i] = llama.Token(toygguf.TokenWord0 + (i*7+salt*131+i*i)%500)
	}
	return out
}

// feed decodes tokens of one sequence from position pos on, in chunks of the
// batch, and returns a copy of the last token's logits.
func feed(t testing.TB, c *llama.Context, b *llama.Batch, seq llama.SeqID, pos int, tokens []llama.Token) []float32 {
	t.Helper()
	var last []float32
	for i := 0; i < len(tokens); {
		b.Reset()
		n := min(len(tokens)-i, b.Cap(), c.NBatch())
		for k := range n {
			add(t, b, tokens[i+k], llama.Pos(pos+i+k), seq, i+k == len(tokens)-1)
		}
		rows, err := c.Step(b)
		if err != nil {
			t.Fatal(err)
		}
		if rows.Len() > 0 {
			last = append(last[:0], rows.Logits(0)...)
		}
		i += n
	}
	return last
}

func add(t testing.TB, b *llama.Batch, tok llama.Token, pos llama.Pos, seq llama.SeqID, output bool) {
	t.Helper()
	if _, err := b.Add(tok, pos, seq, output); err != nil {
		t.Fatal(err)
	}
}

// maxDiff is the largest difference of two rows.
func maxDiff(a, b []float32) float64 {
	var d float64
	for i := range a {
		d = max(d, float64(max(a[i]-b[i], b[i]-a[i])))
	}
	return d
}
