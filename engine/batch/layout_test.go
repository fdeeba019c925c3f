package batch_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/batch/kvsim"
)

// measured is facts section 8: 8B Q4_K, 16 rows, unshared, ms.
func measured() batch.LayoutCosts {
	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	c, ok := batch.FitLayoutCosts([]batch.Measure{
		{Layout: batch.LayoutUnified, Rows: 16, Cells: 16 * 512, Time: ms(19.2)},
		{Layout: batch.LayoutUnified, Rows: 16, Cells: 16 * 4096, Time: ms(41.2)},
		{Layout: batch.LayoutStreams, Rows: 16, Cells: 16 * 512, Time: ms(17.0)},
		{Layout: batch.LayoutStreams, Rows: 16, Cells: 16 * 4096, Time: ms(22.3)},
	}, 8, ms(4.8))
	if !ok {
		panic("no fit")
	}
	return c
}

func TestChooseLayout(t *testing.T) {
	for _, tc := range []struct {
		name    string
		sharing batch.Sharing
		want    batch.Layout
	}{
		{"16 clients, 4k each, nothing shared", batch.Sharing{Rows: 16, Tokens: 65536, Distinct: 65536}, batch.LayoutStreams},
		{"16 clients, one 4k prefix", batch.Sharing{Rows: 16, Tokens: 67000, Distinct: 6000, Mixed: 0.1}, batch.LayoutUnified},
	} {
		for _, current := range []batch.Layout{batch.LayoutUnified, batch.LayoutStreams} {
			if got := batch.ChooseLayout(measured(), tc.sharing, current); got != tc.want {
				t.Errorf("%s: %s from %s, want %s", tc.name, got, current, tc.want)
			}
		}
	}
	for _, current := range []batch.Layout{batch.LayoutUnified, batch.LayoutStreams} {
		one := batch.Sharing{Rows: 1, Tokens: 8192, Distinct: 8192}
		if got := batch.ChooseLayout(measured(), one, current); got != current {
			t.Errorf("one client: %s from %s", got, current)
		}
		even := batch.Sharing{Rows: 8, Tokens: 12000, Distinct: 3000, Mixed: 0}
		if got := batch.ChooseLayout(measured(), even, current); got != current {
			t.Errorf("alike: %s from %s", got, current)
		}
	}
}

func TestFitLayoutCostsNeedsBoth(t *testing.T) {
	one := []batch.Measure{
		{Layout: batch.LayoutUnified, Rows: 4, Cells: 512, Time: time.Millisecond},
		{Layout: batch.LayoutUnified, Rows: 4, Cells: 4096, Time: 2 * time.Millisecond},
	}
	if _, ok := batch.FitLayoutCosts(one, 4, time.Millisecond); ok {
		t.Error("fits one layout")
	}
}

// TestRelayout lets the load choose: unshared clients bring streams, shared ones unified, and the queue survives.
func TestRelayout(t *testing.T) {
	unified := batch.Config{Cells: 4096, Context: 512, Sequences: 8, Parking: 8, Chunk: 64, Outputs: 16, MaxRunning: 6}
	streams := batch.Config{Layout: batch.LayoutStreams, Context: 512, Sequences: 8, Chunk: 64, Outputs: 16, MaxRunning: 6}
	w := newWorld(t, unified)
	w.s.AutoLayout(shortSequences())
	rng := rand.New(rand.NewPCG(9, 9))
	shared := random(rng, 300)
	for i := range shared {
		shared[i] %= vocab
	}
	id := batch.JobID(0)
	phase := func(share bool) {
		for range 24 {
			id++
			prompt := random(rng, 100)
			for i := range prompt {
				prompt[i] %= vocab
			}
			if share {
				prompt = append(append(prompt[:0:0], shared...), prompt[:20]...)
			}
			w.must(w.submit(batch.Job{ID: id, Prompt: prompt, MaxTokens: 150, Cache: true}))
		}
	}
	swap := func(want batch.Layout, cfg batch.Config) {
		t.Helper()
		w.run(20000)
		if w.wish == nil || *w.wish != want {
			t.Fatalf("wishes %v, want %s; sharing %+v", w.wish, want, w.s.Sharing())
		}
		w.wish = nil
		w.must(w.submit(batch.Job{ID: 10000 + id, Prompt: shared, MaxTokens: 5, Cache: true})) // waits through the change
		w.must(w.s.Relayout(cfg))
		sim := kvsim.ConfigOf(cfg)
		sim.Vocab = vocab
		w.cfg, w.sim = cfg, kvsim.New(sim)
		w.run(1000)
	}
	phase(false)
	swap(batch.LayoutStreams, streams)
	phase(true)
	swap(batch.LayoutUnified, unified)
}

