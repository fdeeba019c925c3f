package worker

import (
	"context"
	"fmt"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// layoutState is what start-up learned about one layout of the KV cache.
type layoutState struct {
	cfg      batch.Config // with what the self-test switched off
	features []engine.Feature
	costs    []warmed
}

// prepareLayout tests and warms the layout that the context has now.
func prepareLayout(ctx context.Context, m Model, cfg batch.Config, progress func(string, float64)) (layoutState, error) {
	progress("self-test", 0)
	st := layoutState{cfg: cfg}
	var err error
	if st.features, err = selfTest(m, &st.cfg); err != nil {
		return st, err
	}
	st.costs, err = warmUp(ctx, m, st.cfg, func(f float64) { progress("warm-up", f) })
	return st, err
}

// prime teaches the scheduler what the shapes cost.
func (l *loop) prime(st layoutState) {
	for _, c := range st.costs {
		l.sched.Prime(c.shape, c.span, c.duration)
	}
}

// relayout gives the drained context another layout. Cached prefixes are lost, queued requests stay.
func (l *loop) relayout(to batch.Layout) error {
	st, known := l.layouts[to]
	if !known {
		return nil
	}
	began := l.now()
	cfg, err := l.model.Relayout(to)
	if err != nil {
		return fmt.Errorf("%w: change to the %s layout: %w", ErrBackend, to, err)
	}
	st.cfg.Cells, st.cfg.Context = cfg.Cells, cfg.Context
	if err := l.sched.Relayout(st.cfg); err != nil {
		return fmt.Errorf("%w: change to the %s layout: %w", ErrBackend, to, err)
	}
	l.prime(st)
	l.log.Info("changed the KV layout to suit the load", "layout", to.String(), "took", l.now()-began)
	return nil
}

// bothLayouts measures decode steps in either layout and comes back to first's. auto is false when the measures do not
// say enough to choose by, or when the other layout failed: then the present one stays.
func bothLayouts(ctx context.Context, m Model, first layoutState, progress func(string, float64)) (
	states map[batch.Layout]layoutState, costs batch.LayoutCosts, auto bool, err error,
) {
	here := first.cfg.Layout
	there := batch.LayoutStreams
	if here == there {
		there = batch.LayoutUnified
	}
	states = map[batch.Layout]layoutState{here: first}
	measures, evaluation, err := measureLayout(m, first.cfg)
	if err != nil {
		return nil, costs, false, err
	}
	cfg, err := m.Relayout(there)
	if err == nil {
		cfg.TenantCache, cfg.QueueLimit, cfg.ITLTarget = first.cfg.TenantCache, first.cfg.QueueLimit, first.cfg.ITLTarget
		var st layoutState
		if st, err = prepareLayout(ctx, m, cfg, progress); err == nil {
			states[there] = st
			var more []batch.Measure
			more, _, err = measureLayout(m, st.cfg)
			measures = append(measures, more...)
		}
	}
	usable := err == nil
	if _, err := m.Relayout(here); err != nil {
		return nil, costs, false, err
	}
	if !usable {
		return nil, costs, false, nil
	}
	costs, auto = batch.FitLayoutCosts(measures, evaluation)
	return states, costs, auto, nil
}

// Sizes of the measurement: sequences that decode together, and the two lengths they have (in tokens).
const (
	measureRows  = 8
	measureShort = 64
	measureLong  = 1024
)

// measureLayout times decode steps at two lengths. evaluation is what one more pass over the weights costs: a step of
// one row on an almost empty cache.
func measureLayout(m Model, cfg batch.Config) (out []batch.Measure, evaluation time.Duration, err error) {
	n := min(measureRows, cfg.Sequences)
	long := min(measureLong, cfg.Context-8)
	if cfg.Layout == batch.LayoutUnified {
		long = min(long, cfg.Cells/n-8)
	}
	if n < 2 || long < 2*measureShort {
		return nil, 0, nil // too small a context to matter
	}
	for _, length := range []int{measureShort, long} {
		if err := m.Clear(); err != nil {
			return nil, 0, err
		}
		for s := range n {
			if err := prefillSequence(m, cfg.Chunk, s, length); err != nil {
				return nil, 0, err
			}
		}
		d, err := timeSteps(m, n, length)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, batch.Measure{Layout: cfg.Layout, Rows: n, Cells: n * length, Time: d})
	}
	if err := m.Clear(); err != nil {
		return nil, 0, err
	}
	evaluation, err = timeSteps(m, 1, 0)
	if err != nil {
		return nil, 0, err
	}
	return out, evaluation, m.Clear()
}

// prefillSequence computes length tokens of a sequence in chunks.
func prefillSequence(m Model, chunk, seq, length int) error {
	var rows []batch.Row
	for at := 0; at < length; at += len(rows) {
		rows = rows[:0]
		for i := at; i < min(at+chunk, length); i++ {
			rows = append(rows, batch.Row{Token: fillToken(m, i+seq), Pos: int32(i), Seq: int32(seq), Output: -1, Kind: batch.RowPrefill})
		}
		rows[len(rows)-1].Output = 0
		if err := decode(m, rows); err != nil {
			return err
		}
	}
	return nil
}

// timeSteps is the fastest of a few decode steps of n sequences that have length tokens each.
func timeSteps(m Model, n, length int) (time.Duration, error) {
	best := time.Duration(0)
	for k := range 5 {
		var rows []batch.Row
		for s := range n {
			rows = append(rows, batch.Row{Token: fillToken(m, k+s), Pos: int32(length + k), Seq: int32(s), Output: int32(s)})
		}
		began := time.Now()
		if err := decode(m, rows); err != nil {
			return 0, err
		}
		if d := time.Since(began); k > 0 && (best == 0 || d < best) { // the first may compile
			best = d
		}
	}
	return best, nil
}
