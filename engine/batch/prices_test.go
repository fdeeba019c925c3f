package batch

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hearth/engine"
)

// drill drives a scheduler whose steps take what took says, and overhead beside that.
type drill struct {
	t        *testing.T
	s        *Scheduler
	now      time.Duration
	overhead time.Duration
	took     func(st *Step) time.Duration
	alike    bool // all prompts begin alike
}

func newDrill(t *testing.T, cfg Config, took func(st *Step) time.Duration) *drill {
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &drill{t: t, s: s, now: time.Second, took: took}
}

// step makes a step; there must be something to do.
func (d *drill) step() *Step {
	d.t.Helper()
	st := d.try()
	if st == nil {
		d.t.Fatalf("idle: %+v", d.s.Stats())
	}
	return st
}

// try makes a step; nil: there is nothing to do.
func (d *drill) try() *Step {
	st := d.s.Plan(d.now)
	if st.Idle() {
		return nil
	}
	took := d.took(st)
	d.now += took + d.overhead
	d.s.Commit(d.now, Result{Duration: took, Sampled: make([]Sampled, len(st.Samples))})
	return st
}

func (d *drill) submit(id JobID, prompt, tokens int) {
	seed := uint64(id)
	if d.alike {
		seed = 0
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	p := make([]engine.Token, prompt)
	for i := range p {
		p[i] = rng.Int32N(30000)
	}
	if err := d.s.Submit(d.now, Job{ID: id, Prompt: p, MaxTokens: tokens, Cache: true}); err != nil {
		d.t.Fatal(err)
	}
}

// finish runs until a job has ended, and returns how long that took.
func (d *drill) finish(id JobID) time.Duration {
	began := d.now
	for d.s.jobs[id] != nil {
		d.step()
	}
	return d.now - began
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// One step that compiled something does not price its size out behind long contexts, where nothing would contradict that.
func TestSlowFirstStepBehindLongContext(t *testing.T) {
	var took [2]time.Duration
	for i, hiccup := range []bool{false, true} {
		cost := func(n int, kv float64) time.Duration { return millis(10 + 0.14*float64(n) + 1e-6*float64(n)*kv) }
		d := newDrill(t, Config{Layout: LayoutStreams, Context: 16384, Sequences: 8, Chunk: 512}, func(st *Step) time.Duration {
			switch {
			case st.Prefills == 0:
				return 10 * time.Millisecond
			case hiccup && len(st.Rows) == 192 && st.Rows[0].Pos >= 900:
				hiccup = false
				return 200 * time.Millisecond
			}
			return cost(len(st.Rows), float64(st.Rows[0].Pos))
		})
		for _, n := range []int{16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512} {
			d.s.Prime(Shape{Prefill: n}, n, cost(n, 0))
			if n == 128 || n == 256 || n == 512 { // as the warm-up does
				d.s.Prime(Shape{Prefill: n}, 2048+n, cost(n, 2048))
			}
		}
		d.s.Prime(Shape{Decode: 1}, 1, 10*time.Millisecond)
		d.submit(1, 64, -1)
		for range 30 {
			d.step()
		}
		for id := JobID(2); id < 12; id++ {
			d.submit(id, 8000, 2)
			took[i] = d.finish(id)
		}
		if hiccup {
			t.Fatal("there was no such step")
		}
	}
	if took[1] > took[0]*21/20 {
		t.Errorf("a prompt takes %v, and %v after one slow step", took[0], took[1])
	}
}

// Where every decode step is behind prompt rows their noise does not become a turn, which would make the promise smaller and smaller.
func TestTurnsDoNotGrowFromNoise(t *testing.T) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 3))
		d := newDrill(t, Config{Recurrent: true, Cells: 32768, Context: 16384, Sequences: 8, Chunk: 512, NoPad: true}, func(st *Step) time.Duration {
			if st.Prefills == 0 {
				return millis(100 * (1 + 0.1*rng.NormFloat64()))
			}
			return millis(20 + float64(st.Prefills))
		})
		d.submit(1, 64, -1)
		for range 100 {
			d.step()
		}
		for id := JobID(2); id < 80; id++ {
			d.submit(id, 6000, 2)
			d.finish(id)
		}
		if decode := d.s.cost.decodeTime(evaluation{rows: 1, decodes: 1, kv: 256}); math.Abs(d.s.turn) > 12e-3 || decode < 0.085 || decode > 0.115 {
			t.Errorf("a turn is thought to take %v s, decode steps %v; they take 0.1 s, and turns nothing", d.s.turn, decode)
		}
	}
}

