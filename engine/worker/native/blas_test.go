package native

import (
	"cmp"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/llama"
)

func TestChooseBLAS(t *testing.T) {
	for _, c := range []struct {
		backend, value, plugin string
		use                    blasUse
		fails                  bool
	}{
		{"cpu", "", "p", blasMeasure, false},
		{"cpu", "auto", "p", blasMeasure, false},
		{"cpu", "auto", "", blasNo, false},
		{"cpu", "on", "p", blasYes, false},
		{"cpu", "on", "", blasNo, true},
		{"cpu", "off", "p", blasNo, false},
		{"cpu", "off", "", blasNo, false},
		// A setting for all models must not refuse those on a GPU; a part of the layers there does not count as the CPU's.
		{"vulkan", "on", "p", blasNo, false},
		{"hip", "auto", "p", blasNo, false},
	} {
		use, err := chooseBLAS(&engine.LoadSpec{Backend: c.backend, CPUBLAS: c.value, GPULayers: 3}, c.plugin)
		if use != c.use || (err != nil) != c.fails {
			t.Errorf("%s, %q, plugin %q: %v, %v", c.backend, c.value, c.plugin, use, err)
		}
		if e, ok := errors.AsType[*engine.Error](err); c.fails && (!ok || e.Hint == "" || e.Field != "cpu_blas") {
			t.Errorf("error %+v", err)
		}
	}
}

// TestBLASAndSequences: steps in which all sequences decode do not go through BLAS, unless somebody wants it so.
func TestBLASAndSequences(t *testing.T) {
	for _, c := range []struct {
		mode, value string
		asked       int
		use         blasUse
		sequences   int // of 32 that were chosen, or those asked for
	}{
		{"", "auto", 0, blasMeasure, 31},
		{"chat", "auto", 31, blasMeasure, 31},
		{"chat", "auto", 32, blasNo, 32},
		{"chat", "on", 32, blasYes, 32},
		{"embedding", "auto", 64, blasMeasure, 64}, // no output matrix, and no decoding
	} {
		s := engine.LoadSpec{Backend: "cpu", Mode: c.mode, CPUBLAS: c.value, MaxSequences: c.asked}
		use, err := chooseBLAS(&s, "p")
		z := sizes{context: 256, sequences: cmp.Or(c.asked, engine.DefaultMaxSequences)}
		z.fewerThanBLAS(&s)
		if err != nil || use != c.use || z.sequences != c.sequences || c.asked == 0 && z.cells != 256*31 {
			t.Errorf("%+v: %v, %d sequences, %d cells, %v", c, use, z.sequences, z.cells, err)
		}
	}
}

func TestWorthBLAS(t *testing.T) {
	gain := func(cpu, blas time.Duration, measured int) llama.BLASGain {
		return llama.BLASGain{CPU: cpu, BLAS: blas, Measured: measured}
	}
	for _, c := range []struct {
		gain llama.BLASGain
		use  bool
	}{
		{gain(1000, 400, 1), true},
		{gain(1000, 900, 1), true},
		{gain(1000, 901, 1), false},
		{gain(1000, 15000, 4), false},
		{gain(0, 0, 0), false}, // all weights are repacked
		{gain(0, 0, 1), false}, // the clock did not move
	} {
		if got := worthBLAS(c.gain); got != c.use {
			t.Errorf("%+v: %v", c.gain, got)
		}
	}
}

// TestBLASProducts: the plugin in the bundle, with the library that its loader finds, multiplies right. A registered plugin stays,
// so this is for a test process in which nothing is compared with the CPU.
func TestBLASProducts(t *testing.T) {
	backends := filepath.Join("..", "..", "..", "build", "engine", "default", "backends")
	cpus, err := filepath.Glob(filepath.Join(backends, "libggml-cpu-*.so"))
	if err != nil || len(cpus) == 0 {
		t.Skip("make engine builds the bundle")
	}
	found, _ := filepath.Glob(filepath.Join(backends, "libggml-blas.so"))
	if len(found) == 0 {
		t.Skip("the bundle has no BLAS plugin")
	}
	rt, err := (&Opener{CPUPlugins: cpus, Log: slog.New(slog.DiscardHandler)}).Runtime("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if err := rt.LoadBLAS(found[0]); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"f32", "f16", "q4_1", "q8_0", "q4_K", "q6_K"} {
		blas, err := rt.Gemm("BLAS", typ)
		if err != nil {
			t.Fatal(err)
		}
		cpu, err := rt.Gemm("CPU", typ)
		if err != nil {
			t.Fatal(err)
		}
		// It multiplies floats, where the CPU rounds the activations to 8 bits.
		if blas.Error > 1e-5 || !cpu.OK() {
			t.Errorf("%s: relative error %g through BLAS, %g on the CPU", typ, blas.Error, cpu.Error)
		}
	}
}
