package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/sysroot"
	"hearth/configs"
	"hearth/engine"
	"hearth/engine/supervisor"
	"hearth/models/gguf"
)

// planner fits models into the memory of the device that was chosen for them: it caps the KV cells, and after them the
// layers on the device, and tells the pool how much the model will take. Where nothing says how much memory there is, it
// plans nothing. It may be used from several goroutines.
type planner struct {
	root    sysroot.FS
	environ backends.Environ
	log     *slog.Logger
	// held is what the pool has planned on a device. Nil before there is a pool: nothing.
	held func(device string) uint64

	mu       sync.Mutex
	capacity map[string]uint64 // bytes for all models, by device
}

func newPlanner(root sysroot.FS, environ backends.Environ, log *slog.Logger) *planner {
	return &planner{root: root, environ: environ, log: log, capacity: map[string]uint64{}}
}

// Capacity implements supervisor.Config.Capacity: what all models together may take on the device, false when unknown.
func (p *planner) Capacity(device string) (uint64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.capacity[device]
	return n, ok
}

// plan changes spec so that the model fits on the place, and returns what it will take there. trained is the context that
// the model was trained for, 0 when unknown.
func (p *planner) plan(ctx context.Context, f *gguf.File, trained int, run configs.Run, place Placement, spec *engine.LoadSpec) ([]supervisor.Need, error) {
	device, budget, err := p.measure(ctx, place)
	if err != nil {
		return nil, err
	}
	bytes, ok := budget.Bytes.Get()
	if !ok {
		p.log.Debug("memory is not planned", "model", spec.Name, "device", device, "reason", budget.Why)
		return nil, nil
	}
	l := fitting{f: f, trained: trained, run: run, place: place, spec: spec, budget: bytes}
	l.warn = func(text string, fields ...any) {
		p.log.Warn(text, append([]any{"model", spec.Name, "place", place.Label, "budget_bytes", bytes, "budget", budget.Why}, fields...)...)
	}
	l.inform = func(text string, fields ...any) {
		p.log.Info(text, append([]any{"model", spec.Name, "place", place.Label, "budget_bytes", bytes}, fields...)...)
	}
	e, err := l.fit()
	if err != nil {
		return nil, fmt.Errorf("estimate memory: %w", err)
	}
	need := e.Device.Total()
	if place.Backend == backends.CPU {
		need = e.Host.Total()
	}
	p.log.Debug("memory planned", "model", spec.Name, "device", device, "bytes", need, "of", bytes, "budget", budget.Why, "cells", e.Cells, "layers_on_device", e.Offloaded)
	return []supervisor.Need{{Device: device, Bytes: need}}, nil
}

// measure looks at the device's memory now and books its capacity. device is its key in Need.
func (p *planner) measure(ctx context.Context, place Placement) (device string, budget backends.Budget, err error) {
	device = place.WantPCI
	if place.Backend == backends.CPU {
		device = backends.CPU
	}
	if device == "" {
		return "", backends.Budget{Why: "the place has no PCI address"}, nil
	}
	sys, err := kfd.Read(ctx, p.root)
	if err != nil {
		return "", backends.Budget{}, fmt.Errorf("read memory: %w", err)
	}
	held := uint64(0)
	if p.held != nil {
		held = p.held(device)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if device == backends.CPU {
		// Weights are mapped files, which count as available while they lie in memory: only the total is a bound.
		total, ok := sys.MemTotal.Get()
		if !ok || total < backends.DefaultReserve {
			return device, backends.Budget{Why: "the system's memory is unknown"}, nil
		}
		p.capacity[device] = total - backends.DefaultReserve
		return device, backends.Budget{Bytes: backends.Some(p.capacity[device]), Why: "system memory less a reserve of 2 GiB"}, nil
	}
	budget = backends.Budget{Why: "the kernel does not list the device"}
	for _, d := range sys.Devices(p.environ) {
		if string(d.PCI) == device {
			in := backends.BudgetInput{Kind: d.Kind, Memory: d.Memory, MemAvailable: sys.MemAvailable}
			if held == 0 {
				in.BackendFree = place.Free // measured by a probe, perhaps before other models were loaded
			}
			budget = backends.BudgetFor(in)
		}
	}
	free, ok := budget.Bytes.Get()
	if !ok {
		return device, budget, nil
	}
	// What our own models hold is no loss: the pool can unload them. They may hold less than was planned, so the figure of
	// the empty device bounds it.
	all := free + held
	if before, known := p.capacity[device]; known && held > 0 {
		all = min(all, before)
	}
	p.capacity[device] = all
	budget.Bytes = backends.Some(all)
	return device, budget, nil
}