// A prompt that begins just before a context is a long one is planned and learnt from as the same kind.
func TestSlipClassesAreTheSame(t *testing.T) {
	d := newDrill(t, Config{Layout: LayoutStreams, Context: 16384, Sequences: 16, Chunk: 512}, func(st *Step) time.Duration {
		if st.Prefills == 0 {
			return 10 * time.Millisecond
		}
		return millis(5 + 0.05*float64(len(st.Rows)))
	})
	for _, n := range []int{16, 32, 64, 128, 256, 512} {
		d.s.Prime(Shape{Prefill: n}, n, millis(5+0.05*float64(n)))
	}
	d.s.Prime(Shape{Decode: 1}, 256, 10*time.Millisecond)
	d.submit(1, 64, -1)
	for range 50 {
		d.step()
	}
	far := d.s.slip.far.at
	for id := JobID(2); id < 60; id++ {
		d.overhead = 0
		d.submit(id, 960, 1)
		d.finish(id)
		d.overhead = 4 * time.Millisecond // what goes on behind it is late
		d.submit(id, 960+400, 1)
		d.finish(id)
		d.step()
	}
	if d.s.slip.far.at != far || d.s.slip.near.at < 2*slipStart {
		t.Errorf("near %v s, far %v (%v before)", d.s.slip.near.at, d.s.slip.far.at, far)
	}
}

// Answers that will not end soon behind contexts that take long to compute again make no pause for another layout.
func TestNoPauseThatCannotSucceed(t *testing.T) {
	for tokens, want := range map[int]bool{8000: false, 60: true} {
		d := newDrill(t, Config{Layout: LayoutStreams, Context: 16384, Sequences: 9, Chunk: 512}, func(st *Step) time.Duration {
			if st.Prefills == 0 {
				return 15 * time.Millisecond
			}
			return millis(0.1 * float64(len(st.Rows)))
		})
		d.alike = true
		d.s.AutoLayout(LayoutCosts{Base: 0.008, UnifiedCell: 4e-7, StreamsCell: 4e-7, Evaluation: 0.001})
		id, paused := JobID(1), false
		for range 6000 {
			for len(d.s.jobs) < 8 {
				d.submit(id, 6000, tokens+int(id%8))
				id++
			}
			if d.try() == nil {
				break
			}
			paused = paused || d.s.draining
		}
		if paused != want {
			t.Errorf("answers of %d tokens: a pause %v", tokens, paused)
		}
	}
}

// The time in which nobody waits for a token is no gap: the last decoder was cancelled, or its client does not read.
func TestNobodyWaitsForAToken(t *testing.T) {
	for name, leave := range map[string]func(s *Scheduler, now time.Duration){
		"cancelled": func(s *Scheduler, now time.Duration) { s.Cancel(now, 1) },
		"held":      func(s *Scheduler, _ time.Duration) { s.Hold(1, true) },
	} {
		d := newDrill(t, Config{Layout: LayoutStreams, Context: 16384, Sequences: 8, Chunk: 512}, func(st *Step) time.Duration {
			return max(5*time.Millisecond, time.Duration(st.Prefills+st.Pads)*100*time.Microsecond)
		})
		d.overhead = 500 * time.Microsecond
		for _, n := range []int{64, 128, 256, 512} {
			d.s.Prime(Shape{Prefill: n}, n, time.Duration(n)*100*time.Microsecond)
		}
		d.s.Prime(Shape{Decode: 1}, 1, 5*time.Millisecond)
		d.submit(1, 64, -1)
		for range 200 {
			d.step()
		}
		d.submit(2, 12000, 3)
		for range 6 {
			d.step()
		}
		before := d.s.slip.far.at
		leave(d.s, d.now)
		if took := d.finish(2); took < time.Second || d.s.slip.far.at > before {
			t.Errorf("%s: after %v without a decode row the reserve went from %v to %v s", name, took, before, d.s.slip.far.at)
		}
	}
}

