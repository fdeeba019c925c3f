package main

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/backends/sysroot"
	"hearth/configs"
	"hearth/engine"
	"hearth/internal/toygguf"
	"hearth/models/fit"
	"hearth/models/gguf"
)

func toyModel(t *testing.T) *gguf.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "toy.gguf")
	if err := toygguf.Write(path, toygguf.Spec{Kind: toygguf.Llama, Layers: 8, Embd: 256, Heads: 8, HeadsKV: 8, Context: 32768}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func estimate(t *testing.T, f *gguf.File, cells, hostLayers int) uint64 {
	t.Helper()
	e, err := fit.Of(f, fit.Request{Cells: cells, FlashAttention: true, HostLayers: hostLayers, NoMMap: true})
	if err != nil {
		t.Fatal(err)
	}
	return e.Device.Total()
}

// TestFitting: what gives way first when memory is short. Whatever is decided must fit.
func TestFitting(t *testing.T) {
	f := toyModel(t)
	kv := estimate(t, f, 16384, 0) - estimate(t, f, 8192, 0) // of one context
	auto := configs.Run{GPULayers: -1, KVLayout: "unified"}
	with := func(change func(*configs.Run)) configs.Run { r := auto; change(&r); return r }
	for _, c := range []struct {
		name   string
		run    configs.Run
		budget uint64
		// What the worker is told: cells, context and layers, 0 and -1 for its own choice; sequences only with streams.
		cells, context, layers, sequences int
		warn                              string
	}{
		{"room for all", auto, 1 << 40, 4 * 8192, 0, -1, 0, ""},
		{"half of the rest stays free", auto, estimate(t, f, 8192, 0) + 4*kv, 2 * 8192, 0, -1, 0, ""},
		{"one context", auto, estimate(t, f, 8192, 0) + kv/2, 8192, 0, -1, 0, ""},
		{"a shorter context", auto, estimate(t, f, 5120, 0), 5120, 5120, -1, 0, "a shorter context"},
		{"a context that was asked for is kept", with(func(r *configs.Run) { r.Context = 8192 }), estimate(t, f, 8192, 3), 8192, 8192, 6, 0, "some layers stay on the host"},
		{"not even short", auto, estimate(t, f, 8192, 7), 8192, 8192, 2, 0, "some layers stay on the host"},
		{"nothing fits", auto, 0, 8192, 8192, 0, 0, "some layers stay on the host"},
		{"cells that were asked for", with(func(r *configs.Run) { r.Cells = 10000 }), 1 << 40, 0, 0, -1, 0, ""},
		{"too many cells asked for", with(func(r *configs.Run) { r.Cells = 16384 }), estimate(t, f, 12288, 0), 12288, 0, -1, 0, "fewer KV cells"},
		{"streams", with(func(r *configs.Run) { r.KVLayout, r.MaxSequences, r.Context = "streams", 4, 2048 }), 1 << 40, 0, 0, -1, 0, ""},
		{"fewer streams", with(func(r *configs.Run) { r.KVLayout, r.MaxSequences, r.Context = "streams", 4, 2048 }), estimate(t, f, 3*2048, 0), 0, 0, -1, 3, "fewer sequences"},
		{"fewer layers asked for", with(func(r *configs.Run) { r.GPULayers = 2 }), estimate(t, f, 8192, 7), 8192, 0, 2, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := engine.LoadSpec{GPULayers: c.run.GPULayers, Context: c.run.Context, KVLayout: c.run.KVLayout}
			said := ""
			l := fitting{f: f, trained: 32768, run: c.run, place: Placement{Backend: "hip"}, spec: &spec, budget: c.budget,
				warn: func(text string, _ ...any) { said += text }, inform: func(string, ...any) {}}
			e, err := l.fit()
			if err != nil {
				t.Fatal(err)
			}
			if e.Device.Total() > c.budget {
				t.Errorf("takes %d of %d", e.Device.Total(), c.budget)
			}
			if c.context == 0 {
				c.context = c.run.Context
			}
			if spec.Cells != c.cells || spec.Context != c.context || spec.GPULayers != c.layers || spec.MaxSequences != c.sequences {
				t.Errorf("cells %d context %d layers %d sequences %d, want %d %d %d %d", spec.Cells, spec.Context, spec.GPULayers, spec.MaxSequences, c.cells, c.context, c.layers, c.sequences)
			}
			if (c.warn == "") != (said == "") || !strings.Contains(said, c.warn) {
				t.Errorf("warned %q, want %q", said, c.warn)
			}
		})
	}
}

