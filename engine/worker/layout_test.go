package worker

import (
	"io"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"hearth/engine/batch"
)

// following is a loop whose layout follows the load: its scheduler knows what the layouts cost, and both are prepared.
func following(t *testing.T, m Model, cfg batch.Config, costs batch.LayoutCosts) *loop {
	t.Helper()
	l, err := newLoop(m, cfg, io.Discard, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	other := cfg
	other.Layout = batch.LayoutStreams
	l.layouts = map[batch.Layout]layoutState{batch.LayoutUnified: {cfg: cfg}, batch.LayoutStreams: {cfg: other}}
	l.sched.AutoLayout(costs)
	return l
}

// TestLayoutFollowsTheLoad changes the layout when nobody has asked for anything for a second, and not before: between two waves of requests it
// would make the second one wait.
func TestLayoutFollowsTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := batch.Config{Cells: 2048, Context: 512, Sequences: 4, Parking: 8, Chunk: 64, Outputs: 4}
		m := newFakeModel(cfg)
		// As measured on a GPU: a cell costs four times as much in the unified layout.
		r := newRigOf(t, m, following(t, m, cfg, batch.LayoutCosts{Base: 4e-3, UnifiedCell: 4e-7 * 100, StreamsCell: 1e-7 * 100, Evaluation: 4e-3}))
		layouts := func() []batch.Layout {
			m.mu.Lock()
			defer m.mu.Unlock()
			return slices.Clone(m.relaid)
		}
		for wave := range 2 {
			var ids []uint64
			for i := range 40 {
				ids = append(ids, r.submit(request(prompt(100+i, i+wave), 100)))
			}
			for i, id := range ids {
				if o := r.result(id); !slices.Equal(o.tokens[0], truth(prompt(100+i, i+wave), 100)) {
					t.Fatalf("request %d: %v", i, o.failed)
				}
			}
			if len(layouts()) > 0 {
				t.Fatal("the layout was changed at once")
			}
			<-time.After(warmWait / 4)
		}
		<-time.After(warmWait)
		if got := layouts(); !slices.Equal(got, []batch.Layout{batch.LayoutStreams}) {
			t.Errorf("the layout was changed to %v", got)
		}
		o := r.result(r.submit(request(prompt(50, 3), 20)))
		if !slices.Equal(o.tokens[0], truth(prompt(50, 3), 20)) {
			t.Error("wrong answer after the change")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.stats.KVLayout != "streams" {
			t.Errorf("says that the layout is %q", r.stats.KVLayout)
		}
	})
}

// TestLayoutChangesUnderConstantLoad has requests of different lengths that leave no moment without a running one: the change
// must come all the same, after a short pause, and every answer must be right.
func TestLayoutChangesUnderConstantLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := batch.Config{Cells: 2048, Context: 512, Sequences: 3, Parking: 8, Chunk: 64, Outputs: 3}
		m := newFakeModel(cfg)
		m.decode = func([]batch.Row) { <-time.After(10 * time.Millisecond) }
		r := newRigOf(t, m, following(t, m, cfg, batch.LayoutCosts{Base: 4e-3, UnifiedCell: 4e-5, StreamsCell: 1e-5}))
		var ids []uint64
		for i := range 30 {
			ids = append(ids, r.submit(request(prompt(50+i, i), 300+i*37%130)))
		}
		for i, id := range ids {
			if o := r.result(id); !slices.Equal(o.tokens[0], truth(prompt(50+i, i), 300+i*37%130)) {
				t.Fatalf("request %d: %v", i, o.failed)
			}
		}
		r.mu.Lock()
		preempted := r.stats.Preemptions
		r.mu.Unlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		if !slices.Equal(m.relaid, []batch.Layout{batch.LayoutStreams}) || preempted == 0 {
			t.Errorf("changed to %v, %d preempted", m.relaid, preempted)
		}
	})
}

// pricedModel takes 3 ms for a step, 10 us for each token of a sequence with a row in streams, and some time for each cell otherwise.
func pricedModel(cfg batch.Config, unifiedCost time.Duration) *fakeModel {
	m := newFakeModel(cfg)
	m.async = true
	m.decode = func(rows []batch.Row) {
		d := 3 * time.Millisecond
		span, tokens := 256, 0
		for _, r := range rows {
			n := (int(r.Pos) + 256) / 256 * 256
			span, tokens = max(span, n), tokens+n
		}
		if m.cfg.Layout == batch.LayoutStreams {
			d += time.Duration(tokens) * 10 * time.Microsecond
		} else {
			d += time.Duration(span) * unifiedCost
		}
		<-time.After(d)
	}
	return m
}

