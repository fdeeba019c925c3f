package batch_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// tiles is a device on which an evaluation that fills tiles of 16 rows takes a third of what one row less takes, and a second
// sequence costs nothing: there padding behind prompts pays, and so do several prompts at once.
func tiles(evals [][]part) (d time.Duration) {
	for _, e := range evals {
		rows := 0
		for _, p := range e {
			rows += p.n
		}
		us := 3000 + 10*rows
		if rows%16 == 0 || rows <= 8 {
			us = 1000 + 5*rows
		}
		d += time.Duration(us) * time.Microsecond
	}
	return d
}

// tilesOf is the time of a step.
func tilesOf(cfg *batch.Config, st *batch.Step) time.Duration {
	var parts []part
	for i, r := range st.Rows {
		if i > 0 && st.Rows[i-1].Seq == r.Seq {
			parts[len(parts)-1].n++
			continue
		}
		parts = append(parts, part{seq: int(r.Seq), n: 1})
	}
	if cfg.Layout == batch.LayoutStreams {
		return tiles(cut(parts, cfg.Chunk))
	}
	return tiles([][]part{parts})
}

// fills counts, over a run, the steps with padding behind prompts, and of these the ones with several prompts and with decode rows.
type fills struct{ steps, several, beside, forks int }

func (f *fills) count(t testing.TB, cfg *batch.Config, st *batch.Step) {
	padded, prompts := 0, map[int32]bool{}
	for i, r := range st.Rows {
		if int(r.Pos) >= cfg.Context {
			t.Fatalf("step %d: row behind the context\n%s", st.Number, describe(st))
		}
		if r.Kind == batch.RowPrefill {
			prompts[r.Seq] = true
		}
		if r.Kind == batch.RowPad && i > 0 && st.Rows[i-1].Seq == r.Seq {
			padded++
		}
	}
	if padded == 0 {
		return
	}
	f.steps++
	if len(prompts) > 1 {
		f.several++
	}
	if st.Decodes > 0 {
		f.beside++
	}
	for _, op := range st.After {
		if op.Kind == batch.OpCopy {
			f.forks++
			break
		}
	}
}

// targets are limits at their extremes.
var targets = map[string]func(*batch.Config){
	"default": func(*batch.Config) {},
	"tiny":    func(c *batch.Config) { c.ITLTarget, c.IdleTarget, c.MinPrefill = 1, 1, 1000 },
	"huge":    func(c *batch.Config) { c.ITLTarget, c.IdleTarget, c.MinPrefill, c.Outputs = time.Hour, time.Hour, 1, 2 },
}

// TestRandomTiles is TestRandom on a device that rewards full tiles, so that prompts get padding rows, with prompts that fill the
// context, clients that do not read, and decodes that fail now and then. Somebody whose client reads always goes on.
func TestRandomTiles(t *testing.T) {
	for name, cfg := range variants {
		for target, set := range targets {
			t.Run(name+"/"+target, func(t *testing.T) {
				cfg := cfg
				set(&cfg)
				var f fills
				for seed := range max(2, *seeds/2) {
					randomTiles(t, cfg, seed, seed%2 == 1, &f)
				}
				several := cfg.Layout == batch.LayoutStreams && target == "default"
				if (name == "unified" || name == "streams") && target != "tiny" && (f.steps == 0 || several && f.several == 0) {
					t.Errorf("no padding behind prompts: %+v", f)
				}
				t.Logf("%+v", f)
			})
		}
	}
}

func randomTiles(t *testing.T, cfg batch.Config, seed uint64, failing bool, f *fills) {
	rng := rand.New(rand.NewPCG(seed, 11))
	w := newWorld(t, cfg)
	w.eos = 3
	w.took = func(st *batch.Step) time.Duration { f.count(t, &cfg, st); return tilesOf(&cfg, st) }
	for _, sh := range batch.WarmupShapes(cfg) {
		var parts []part
		for i := range sh.Decode {
			parts = append(parts, part{seq: i, n: 1})
		}
		if sh.Prefill > 0 {
			parts = append(parts, part{seq: sh.Decode, n: sh.Prefill})
		}
		evals := [][]part{parts}
		if cfg.Layout == batch.LayoutStreams {
			evals = cut(parts, cfg.Chunk)
		}
		w.s.Prime(sh, 256, tiles(evals))
	}
	if failing {
		w.code = nowAndThen(rng)
	}
	ps := prompts{rng: rng}
	for id := range batch.JobID(25) {
		j := randomJob(rng, &ps, cfg, id)
		if rng.IntN(6) == 0 {
			for want := cfg.Context - 1 - rng.IntN(20); len(j.Prompt) < want; {
				j.Prompt = append(j.Prompt, engine.Token(rng.IntN(vocab)))
			}
		}
		w.must(w.submit(j))
		for range rng.IntN(12) {
			goesOn(w)
			if ids := slices.Sorted(maps.Keys(w.jobs)); len(ids) > 0 && rng.IntN(10) == 0 {
				w.hold(ids[rng.IntN(len(ids))], rng.IntN(2) == 0)
			}
		}
	}
	for id := range w.jobs {
		w.hold(id, false)
	}
	w.run(20000)
	w.noneFailed()
}