// The layout that is chosen while the model runs may need a context for each sequence: that counts when there is room.
func TestFittingAutomaticLayout(t *testing.T) {
	f := toyModel(t)
	wide := estimate(t, f, 8192*engine.DefaultMaxSequences, 0)
	for budget, want := range map[uint64]uint64{1 << 40: wide, wide: estimate(t, f, 4*8192, 0)} {
		l := fitting{f: f, run: configs.Run{GPULayers: -1, KVLayout: "auto"}, place: Placement{Backend: "hip"}, spec: &engine.LoadSpec{}, budget: budget, warn: func(string, ...any) {}, inform: func(string, ...any) {}}
		if e, err := l.fit(); err != nil || e.Device.Total() != want {
			t.Errorf("of %d: %d, want %d, %v", budget, e.Device.Total(), want, err)
		}
	}
}

// TestFittingWindows: a model with sliding windows keeps all cells where there is plenty of memory, windows where there is not, and is
// not cut short where those fit.
func TestFittingWindows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "toy.gguf")
	if err := toygguf.Write(path, toygguf.Spec{Kind: toygguf.Gemma3, Layers: 12, Embd: 256, Heads: 8, HeadsKV: 8, Context: 32768, SWA: 512}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	need := func(r fit.Request) fit.Usage {
		t.Helper()
		r.Cells, r.FlashAttention, r.NoMMap, r.Outputs = 32768, true, true, r.Sequences
		e, err := fit.Of(f, r)
		if err != nil {
			t.Fatal(err)
		}
		return e.Device
	}
	all := need(fit.Request{Sequences: 4})
	plenty := all.Weights + 4*all.KV
	run := configs.Run{GPULayers: -1, KVLayout: "unified", WindowCache: "auto", Context: 32768, Cells: 32768, MaxSequences: 4}
	with := func(change func(*configs.Run)) configs.Run { r := run; change(&r); return r }
	for _, c := range []struct {
		name      string
		run       configs.Run
		place     string
		budget    uint64
		told      string // the worker's window_cache
		sequences int    // 0: not told
		layers    int
	}{
		{"plenty", run, "hip", plenty, "full", 0, -1},
		{"less", run, "hip", plenty - 4, "window", 0, -1},
		{"just the windows", run, "hip", need(fit.Request{Sequences: 4, Windows: true}).Total(), "window", 0, -1},
		{"set to full", with(func(r *configs.Run) { r.WindowCache = "full" }), "hip", all.Total(), "full", 0, -1},
		{"set to full, too large", with(func(r *configs.Run) { r.WindowCache = "full" }), "hip", all.Total() - 1, "full", 0, 12},
		{"set to window", with(func(r *configs.Run) { r.WindowCache = "window" }), "hip", plenty, "window", 0, -1},
		{"fewer sequences", with(func(r *configs.Run) { r.MaxSequences = 0 }), "hip", need(fit.Request{Sequences: 8, Windows: true}).Total(), "window", 8, -1},
		{"CPU, plenty", run, "cpu", 1 << 40, "auto", 0, -1},
		{"CPU, less", run, "cpu", all.Total(), "window", 0, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := engine.LoadSpec{GPULayers: -1, WindowCache: c.run.WindowCache}
			l := fitting{f: f, trained: 32768, run: c.run, place: Placement{Backend: c.place}, spec: &spec, budget: c.budget,
				warn: func(string, ...any) {}, inform: func(string, ...any) {}}
			e, err := l.fit()
			if err != nil {
				t.Fatal(err)
			}
			if n := l.side(e).Total(); n > c.budget {
				t.Errorf("takes %d of %d", n, c.budget)
			}
			if spec.WindowCache != c.told || spec.MaxSequences != c.sequences || spec.GPULayers != c.layers || e.Cells != 32768 {
				t.Errorf("window_cache %s, sequences %d, layers %d, cells %d", spec.WindowCache, spec.MaxSequences, spec.GPULayers, e.Cells)
			}
		})
	}
}