// compared is a loop whose start-up had no time for the other layout.
func compared(t *testing.T) (*rig, func(i int), func() []batch.Layout) {
	cfg := batch.Config{Cells: 2048, Context: 512, Sequences: 4, Parking: 8, Chunk: 64, Outputs: 4}
	m := pricedModel(cfg, 40*time.Microsecond)
	l, err := newLoop(m, cfg, io.Discard, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	first, err := prepareLayout(t.Context(), m, cfg, time.Now().Add(time.Hour), false, testLog(t), func(string, float64) {})
	if err != nil {
		t.Fatal(err)
	}
	l.prime(first)
	l.here = &first
	r := newRigOf(t, m, l)
	ask := func(i int) {
		t.Helper()
		p := prompt(30+i, i)
		began := time.Now()
		if o := r.result(r.submit(request(p, 5))); !slices.Equal(o.tokens[0], truth(p, 5)) {
			t.Errorf("request %d: %v", i, o.failed)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("request %d took %v", i, took)
		}
	}
	relaid := func() []batch.Layout {
		m.mu.Lock()
		defer m.mu.Unlock()
		return slices.Clone(m.relaid)
	}
	return r, ask, relaid
}

// end ends the loop before the test does, which may then look into it.
func (r *rig) end() {
	close(r.l.stop)
	r.ran <- <-r.ran // for the cleanup
}

// TestLayoutsAreComparedLater: the other layout is measured when nobody asks for anything, a request that comes meanwhile is answered
// soon and rightly, and the layout follows the load from then on.
func TestLayoutsAreComparedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, ask, relaid := compared(t)
		<-time.After(warmWait + 100*time.Millisecond) // within the comparison
		if got := relaid(); !slices.Equal(got, []batch.Layout{batch.LayoutStreams}) {
			t.Fatalf("changed to %v in the quiet moment", got)
		}
		ask(2)
		<-time.After(10 * warmWait)
		if got := relaid(); !slices.Equal(got, []batch.Layout{batch.LayoutStreams, batch.LayoutUnified}) {
			t.Fatalf("changed to %v for a request", got)
		}
		<-time.After(2 * compareWait * warmWait)
		if got := relaid(); len(got) != 3 || got[2] != batch.LayoutStreams {
			t.Errorf("changed to %v in the end", got)
		}
		ask(3)
		r.end()
		if l := r.l; l.here != nil || len(l.layouts) != 2 || l.sched.Sharing().Steps == 0 {
			t.Errorf("%d layouts, %v left to compare", len(l.layouts), l.here)
		}
	})
}

// TestComparisonIsGivenUp has a message in every quiet moment: after a few the layout stays, and with it what is cached.
func TestComparisonIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, ask, relaid := compared(t)
		for i := range compareTries + 3 {
			<-time.After(warmWait + 100*time.Millisecond)
			if i > 0 {
				<-time.After((compareWait - 1) * warmWait)
			}
			ask(i)
		}
		if got := relaid(); len(got) != 2*compareTries || got[len(got)-1] != batch.LayoutUnified {
			t.Errorf("changed to %v", got)
		}
		r.end()
		if r.l.here != nil || r.l.sched.Stats().CellsUsed == 0 {
			t.Errorf("%d cells are in use", r.l.sched.Stats().CellsUsed)
		}
	})
}

func TestBothLayoutsAreMeasured(t *testing.T) {
	cfg := batch.Config{Cells: 2048, Context: 512, Sequences: 4, Parking: 8, Chunk: 64, Outputs: 4}
	for _, unifiedCost := range []time.Duration{time.Microsecond, 40 * time.Microsecond} { // of a cell; of a token in streams it is 10 us
		synctest.Test(t, func(t *testing.T) {
			m := pricedModel(cfg, unifiedCost)
			until := time.Now().Add(time.Hour)
			first, err := prepareLayout(t.Context(), m, cfg, until, false, testLog(t), func(string, float64) {})
			if err != nil {
				t.Fatal(err)
			}
			start, states, costs, auto, err := bothLayouts(t.Context(), m, first, until, testLog(t), func(string, float64) {})
			if err != nil || !auto || len(states) != 2 {
				t.Fatalf("auto %v, %d states, %v", auto, len(states), err)
			}
			want, relaid := batch.LayoutUnified, []batch.Layout{batch.LayoutStreams, batch.LayoutUnified}
			if unifiedCost > 10*time.Microsecond {
				want, relaid = batch.LayoutStreams, relaid[:1]
			}
			if start.cfg.Layout != want || !slices.Equal(m.relaid, relaid) {
				t.Errorf("starts with %s after %v, costs %+v", start.cfg.Layout, m.relaid, costs)
			}
			if got, want := costs.StreamsCell, 10e-6; math.Abs(got-want) > want/10 {
				t.Errorf("a token in streams costs %g s, want %g", got, want)
			}
		})
	}
}

func TestTooSmallAContextIsNoChoice(t *testing.T) {
	m := newFakeModel(batch.Config{Cells: 128, Context: 64, Sequences: 4, Chunk: 32, Outputs: 4})
	until := time.Now().Add(time.Hour)
	first, err := prepareLayout(t.Context(), m, m.cfg, until, false, testLog(t), func(string, float64) {})
	if err != nil {
		t.Fatal(err)
	}
	if start, _, _, auto, err := bothLayouts(t.Context(), m, first, until, testLog(t), func(string, float64) {}); auto || err != nil || start.cfg.Layout != batch.LayoutUnified {
		t.Errorf("auto %v, %s, %v", auto, start.cfg.Layout, err)
	}
}