// drainWorld is a load of four running choices on a machine where cells are dear, in steps of a given time.
func drainWorld(t *testing.T, step time.Duration) (w *world, submit func()) {
	w = newWorld(t, batch.Config{Cells: 1024, Context: 256, Sequences: 4, Chunk: 64, Outputs: 4})
	w.step, w.drains = step, true
	w.s.AutoLayout(batch.LayoutCosts{Base: 0.010, UnifiedCell: 200e-6, StreamsCell: 100e-6})
	rng := rand.New(rand.NewPCG(9, 9))
	id := batch.JobID(0)
	return w, func() {
		id++
		prompt := random(rng, 20)
		for i := range prompt {
			prompt[i] %= vocab
		}
		w.must(w.submit(batch.Job{ID: id, Prompt: prompt, MaxTokens: 100 + rng.IntN(130), Cache: true}))
	}
}

// TestForcedDrain is a load that never pauses: the layout changes all the same, soon, and nobody notices but by a pause.
func TestForcedDrain(t *testing.T) {
	w, submit := drainWorld(t, 10*time.Millisecond)
	steps := 0
	for ; w.wish == nil && steps < 4000; steps++ {
		for len(w.jobs) < 8 {
			submit()
		}
		w.turn()
	}
	if w.wish == nil || *w.wish != batch.LayoutStreams {
		t.Fatalf("wishes %v after %d steps, sharing %+v", w.wish, steps, w.s.Sharing())
	}
	if st := w.s.Stats(); st.Running != 0 || st.Preemptions == 0 {
		t.Errorf("%+v", st)
	}
	streams := batch.Config{Layout: batch.LayoutStreams, Context: 256, Sequences: 4, Chunk: 64, Outputs: 4}
	w.must(w.s.Relayout(streams))
	sim := kvsim.ConfigOf(streams)
	sim.Vocab = vocab
	w.cfg, w.sim = streams, kvsim.New(sim)
	w.run(4000)
	if len(w.jobs) > 0 {
		t.Errorf("%d jobs are left", len(w.jobs))
	}
}

// TestDrainWithNothingLeft ends everything that runs in the middle of a pause: those who wait must not wait for another request.
func TestDrainWithNothingLeft(t *testing.T) {
	for name, end := range map[string]func(*world, batch.JobID){
		"cancelled": func(w *world, id batch.JobID) { w.s.Cancel(w.now, id) },
		"held":      func(w *world, id batch.JobID) { w.hold(id, true) },
	} {
		t.Run(name, func(t *testing.T) {
			w, submit := drainWorld(t, 10*time.Millisecond)
			draining := func() bool { return w.s.Stats().Running < 3 && w.s.Stats().Waiting > 3 }
			for steps := 0; !draining(); steps++ {
				for len(w.jobs) < 8 {
					submit()
				}
				if w.turn(); w.wish != nil || steps > 4000 {
					t.Fatalf("no pause before step %d, wishes %v", steps, w.wish)
				}
			}
			for id, wj := range w.jobs {
				if len(wj.running) > 0 {
					end(w, id)
				}
			}
			for w.wish == nil {
				if !w.turn() && w.wish == nil {
					t.Fatalf("idle: %+v", w.s.Stats())
				}
			}
			for id := range w.jobs {
				w.hold(id, false)
			}
			w.run(4000) // the wish is ignored
		})
	}
}

// TestDrainIsGivenUp wants a pause that would cost more than a second of recomputation to end without a change, and a caller
// that ignores the wish to lose nothing.
func TestDrainIsGivenUp(t *testing.T) {
	for name, step := range map[string]time.Duration{"too dear": 900 * time.Millisecond, "ignored": 10 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			w, submit := drainWorld(t, step)
			for range 80 {
				submit()
			}
			for i := 0; i < 6000 && len(w.jobs) > 0; i++ {
				w.turn()
			}
			if len(w.done) != 80 {
				t.Errorf("%d of 80 jobs are done", len(w.done))
			}
			if n := w.s.Stats().Preemptions; (n > 0) != (name == "ignored") {
				t.Errorf("%d preempted", n)
			}
		})
	}
}

// shortSequences is a machine on which cells cost so much that the test needs few of them.
func shortSequences() batch.LayoutCosts {
	return batch.LayoutCosts{Base: 0.010, UnifiedCell: 20e-6, StreamsCell: 10e-6}
}