// TestPlannerCapacity: what the pool is told about a device while models come and go.
func TestPlannerCapacity(t *testing.T) {
	const pci = "0000:03:00.0"
	f, ctx := toyModel(t), context.Background()
	var log bytes.Buffer
	p := newPlanner(fixtures.Open(t, "xtx"), nil, slog.New(slog.NewTextHandler(&log, nil)))
	run := configs.Run{GPULayers: -1, KVLayout: "unified"}
	plan := func(place Placement) uint64 {
		t.Helper()
		needs, err := p.plan(ctx, f, 32768, run, place, &engine.LoadSpec{GPULayers: -1})
		if err != nil {
			t.Fatal(err)
		}
		if len(needs) == 0 {
			return 0
		}
		return needs[0].Bytes
	}
	if _, known := p.Capacity(pci); known {
		t.Error("a capacity before anybody looked")
	}
	if n := plan(Placement{Backend: "hip", WantPCI: pci}); n != estimate(t, f, 4*8192, 0) {
		t.Errorf("needs %d", n)
	}
	empty, known := p.Capacity(pci)
	if vram := uint64(25753026560); !known || empty >= vram || empty < vram*8/10 { // the fixture's card, a desktop on it
		t.Errorf("capacity %d, %v", empty, known)
	}
	// What our models are planned to hold can be unloaded, but nothing makes the card larger.
	p.held = func(string) uint64 { return 1 << 30 }
	plan(Placement{Backend: "hip", WantPCI: pci})
	if n, _ := p.Capacity(pci); n != empty {
		t.Errorf("capacity %d with models, %d without", n, empty)
	}
	// A backend that gives less than the kernel, on an empty card.
	p.held = nil
	plan(Placement{Backend: "hip", WantPCI: pci, Free: backends.Some[uint64](1 << 30)})
	if n, _ := p.Capacity(pci); n > 1<<30 || n < 1<<30*9/10 {
		t.Errorf("capacity %d where the backend offers 1 GiB", n)
	}
	if n := plan(Placement{Backend: "cpu"}); n == 0 {
		t.Error("the CPU's memory is not planned")
	}
	for what, place := range map[string]Placement{"no address": {Backend: "vulkan"}, "not the kernel's": {Backend: "vulkan", WantPCI: "0000:ff:00.0"}} {
		if n := plan(place); n != 0 {
			t.Errorf("%s: planned %d", what, n)
		}
	}
	if strings.Contains(log.String(), "level=WARN") {
		t.Errorf("nothing was short:\n%s", &log)
	}
}

// TestPlannerSystemMemory: without /proc/meminfo nothing bounds the CPU.
func TestPlannerSystemMemory(t *testing.T) {
	root, err := sysroot.Archive{}.FS()
	if err != nil {
		t.Fatal(err)
	}
	p := newPlanner(root, nil, slog.New(slog.DiscardHandler))
	needs, err := p.plan(context.Background(), toyModel(t), 0, configs.Run{}, Placement{Backend: "cpu"}, &engine.LoadSpec{})
	if _, known := p.Capacity("cpu"); err != nil || needs != nil || known {
		t.Errorf("%v, %v, %v", needs, known, err)
	}
}
