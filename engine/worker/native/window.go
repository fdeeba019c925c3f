package native

import (
	"fmt"
	"strconv"

	"hearth/engine"
	"hearth/engine/llama"
)

// kvCost is what one cell of KV cache takes, in bytes: in all layers, and in those of them that have a sliding window. Where the file
// does not say which ones have, windowed is 0: no saving is counted on.
type kvCost struct{ all, windowed uint64 }

// bytes is what the caches of z take.
func (k kvCost) bytes(z *sizes) uint64 {
	n := z.windowCells()
	if n == 0 {
		return k.all * uint64(z.cells)
	}
	if !z.unified {
		n *= z.sequences
	}
	return (k.all-k.windowed)*uint64(z.cells) + k.windowed*uint64(n)
}

// windowCells is the size of the window layers' cache, per pool or stream; 0: they keep all cells, because that was chosen or because
// their windows take as many.
func (z *sizes) windowCells() int {
	context, sequences := z.context, 1
	if z.unified {
		context, sequences = z.cells, z.sequences
	}
	if n := llama.WindowCells(z.window, sequences, z.chunk, context); z.window > 0 && n < context {
		return n
	}
	return 0
}

// keep names what window layers keep, for people.
func (z *sizes) keep() string {
	if z.windowCells() > 0 {
		return "a window for each sequence"
	}
	return "all cells"
}

// windowOf is the model's window in tokens where its layers may keep just that, else 0. Recurrent and hybrid models are left out:
// their prefixes are reused as whole states, which windows would cut.
func windowOf(info *llama.ModelInfo, meta map[string]string) int {
	if _, standard := engine.WindowPeriod(meta["general.architecture"]); !standard || info.Recurrent || info.Hybrid {
		return 0
	}
	return info.SWA
}

// windowLayers is how many of the layers have a window; 0: unknown, or none.
func windowLayers(info *llama.ModelInfo, meta map[string]string) int {
	arch := meta["general.architecture"]
	period, standard := engine.WindowPeriod(arch)
	known := period > 0
	if n, err := strconv.Atoi(meta[arch+".attention.sliding_window_pattern"]); err == nil && n >= 0 { // llama.cpp's 0: all have one
		period, known = n, true
	}
	switch {
	case !standard || !known || info.SWA == 0:
		return 0
	case period == 0:
		return info.Layers
	}
	return info.Layers - info.Layers/period
}

// chooseWindows decides whether window layers keep all cells of z or a window for each sequence, and says why. window is the model's, in
// tokens, spare the memory free beside the weights, in bytes (0: unknown). With windows and no number of sequences asked for,
// there are fewer of them where their windows would not fit.
func (z *sizes) chooseWindows(s *engine.LoadSpec, info *llama.ModelInfo, window int, kv kvCost, spare uint64) {
	full := kv.bytes(z)
	limit := spare / engine.FullWindowShare
	switch {
	case window == 0 && info.SWA > 0:
		z.why = "only windows of the standard kind, in models of pure attention, can be cut to their size"
		return
	case window == 0:
		return
	case s.WindowCache == "full":
		z.why = "window_cache is full: prefixes of any length can be reused"
		return
	case s.WindowCache == "window":
		z.why = "window_cache is window: less memory, and a prefix can be reused only while the window at its end is whole"
	case spare == 0:
		z.why = "the free memory is unknown, so nothing is saved: prefixes of any length can be reused"
		return
	case full <= limit:
		z.why = fmt.Sprintf("all cells take %d MiB, at most a quarter of the %d MiB that are free beside the weights: prefixes of any length can be reused", full>>20, spare>>20)
		return
	default:
		z.why = fmt.Sprintf("all cells would take %d MiB, more than a quarter of the %d MiB that are free beside the weights: a prefix can be reused only while the window at its end is whole", full>>20, spare>>20)
	}
	if kv.windowed == 0 {
		z.why += " (which layers have a window is not known here: no saving is counted on)"
	}
	wide := *z
	z.window = window
	for s.MaxSequences == 0 && spare > 0 && kv.bytes(z) > spare/cacheShare*(cacheShare-1) && z.sequences/2 >= engine.LeastWindowSequences {
		z.setSequences(z.sequences / 2)
	}
	if z.windowCells() == 0 {
		*z = wide
		z.why = "the windows of all sequences would take as many cells as the whole context"
	}
}

// streamsBytes is what a context for each sequence takes.
func (m *model) streamsBytes(kv kvCost) uint64 {
	z := m.size
	z.unified, z.cells = false, z.context*z.sequences
	return kv.bytes(&z)
}

// spare is the memory free beside the weights where the KV cache will lie, in bytes; 0: unknown. Mapped weights that are not locked
// count as available, but every token reads them.
func (m *model) spare(device uint64) uint64 {
	if m.spec.Backend != "cpu" {
		return device
	}
	return beside(uint64(available("/")), m.m.Info().Size, m.spec.MMap && !m.spec.MLock)
}

// beside is what of the available memory weights of that size leave; 0 if it is unknown, not if it is nothing.
func beside(available, weights uint64, mapped bool) uint64 {
	switch {
	case available == 0 || !mapped:
		return available
	case available <= weights:
		return 1
	}
	return available - weights
}
