package native

import (
	"strings"
	"testing"

	"hearth/engine"
	"hearth/engine/llama"
)

// gemma27 is gemma3-27b: 62 layers, 52 of them with a window of 1024 tokens, 16 KV heads of 128.
func gemma27(meta map[string]string) (llama.ModelInfo, map[string]string) {
	m := map[string]string{"general.architecture": "gemma3", "gemma3.attention.key_length": "128", "gemma3.attention.value_length": "128"}
	for k, v := range meta {
		m[k] = v
	}
	return llama.ModelInfo{Layers: 62, Heads: 32, HeadsKV: 16, Embd: 5376, SWA: 1024, CtxTrain: 131072}, m
}

func TestWindowLayers(t *testing.T) {
	for _, c := range []struct {
		arch, pattern  string
		window, layers int // 0: all cells are kept; unknown
	}{
		{"gemma3", "", 1024, 52},
		{"gemma3", "2", 1024, 31},
		{"gemma3", "1", 1024, 0},
		{"gemma3", "0", 1024, 62},
		{"gpt-oss", "", 1024, 31},
		{"gemma4", "", 1024, 0}, // its file has a list, which llama.cpp does not show
		{"llama4", "", 0, 0},
		{"modern-bert", "3", 0, 0},
		{"something new", "", 0, 0},
	} {
		info, meta := gemma27(map[string]string{"general.architecture": c.arch})
		if c.pattern != "" {
			meta[c.arch+".attention.sliding_window_pattern"] = c.pattern
		}
		if w, n := windowOf(&info, meta), windowLayers(&info, meta); w != c.window || n != c.layers {
			t.Errorf("%s, pattern %q: window %d in %d layers, want %d in %d", c.arch, c.pattern, w, n, c.window, c.layers)
		}
	}
	info, meta := gemma27(nil)
	info.Hybrid = true
	if w := windowOf(&info, meta); w != 0 {
		t.Errorf("a hybrid model has a window of %d", w)
	}
}

func TestChooseWindows(t *testing.T) {
	const cell, gib = 62 * 16 * 128 * 2 * 2, 1 << 30 // bytes of one cell in all layers
	const full = 32768 * cell                        // 15.5 GiB
	spec := engine.LoadSpec{Backend: "hip", GPULayers: -1, Context: 32768, MaxSequences: 4}
	with := func(change func(*engine.LoadSpec)) engine.LoadSpec { s := spec; change(&s); return s }
	for _, c := range []struct {
		name                     string
		spec                     engine.LoadSpec
		free                     uint64
		sequences, cells, window int // window in cells; 0: all
		why                      string
	}{
		{"a quarter", spec, 4 * full, 4, 32768, 0, "at most a quarter"},
		{"more than a quarter", spec, 4*full - 4096, 4, 4 * 32768, 4608, "more than a quarter"},
		{"nothing known", spec, 0, 4, 32768, 0, "unknown"},
		{"set to full", with(func(s *engine.LoadSpec) { s.WindowCache = "full" }), full, 4, 32768, 0, "is full"},
		{"set to window", with(func(s *engine.LoadSpec) { s.WindowCache = "window" }), 8 * full, 4, 4 * 32768, 4608, "is window"},
		{"cells asked for", with(func(s *engine.LoadSpec) { s.Cells = 65536 }), 7 * full, 4, 65536, 4608, "more than a quarter"},
		{"as many windows as fit", with(func(s *engine.LoadSpec) { s.MaxSequences = 0 }), 12 * gib, 16, 32768, 16896, "more than a quarter"},
		{"at least four", with(func(s *engine.LoadSpec) { s.MaxSequences = 0 }), 2 * gib, 4, 32768, 4608, "more than a quarter"},
		{"no less than were asked for", with(func(s *engine.LoadSpec) { s.MaxSequences = 16 }), 2 * gib, 16, 32768, 16896, "more than a quarter"},
		{"no gain", with(func(s *engine.LoadSpec) { s.Context = 4096 }), gib, 4, 4096, 0, "as many cells as the whole context"},
		{"streams", with(func(s *engine.LoadSpec) { s.KVLayout = "streams" }), 16 * gib, 4, 4 * 32768, 1536, "more than a quarter"},
		{"fewer streams", with(func(s *engine.LoadSpec) { s.KVLayout = "streams" }), 10 * gib, 2, 2 * 32768, 1536, "more than a quarter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			info, meta := gemma27(nil)
			kv := kvBytes(&info, meta, "", "")
			if kv.all != cell || kv.windowed != cell/62*52 {
				t.Fatalf("a cell takes %+v", kv)
			}
			z := choose(&c.spec, &info, windowOf(&info, meta), kv, memory{device: c.free, spare: c.free}, 8)
			if z.sequences != c.sequences || z.cells != c.cells || z.windowCells() != c.window || !strings.Contains(z.why, c.why) {
				t.Errorf("%d sequences, %d cells, %d of windows, because %s", z.sequences, z.cells, z.windowCells(), z.why)
			}
			if got := kv.bytes(&z); c.window == 0 && got != uint64(z.cells)*cell {
				t.Errorf("all cells take %d", got)
			}
		})
	}
}

// A model whose file does not say which layers have windows is taken to need all cells, and says so.
func TestChooseWindowsUnknownLayers(t *testing.T) {
	info, meta := gemma27(map[string]string{"general.architecture": "gemma4"})
	kv := kvBytes(&info, meta, "", "")
	z := choose(&engine.LoadSpec{Backend: "cpu", Context: 32768}, &info, windowOf(&info, meta), kv, memory{spare: 8 << 30}, 8)
	if z.sequences != 4 || z.windowCells() != 4608 || kv.bytes(&z) != 32768*kv.all || !strings.Contains(z.why, "not known") {
		t.Errorf("%d sequences, %d cells of windows, %d bytes, because %s", z.sequences, z.windowCells(), kv.bytes(&z), z.why)
	}
	info, meta = gemma27(map[string]string{"general.architecture": "llama4"})
	z = choose(&engine.LoadSpec{WindowCache: "window"}, &info, windowOf(&info, meta), kv, memory{spare: 8 << 30}, 8)
	if z.windowCells() != 0 || !strings.Contains(z.why, "standard kind") {
		t.Errorf("chunked attention: %d cells of windows, because %s", z.windowCells(), z.why)
	}
}

func TestMemoryBesideWeights(t *testing.T) {
	for _, c := range []struct {
		available, weights uint64
		mapped             bool
		want               uint64
	}{{0, 5, true, 0}, {9, 5, true, 4}, {9, 5, false, 9}, {5, 5, true, 1}, {3, 5, true, 1}} {
		if got := beside(c.available, c.weights, c.mapped); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