// goesOn is a turn that may be idle only when every client is one that does not read.
func goesOn(w *world) {
	if w.turn() {
		return
	}
	for id, wj := range w.jobs {
		if !wj.held {
			w.t.Fatalf("idle, and job %d waits: %+v", id, w.s.Stats())
		}
	}
}

// Prompts of a recurrent model that were found to end sooner together are computed together, in streams, too.
func TestStatesTogether(t *testing.T) {
	cfg := batch.Config{Layout: batch.LayoutStreams, Context: 256, Sequences: 4, Chunk: 64, Recurrent: true}
	w := newWorld(t, cfg)
	for _, rows := range []int{8, 16, 32, 48, 64} { // rows are nearly free
		w.s.Prime(batch.Shape{Prefill: rows}, rows, 10*time.Millisecond)
	}
	for id := range batch.JobID(4) {
		prompt := make([]engine.Token, 16)
		for i := range prompt {
			prompt[i] = engine.Token((int(id)*11 + i) % vocab)
		}
		w.must(w.submit(batch.Job{ID: id, Prompt: prompt, MaxTokens: 1}))
	}
	steps := 0
	w.took = func(st *batch.Step) time.Duration {
		steps++
		return 10 * time.Millisecond
	}
	w.run(100)
	if steps != 1 {
		t.Errorf("%d steps for four prompts that fit into one", steps)
	}
}

// Where decode rows and prompts have steps of their own, decode steps that succeed do not hide that a prompt's never do.
func TestMismatchesBesideDecodes(t *testing.T) {
	for _, name := range []string{"streams", "hybrid", "recurrent"} {
		t.Run(name, func(t *testing.T) {
			cfg := variants[name]
			w := newWorld(t, cfg)
			prompt := func(n int) (p []engine.Token) {
				for i := range n {
					p = append(p, engine.Token(i*n%vocab))
				}
				return p
			}
			w.must(w.submit(batch.Job{ID: 1, Prompt: prompt(10), MaxTokens: 100}))
			for range 5 {
				w.turn()
			}
			w.code = func(st *batch.Step) batch.Code {
				if st.Prefills > 16 {
					return batch.CodeNoSlot
				}
				return batch.CodeOK
			}
			w.must(w.submit(batch.Job{ID: 2, Prompt: prompt(60), MaxTokens: 1}))
			for len(w.jobs) == 2 {
				w.turn()
			}
			if w.jobs[1] == nil {
				t.Error("the prompt waited until nothing decoded")
			}
			w.run(1000)
		})
	}
}

// flattening is a GPU whose attention of prompt rows costs less for each further cell behind some thousand of them.
type flattening struct{ gpu }

func (f flattening) time(st *batch.Step, span int) time.Duration {
	d := f.gpu.time(st, 0)
	if !slices.ContainsFunc(st.Rows, func(r batch.Row) bool { return r.Kind == batch.RowPrefill }) {
		return d
	}
	rows := 15 + float64(len(st.Rows))/100 // what 64 rows read takes nearly as long as what 256 do
	return d + time.Duration(rows*float64(min(span, 2048)+max(0, span-2048)*2/5)/10)*time.Microsecond
}

// What was measured behind 2048 tokens at load says little of 16000. Clients who come to a full pool get large chunks all the same.
func TestPolicyDeepPoolGetsLargeChunks(t *testing.T) {
	cfg := batch.Config{Cells: 16384, Context: 8192, Sequences: 16, Parking: 240, Chunk: 512, Outputs: 16}
	l := newClientsOn(t, cfg, flattening{})
	rng := rand.New(rand.NewPCG(1, 24))
	requests := 0
	l.next = func(c *client) bool {
		c.job = batch.Job{Prompt: random(rng, 4096), MaxTokens: 64}
		requests++
		return requests <= 6 || c.n > 0 && requests <= 24
	}
	l.send(&client{}) // alone it fills the pool
	l.run()
	rows := map[int]int{}
	for n := range 3 {
		l.send(&client{n: n + 1})
	}
	for len(l.live) > 0 {
		if st := l.step(); st.Decodes > 0 && st.Prefills > 0 {
			rows[st.Decodes+st.Prefills]++
		}
	}
	if rows[256] < 4*(rows[64]+rows[128]) {
		t.Errorf("steps by rows: %v", rows)
	}
}
