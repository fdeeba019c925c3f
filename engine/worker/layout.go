package worker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// layoutState is what start-up learned about one layout of the KV cache.
type layoutState struct {
	cfg      batch.Config // with what the self-test switched off
	features []engine.Feature
	costs    []warmed
	warmer   *warmer // has shapes left for later, perhaps; nil on a CPU
}

// prepareLayout tests and warms the layout that the context has now, until a time.
func prepareLayout(ctx context.Context, m Model, cfg batch.Config, until time.Time, brief bool, log *slog.Logger, progress func(string, float64)) (layoutState, error) {
	progress("self-test", 0)
	st := layoutState{cfg: cfg}
	var err error
	var longest time.Duration
	if st.features, longest, err = selfTest(m, &st.cfg); err != nil {
		return st, err
	}
	st.costs, st.warmer, err = warmUp(ctx, m, st.cfg, until, longest, brief, log, func(f float64) { progress("warm-up", f) })
	if st.warmer != nil {
		st.cfg.CopyTime, st.cfg.Host = st.warmer.copyTime, st.warmer.cfg.Host
	}
	return st, err
}

// prime teaches the scheduler what the shapes cost.
func (l *loop) prime(st layoutState) {
	for _, c := range st.costs {
		l.sched.Prime(c.shape, c.span, c.duration)
	}
}

// relayout gives the drained context the layout that the scheduler wished for. Cached prefixes are lost, queued requests stay.
func (l *loop) relayout() error {
	l.flush() // the last answers end before this, not behind it
	to := l.wish
	l.wished = false
	st, known := l.layouts[to]
	if !known {
		return nil
	}
	began := l.now()
	cfg, err := l.model.Relayout(to)
	if err != nil {
		return fmt.Errorf("%w: change to the %s layout: %w", ErrBackend, to, err)
	}
	st.cfg.Cells, st.cfg.Context, st.cfg.Window, st.cfg.WindowCells = cfg.Cells, cfg.Context, cfg.Window, cfg.WindowCells
	if err := l.sched.Relayout(st.cfg); err != nil {
		return fmt.Errorf("%w: change to the %s layout: %w", ErrBackend, to, err)
	}
	l.prime(st)
	l.later = nil // it was made for the other context
	l.log.Info("changed the KV layout to suit the load", "layout", to.String(), "took", l.now()-began)
	return nil
}

// bothLayouts prepares the other layout, too, and chooses between them by what their decode steps cost here: an unshared load of
// assumedRows sequences decides, because most loads share little and a shared one shows itself. auto is false when the
// measures do not say enough to choose by, or when the other layout failed: then the present one stays for good.
func bothLayouts(ctx context.Context, m Model, first layoutState, until time.Time, log *slog.Logger, progress func(string, float64)) (
	start layoutState, states map[batch.Layout]layoutState, costs batch.LayoutCosts, auto bool, err error,
) {
	here := first.cfg.Layout
	there := batch.LayoutStreams
	if here == there {
		there = batch.LayoutUnified
	}
	states = map[batch.Layout]layoutState{here: first}
	cfg, err := m.Relayout(there)
	if err == nil {
		cfg.TenantCache, cfg.QueueLimit, cfg.ITLTarget = first.cfg.TenantCache, first.cfg.QueueLimit, first.cfg.ITLTarget
		cfg.NoPad = first.cfg.NoPad
		var st layoutState
		if st, err = prepareLayout(ctx, m, cfg, until, time.Until(until) < fullWarmUp, log, progress); err == nil {
			states[there] = st
		}
	}
	if ctx.Err() != nil {
		return first, nil, costs, false, context.Cause(ctx)
	}
	if err != nil {
		log.Warn("the other KV layout does not work here", "layout", there.String(), "err", err)
	} else if costs, auto = layoutCosts(states); !auto {
		log.Warn("the KV layouts' costs cannot be told apart: the one that there is stays", "layout", here.String(), "costs", costs)
	}
	if auto {
		rows := float64(min(assumedRows, first.cfg.Sequences))
		load := batch.Sharing{Rows: rows, Tokens: rows * assumedTokens, Distinct: rows * assumedTokens, Mixed: assumedMixed}
		if batch.ChooseLayout(costs, load, here) == there {
			return states[there], states, costs, true, nil
		}
	}
	if _, err := m.Relayout(here); err != nil {
		return first, nil, costs, false, err
	}
	return first, states, costs, auto, nil
}

// fullWarmUp is how much time must be left to run all shapes of the other layout, too.
const fullWarmUp = 8 * time.Second

// The load that the first layout is chosen for: sequences, tokens of each, and the share of steps with prefill rows.
const (
	assumedRows   = 16
	assumedTokens = 1024
	assumedMixed  = 0.1
)

// costRows is the number of rows at which the layouts' decode steps are compared, if that was measured.
const costRows = 8

// layoutCosts fits the costs to the steps of the warm-ups.
func layoutCosts(states map[batch.Layout]layoutState) (batch.LayoutCosts, bool) {
	var ms []batch.Measure
	for layout, st := range states {
		for _, c := range st.costs {
			if c.shape.Prefill > 0 || c.shape.Decode < 2 {
				continue
			}
			cells := (c.span + 255) / 256 * 256 // what the attention reads
			if layout == batch.LayoutStreams {
				cells *= c.shape.Decode
			}
			ms = append(ms, batch.Measure{Layout: layout, Rows: c.shape.Decode, Cells: cells, Time: c.duration})
		}
	}
	return batch.FitLayoutCosts(ms, costRows, evaluationCost(states, costRows))
}

// evaluationRows is the size of the evaluation that streams and the unified layout are compared by.
const evaluationRows = 128

// evaluationCost is how much more a prompt's rows cost in an evaluation of their own, in streams, than in one with decode rows.
func evaluationCost(states map[batch.Layout]layoutState, rows int) time.Duration {
	least := func(l batch.Layout, s batch.Shape) (d time.Duration) {
		for _, c := range states[l].costs {
			if c.shape == s && (d == 0 || c.duration < d) {
				d = c.duration
			}
		}
		return d
	}
	apart := least(batch.LayoutStreams, batch.Shape{Prefill: evaluationRows})
	mixed := least(batch.LayoutUnified, batch.Shape{Decode: rows, Prefill: evaluationRows - rows})
	decode := least(batch.LayoutUnified, batch.Shape{Decode: rows})
	if apart == 0 || mixed == 0 || decode == 0 { // a model or a context too small for these shapes
		return least(batch.LayoutStreams, batch.Shape{Decode: 1})
	}
	return max(0, apart-max(0, mixed-decode))
}

// prefillSequence computes length tokens of a sequence in chunks, until the context ends.
func prefillSequence(ctx context.Context, m Model, chunk, seq, length int) error {
	var rows []batch.Row
	for at := 0; at < length; at += len(rows) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
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