// Padding behind a prompt's end evicts no cached prefix.
func TestPaddingEvictsNothing(t *testing.T) {
	tile := func(n int) time.Duration {
		switch {
		case n == 128:
			return millis(16.5)
		case n > 128:
			return millis(26 * float64(n) / 256)
		}
		return millis(25)
	}
	d := newDrill(t, Config{Cells: 1280, Context: 1280, Sequences: 4, Parking: 4, Chunk: 512}, func(st *Step) time.Duration {
		if st.Prefills == 0 {
			return 5 * time.Millisecond
		}
		return tile(len(st.Rows))
	})
	for _, n := range []int{64, 96, 128, 256, 512} {
		d.s.Prime(Shape{Prefill: n}, n, tile(n))
	}
	d.s.Prime(Shape{Decode: 1}, 256, 5*time.Millisecond)
	d.submit(1, 1180, 1)
	d.finish(1)
	d.now += time.Second
	d.submit(2, 83, 2)
	if st := d.step(); st.Prefills != 83 || st.Pads > 0 || d.s.Stats().EvictedCells > 0 {
		t.Errorf("%d rows computed, %d padding rows, %d cells evicted", st.Prefills, st.Pads, d.s.Stats().EvictedCells)
	}
}

// copies drives clients whose prompts share a trunk of some tokens, six at a time, on streams where a copy takes what it says, and took something at load.
func copies(t *testing.T, atLoad time.Duration, trunk, clients int, copyTime func(id JobID) time.Duration) (last float64) {
	id := JobID(0)
	cfg := Config{Layout: LayoutStreams, Context: 16384, Sequences: 8, Chunk: 512, NoPad: true, CopyTime: atLoad}
	d := newDrill(t, cfg, func(st *Step) time.Duration {
		took := millis(10 + 0.5*float64(st.Prefills))
		for _, op := range st.Ops {
			if op.Kind == OpCopy {
				took += copyTime(id)
			}
		}
		return took
	})
	rng := rand.New(rand.NewPCG(1, 2))
	shared := make([]engine.Token, trunk)
	for i := range shared {
		shared[i] = rng.Int32N(30000)
	}
	for range clients {
		id++
		prompt := slices.Clone(shared)
		for range 100 {
			prompt = append(prompt, rng.Int32N(30000))
		}
		if err := d.s.Submit(d.now, Job{ID: id, Prompt: prompt, MaxTokens: 20, Cache: true}); err != nil {
			t.Fatal(err)
		}
		if id%6 == 0 {
			d.finish(id)
		}
	}
	return d.s.copyTime()
}

// What a copy takes is learnt where nothing was measured at load, too.
func TestUnmeasuredCopiesAreLearnt(t *testing.T) {
	got := copies(t, 0, 1000, 400, func(JobID) time.Duration { return 100 * time.Millisecond })
	if got < copyLimit || got > 0.2 { // several of them would be made in one step
		t.Errorf("a copy of 0.1 s is thought to take %v s", got)
	}
}

// Copies that were slow for a while are made again.
func TestSlowCopiesAreForgotten(t *testing.T) {
	got := copies(t, 2*time.Millisecond, 100, 4000, func(id JobID) time.Duration {
		if id < 400 {
			return 200 * time.Millisecond
		}
		return 2 * time.Millisecond
	})
	if got > 0.01 {
		t.Errorf("a copy of 2 ms is thought to take %v s", got)
	}
}
