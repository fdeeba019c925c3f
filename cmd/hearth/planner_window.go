package main

import (
	"hearth/backends"
	"hearth/engine"
	"hearth/models/fit"
	"hearth/models/gguf"
)

// windows decides what layers with a sliding window keep, by the worker's own rule: all cells where they take at most a quarter of the
// memory beside the weights, else a window for each sequence, and fewer sequences where those do not fit and nobody asked for a number.
// The worker is told, but for all cells on a CPU: only it knows what is available there when it loads, and windows take less.
func (l *fitting) windows(r fit.Request) (fit.Request, error) {
	window, err := standardWindow(l.f)
	if err != nil || window == 0 || l.run.WindowCache == "full" || l.pooled() {
		return r, err
	}
	all, err := fit.Of(l.f, r)
	if err != nil {
		return r, err
	}
	kv, spare := l.cache(all), l.budget-min(l.budget, l.side(all).Weights)
	why := "window_cache is window"
	if l.run.WindowCache != "window" {
		if kv <= spare/engine.FullWindowShare {
			if l.place.Backend != backends.CPU {
				l.spec.WindowCache = "full"
				l.inform("layers with a sliding window keep all cells: they take at most a quarter of the memory beside the weights", "kv_bytes", kv, "spare_bytes", spare)
			}
			return r, nil
		}
		why = "all cells would take more than a quarter of the memory beside the weights"
	}
	small := r
	small.Windows = true
	e, err := fit.Of(l.f, small)
	for err == nil && l.run.MaxSequences == 0 && l.side(e).Total() > l.budget && small.Sequences/2 >= engine.LeastWindowSequences {
		small.Sequences /= 2
		small.Outputs = small.Sequences
		if small.Streams {
			small.Cells = r.Cells / r.Sequences * small.Sequences
		}
		e, err = fit.Of(l.f, small)
	}
	if err != nil {
		return r, err
	}
	if l.cache(e) >= kv { // the windows of all sequences take as many cells as the whole context
		l.spec.WindowCache = "full"
		return r, nil
	}
	l.spec.WindowCache = "window"
	if small.Sequences < r.Sequences {
		l.spec.MaxSequences = small.Sequences
	}
	l.inform("layers with a sliding window keep a window for each sequence: "+why,
		"kv_bytes", l.cache(e), "all_cells_bytes", kv, "spare_bytes", spare, "sequences", small.Sequences, "window", window)
	return small, nil
}

// standardWindow is a model's sliding window in tokens, 0 without one behind which cells may go.
func standardWindow(f *gguf.File) (int, error) {
	window, architecture, err := fit.Window(f)
	if _, standard := engine.WindowPeriod(architecture); !standard {
		window = 0
	}
	return window, err
}

// pooled says that one step of the model holds whole texts, for embeddings: they are not cached.
func (l *fitting) pooled() bool { return l.spec.Mode == "embedding" || l.spec.Mode == "rerank" }

// side is the part of an estimate that the budget is for.
func (l *fitting) side(e fit.Estimate) fit.Usage {
	if l.place.Backend == backends.CPU {
		return e.Host
	}
	return e.Device
}

// cache is the KV cache there.
func (l *fitting) cache(e fit.Estimate) uint64 { return l.side(e).KV }
