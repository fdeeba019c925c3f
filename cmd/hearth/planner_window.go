package main

import (
	"hearth/backends"
	"hearth/engine"
	"hearth/models/fit"
)

// windows decides what layers with a sliding window keep, by the worker's own rule: all cells where they take at most a quarter
// of the memory beside the weights, else a window for each sequence, and fewer
// sequences where those do not fit and nobody asked for a number. The worker is told of windows only: it
// may still find less memory than was planned with, and then choose them itself.
func (l *fitting) windows(r fit.Request) (fit.Request, error) {
	window, architecture, err := fit.Window(l.f)
	if err != nil {
		return r, err
	}
	if _, standard := engine.WindowPeriod(architecture); !standard || window == 0 || l.run.WindowCache == "full" || l.pooled() {
		return r, nil
	}
	all, err := fit.Of(l.f, r)
	if err != nil {
		return r, err
	}
	kv, spare := l.cache(all), l.budget-min(l.budget, l.side(all).Weights)
	if l.run.WindowCache != "window" && kv <= spare/engine.FullWindowShare {
		return r, nil
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
	if err != nil || l.cache(e) >= kv { // the windows of all sequences take as many cells as the whole context
		return r, err
	}
	l.spec.WindowCache = "window"
	if small.Sequences < r.Sequences {
		l.spec.MaxSequences = small.Sequences
	}
	l.inform("layers with a sliding window keep a window for each sequence: all cells would take more than a quarter of the memory beside the weights, or it was set so",
		"kv_bytes", l.cache(e), "all_cells_bytes", kv, "spare_bytes", spare, "sequences", small.Sequences, "window", window)
	return small, nil
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
