package main

import (
	"cmp"
	"math"

	"hearth/backends"
	"hearth/configs"
	"hearth/engine"
	"hearth/models/fit"
	"hearth/models/gguf"
)

// Limits of the planner.
const (
	cellStep = 256 // llama.cpp rounds a context up to this
	// leastContext is the shortest context that the planner makes of one that nobody asked for, in tokens; with less memory
	// layers stay on the host instead.
	leastContext = 4096
	// spareContexts is how many contexts of KV cells a GPU with room gets, so that conversations stay cached beside the one
	// that runs: what the worker would choose itself.
	spareContexts = 4
)

// fitting is one model on its way to one place. fit changes spec.
type fitting struct {
	f       *gguf.File
	trained int
	run     configs.Run
	place   Placement
	spec    *engine.LoadSpec
	budget  uint64 // bytes of the device
	warn    func(text string, fields ...any)
	inform  func(text string, fields ...any)
}

// fit shrinks the load until it fits into the budget: fewer cached contexts first, then a shorter context where nobody
// asked for one, then fewer layers on the device. The estimate is of what is left.
func (l *fitting) fit() (fit.Estimate, error) {
	context := pad(l.run.Context)
	if context == 0 {
		context = pad(min(engine.DefaultContext, cmp.Or(l.trained, engine.DefaultContext)))
	}
	sequences := cmp.Or(l.run.MaxSequences, engine.DefaultMaxSequences)
	r := fit.Request{
		Cells: max(pad(l.run.Cells), context), Chunk: l.run.Chunk, Outputs: sequences, Sequences: sequences, KVTypeK: l.run.KVTypeK, KVTypeV: l.run.KVTypeV,
		FlashAttention: l.run.FlashAttention != "off", NoMMap: !l.run.MMap,
	}
	switch {
	case l.pooled(): // one step holds a whole text
		r.Cells = pad(max(context, cmp.Or(l.run.Chunk, 2048)))
		r.Chunk = r.Cells
	case l.run.KVLayout == "streams":
		r.Cells, r.Streams = context*sequences, true
	}
	if l.place.Backend == backends.CPU {
		r.HostLayers = fit.AllOnHost
		r, err := l.windows(r)
		if err != nil {
			return fit.Estimate{}, err
		}
		return fit.Of(l.f, r)
	}
	if l.run.GPULayers >= 0 {
		all, err := fit.Of(l.f, r)
		if err != nil {
			return all, err
		}
		r.HostLayers = max(all.Layers-l.run.GPULayers, 0)
	}
	if l.pooled() {
		return l.layers(r)
	}
	r, err := l.windows(r)
	if err != nil {
		return fit.Estimate{}, err
	}
	sequences = r.Sequences
	limit := r.Cells
	if l.run.KVLayout != "streams" && l.run.Cells == 0 {
		limit = context * spareContexts
	}
	most, err := fit.MaxCells(l.f, r, l.budget, math.MaxUint64, cellStep, limit)
	if err != nil {
		return fit.Estimate{}, err
	}
	e, err := l.cells(r, context, most)
	if err != nil || l.run.KVLayout != "auto" {
		return e, err
	}
	// With room for a context for each sequence the worker may change to that layout when it is faster.
	r.Cells, r.Streams = context*sequences, true
	wide, err := fit.Of(l.f, r)
	if err == nil && wide.Device.KV < l.rest(wide)/2 && wide.Device.Total() > e.Device.Total() {
		e.Device = wide.Device
	}
	return e, err
}

// rest is what weights and compute buffers leave of the budget.
func (l *fitting) rest(e fit.Estimate) uint64 {
	return l.budget - min(l.budget, e.Device.Weights+e.Device.Compute)
}

// cells gives the load as many KV cells as it wants and as fit: there is room for most.
func (l *fitting) cells(r fit.Request, context, most int) (fit.Estimate, error) {
	switch {
	case most < context && l.run.Context == 0 && most >= leastContext:
		r.Cells, l.spec.Context, l.spec.Cells = most, most, most
		l.warn("a shorter context than usual, the device's memory is small", "context", most)
	case most < context:
		r.Cells = context
		l.spec.Context, l.spec.Cells = context, context
		if l.spec.KVLayout == "streams" {
			l.spec.KVLayout, r.Streams = "unified", false
		}
		return l.layers(r)
	case l.run.KVLayout == "streams":
		if n := most / context; n < r.Cells/context {
			l.spec.MaxSequences, r.Cells, r.Sequences = n, n*context, n
			l.warn("fewer sequences than asked for: each has KV cells of its own, and the device's memory is small", "max_sequences", n)
		}
	case l.run.Cells == 0:
		r.Cells = l.spare(r, context, most)
		l.spec.Cells = r.Cells
	case most < r.Cells:
		r.Cells, l.spec.Cells = most, most
		l.warn("fewer KV cells than asked for, the device's memory is small", "cells", most, "asked", l.run.Cells)
	}
	return fit.Of(l.f, r)
}

// spare is how many cells a GPU gets when nobody said: whole contexts, as many as leave half of the memory beside the
// weights free.
func (l *fitting) spare(r fit.Request, context, most int) int {
	r.Cells = context
	one, err := fit.Of(l.f, r)
	if err != nil {
		return context // the caller's estimate says so
	}
	for n := spareContexts; n > 1; n /= 2 {
		if n*context <= most && uint64(n)*one.Device.KV < l.rest(one)/2 {
			return n * context
		}
	}
	return context
}

// layers leaves as many layers on the host as it takes.
func (l *fitting) layers(r fit.Request) (fit.Estimate, error) {
	least := r.HostLayers // what was asked for
	host, e, err := fit.HostLayers(l.f, r, l.budget)
	if err != nil || host <= least {
		if err == nil {
			r.HostLayers = least
			e, err = fit.Of(l.f, r)
		}
		return e, err
	}
	l.spec.GPULayers = e.Offloaded
	l.warn("the model does not fit on the device: some layers stay on the host and make it slow", "layers_on_device", e.Offloaded, "layers", e.Layers)
	return e, nil
}

// pad rounds up as llama.cpp rounds a context.
func pad(n int) int { return (n + cellStep - 1) / cellStep * cellStep }
