package worker

import (
	"io"
	"slices"
	"testing"

	"hearth/engine/batch"
)

func TestLayoutFollowsTheLoad(t *testing.T) {
	cfg := batch.Config{Cells: 2048, Context: 512, Sequences: 4, Parking: 8, Chunk: 64, Outputs: 4}
	m := newFakeModel(cfg)
	l, err := newLoop(m, cfg, io.Discard, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	other := cfg
	other.Layout = batch.LayoutStreams
	l.layouts = map[batch.Layout]layoutState{batch.LayoutUnified: {cfg: cfg}, batch.LayoutStreams: {cfg: other}}
	// As measured on a GPU: a cell costs four times as much in the unified layout.
	l.sched.AutoLayout(batch.LayoutCosts{Base: 4e-3, UnifiedCell: 4e-7 * 100, StreamsCell: 1e-7 * 100, Evaluation: 4e-3})
	r := newRigOf(t, m, l)
	var ids []uint64
	for i := range 40 {
		ids = append(ids, r.submit(request(prompt(100+i, i), 100)))
	}
	for i, id := range ids {
		if o := r.result(id); !slices.Equal(o.tokens[0], truth(prompt(100+i, i), 100)) {
			t.Fatalf("request %d: %v", i, o.failed)
		}
	}
	// Nothing runs: the scheduler may have proposed it after the last one.
	o := r.result(r.submit(request(prompt(50, 3), 20)))
	if !slices.Equal(o.tokens[0], truth(prompt(50, 3), 20)) {
		t.Error("wrong answer after the change")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.relaid, batch.LayoutStreams) {
		t.Errorf("the layout was changed to %v", m.relaid)
	}
}

func TestBothLayoutsAreMeasuredAndTheFirstComesBack(t *testing.T) {
	cfg := batch.Config{Cells: 2048, Context: 512, Sequences: 4, Parking: 8, Chunk: 64, Outputs: 4}
	m := newFakeModel(cfg)
	first, err := prepareLayout(t.Context(), m, cfg, func(string, float64) {})
	if err != nil {
		t.Fatal(err)
	}
	states, costs, auto, err := bothLayouts(t.Context(), m, first, func(string, float64) {})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.relaid, []batch.Layout{batch.LayoutStreams, batch.LayoutUnified}) || len(states) != 2 {
		t.Errorf("changed to %v, %d states", m.relaid, len(states))
	}
	if auto && (costs.UnifiedCell <= 0 || costs.StreamsCell <= 0) {
		t.Errorf("costs %+v", costs)
	}
	// Too small a context to measure is no error and no choice.
	m = newFakeModel(batch.Config{Cells: 128, Context: 64, Sequences: 4, Chunk: 32, Outputs: 4})
	if first, err = prepareLayout(t.Context(), m, m.cfg, func(string, float64) {}); err != nil {
		t.Fatal(err)
	}
	if _, _, auto, err = bothLayouts(t.Context(), m, first, func(string, float64) {}); auto || err != nil {
		t.Errorf("auto %v, %v", auto, err)
	}
}