func TestRelayoutRefuses(t *testing.T) {
	w := newWorld(t, variants["unified"])
	if err := w.s.Relayout(batch.Config{}); !errors.Is(err, batch.ErrConfig) {
		t.Errorf("bad config: %v", err)
	}
	w.must(w.submit(batch.Job{ID: 1, Prompt: []int32{1, 2}, MaxTokens: 5}))
	w.turn()
	if err := w.s.Relayout(variants["unified"]); !errors.Is(err, batch.ErrBusy) {
		t.Errorf("busy: %v", err)
	}
}

func TestWarmupShapes(t *testing.T) {
	cfg := layouts[0]
	shapes := batch.WarmupShapes(cfg)
	have := map[batch.Shape]bool{}
	for _, sh := range shapes {
		if sh.Decode+sh.Prefill > cfg.Chunk || sh.Decode > cfg.Sequences || sh.Decode > cfg.Outputs {
			t.Errorf("%+v does not fit", sh)
		}
		have[sh] = true
	}
	for _, want := range []batch.Shape{{Decode: 1}, {Decode: 4}, {Decode: 5}, {Decode: 32}, {Prefill: 512}, {Decode: 1, Prefill: 63}} {
		if !have[want] {
			t.Errorf("%+v is not in %+v", want, shapes)
		}
	}
	if batch.WarmupShapes(batch.Config{}) != nil {
		t.Error("shapes for a bad config")
	}
}

func TestConfigValidate(t *testing.T) {
	good := variants["iswa"]
	for name, change := range map[string]func(*batch.Config){
		"context":   func(c *batch.Config) { c.Context = 0 },
		"cells":     func(c *batch.Config) { c.Cells = c.Context - 1 },
		"sequences": func(c *batch.Config) { c.Sequences = 257 },
		"parking":   func(c *batch.Config) { c.Parking = 256 },
		"running":   func(c *batch.Config) { c.MaxRunning = c.Sequences + 1 },
		"chunk":     func(c *batch.Config) { c.Chunk = 0 },
		"window":    func(c *batch.Config) { c.WindowCells = c.Window },
		"layout":    func(c *batch.Config) { c.Layout = 7 },
		"negative":  func(c *batch.Config) { c.QueueLimit = -1 },
	} {
		c := good
		change(&c)
		if _, err := batch.New(c); !errors.Is(err, batch.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

// FuzzScheduler is TestRandom with everything drawn from the fuzzer's numbers.
func FuzzScheduler(f *testing.F) {
	f.Add(uint64(1), uint8(0), uint8(20))
	f.Add(uint64(2), uint8(7), uint8(30))
	names := slices.Sorted(maps.Keys(variants))
	f.Fuzz(func(t *testing.T, seed uint64, variant, jobs uint8) {
		randomRun(t, variants[names[int(variant)%len(names)]], seed, 1+int(jobs)%40)
	})
}

// A chunk that was halved after mismatches does not make a smaller one of the next context too small for a row.
func TestRelayoutForgetsMismatches(t *testing.T) {
	cfg := batch.Config{Cells: 256, Context: 128, Sequences: 1, Chunk: 64}
	w := newWorld(t, cfg)
	code := batch.CodeNoSlot
	w.code = func(*batch.Step) batch.Code { return code }
	job := batch.Job{ID: 1, Prompt: make([]engine.Token, 40), MaxTokens: 2}
	w.must(w.submit(job))
	for range 10 {
		w.turn()
	}
	w.s.Cancel(w.now, 1)
	w.turn()
	code = batch.CodeOK
	cfg.Chunk = 16
	w.must(w.s.Relayout(cfg))
	job.ID = 2
	w.must(w.submit(job))
	w.run(100)
}

// TestDrainEndsWithItsLastJob: when all are gone in the middle of a pause, the layout changes then, and not when somebody comes.
func TestDrainEndsWithItsLastJob(t *testing.T) {
	w, submit := drainWorld(t, 10*time.Millisecond)
	for steps := 0; w.s.Stats().Running > 2 || w.s.Stats().Waiting <= 3; steps++ {
		for len(w.jobs) < 8 {
			submit()
		}
		if w.turn(); w.wish != nil || steps > 4000 {
			t.Fatalf("no pause before step %d, wishes %v", steps, w.wish)
		}
	}
	for id := range w.jobs {
		w.s.Cancel(w.now, id)
	}
	w.run(10)
	if w.wish == nil || *w.wish != batch.LayoutStreams {
		t.Errorf("with nothing left to do it wishes %v", w.wish)
	}
	w.wish = nil
	w.now += time.Hour
	submit()
	if w.turn(); w.wish != nil {
		t.Error("a request waits for another layout")
	}
}
