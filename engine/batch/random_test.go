package batch_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// variants are contexts of every kind, small enough that everything runs out all the time.
var variants = map[string]batch.Config{
	"unified":        {Cells: 512, Context: 256, Sequences: 6, Parking: 10, Chunk: 64, Outputs: 16},
	"unified-tight":  {Cells: 256, Context: 256, Sequences: 6, Parking: 4, Chunk: 32, Outputs: 8},
	"unified-noPark": {Cells: 512, Context: 200, Sequences: 8, MaxRunning: 4, Chunk: 64, Outputs: 8},
	"unified-nocopy": {Cells: 512, Context: 200, Sequences: 6, Chunk: 64, NoCopy: true},
	"unified-notrim": {Cells: 512, Context: 200, Sequences: 6, Parking: 3, Chunk: 64, NoTrim: true},
	"unified-wide":   {Cells: 1536, Context: 200, Sequences: 14, Parking: 6, Chunk: 64, Outputs: 16},
	"one":            {Cells: 128, Context: 128, Sequences: 1, Chunk: 16},
	"one-parked":     {Cells: 256, Context: 128, Sequences: 1, Parking: 2, Chunk: 16},
	"streams":        {Layout: batch.LayoutStreams, Context: 160, Sequences: 8, Chunk: 64, Outputs: 16},
	"streams-few":    {Layout: batch.LayoutStreams, Context: 160, Sequences: 3, Chunk: 64},
	"streams-notrim": {Layout: batch.LayoutStreams, Context: 160, Sequences: 4, Chunk: 64, NoTrim: true},
	"streams-wide":   {Layout: batch.LayoutStreams, Context: 160, Sequences: 14, Chunk: 64, Outputs: 16},
	"iswa":           {Cells: 512, Context: 200, Sequences: 5, Parking: 4, Chunk: 32, Window: 24, WindowCells: 160},
	"iswa-tight":     {Cells: 512, Context: 200, Sequences: 5, Parking: 4, Chunk: 32, Window: 24, WindowCells: 80},
	"iswa-roomy":     {Cells: 512, Context: 200, Sequences: 5, Parking: 4, Chunk: 32, Window: 24, WindowCells: 400},
	"iswa-streams":   {Layout: batch.LayoutStreams, Context: 160, Sequences: 4, Chunk: 32, Window: 24, WindowCells: 64},
	"hybrid":         {Cells: 512, Context: 200, Sequences: 8, MaxRunning: 4, Chunk: 32, Recurrent: true},
	"hybrid-streams": {Layout: batch.LayoutStreams, Context: 200, Sequences: 6, MaxRunning: 4, Chunk: 32, Recurrent: true},
	"host":           {Cells: 512, Context: 256, Sequences: 6, Parking: 10, Chunk: 64, Outputs: 16, Host: hostOf(4000)},
	"host-tight":     {Cells: 256, Context: 256, Sequences: 6, Parking: 4, Chunk: 32, Outputs: 8, Host: hostOf(500)},
	"host-noPark":    {Cells: 512, Context: 200, Sequences: 8, MaxRunning: 4, Chunk: 64, Outputs: 8, Host: hostOf(2000)},
	"host-one":       {Cells: 128, Context: 128, Sequences: 1, Chunk: 16, Host: hostOf(1000)},
	"parts":          {Cells: 512, Context: 256, Sequences: 6, Parking: 10, Chunk: 64, Outputs: 16, Host: inParts(hostOf(4000))},
	"parts-tight":    {Cells: 256, Context: 256, Sequences: 6, Parking: 4, Chunk: 32, Outputs: 8, Host: inParts(hostOf(500))},
	"parts-noPark":   {Cells: 512, Context: 200, Sequences: 8, MaxRunning: 4, Chunk: 64, Outputs: 8, Host: inParts(hostOf(2000))},
	"host-parked":    {Cells: 256, Context: 128, Sequences: 1, Parking: 2, Chunk: 16, Host: hostOf(1000)},
	"slow":           {Cells: 512, Context: 256, Sequences: 6, Parking: 10, Chunk: 64, Outputs: 16, MinPrefill: 1, NoPad: true},
	"slow-tight":     {Cells: 256, Context: 256, Sequences: 6, Parking: 4, Chunk: 32, Outputs: 4, MinPrefill: 1, NoPad: true},
	"slow-streams":   {Layout: batch.LayoutStreams, Context: 160, Sequences: 8, Chunk: 64, Outputs: 16, MinPrefill: 1, NoPad: true},
	"slow-iswa":      {Cells: 512, Context: 200, Sequences: 5, Parking: 4, Chunk: 32, Window: 24, WindowCells: 160, MinPrefill: 1, NoPad: true},
	"recurrent":      {Context: 300, Sequences: 8, MaxRunning: 4, Chunk: 32, Recurrent: true, NoAttention: true},
}

// hostOf is host memory for some tokens, in which a move is cheap.
func hostOf(tokens int64) batch.Host {
	return batch.Host{Bytes: 10*tokens + 7, EntryBytes: 30, TokenBytes: 10, Save: 10 * time.Microsecond, Load: 10 * time.Microsecond, Move: 50 * time.Microsecond}
}

// inParts makes loads come in parts, as on a GPU.
func inParts(h batch.Host) batch.Host {
	h.Range, h.PartBytes = 10*time.Microsecond, 40*h.TokenBytes
	return h
}

// TestRandom runs random work through every kind of context. The simulator answers each row by what the row really
// sees, so a wrong cell anywhere is a wrong token.
func TestRandom(t *testing.T) {
	for name, cfg := range variants {
		t.Run(name, func(t *testing.T) {
			loads, pads, parts := uint64(0), uint64(0), 0
			for seed := range *seeds {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					st, some := randomRun(t, cfg, seed, 60)
					loads, pads, parts = loads+st.HostLoads, pads+st.PadRows, parts+some
				})
			}
			if cfg.Host.Range > 0 && parts == 0 {
				t.Error("nothing came back in parts")
			}
			if strings.HasSuffix(name, "-wide") && pads == 0 {
				t.Error("no padding rows")
			}
			if cfg.Host.Bytes > 0 && loads == 0 {
				t.Error("nothing came back from host memory")
			}
		})
	}
}

// seeds is how many seeds TestRandom tries in each context. A change of policy deserves more than the default.
var seeds = flag.Uint64("seeds", 3, "random runs for each kind of context")

// randomRun returns the scheduler's counts at the end, and how many parts of sequences came back.
func randomRun(t testing.TB, cfg batch.Config, seed uint64, jobs int) (st batch.Stats, parts int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t, cfg)
	w.eos = 3
	if cfg.Host.Bytes > 0 {
		w.lose = func() bool { return rng.IntN(10) == 0 }
		w.took = func(st *batch.Step) time.Duration { // cells have a price
			return time.Duration(2000+40*len(st.Rows)+(4+len(st.Rows))*w.s.Stats().Span) * time.Microsecond
		}
	}
	if cfg.NoPad { // prompts wait for each other, and for answers
		w.took = func(st *batch.Step) time.Duration {
			row := 5
			if st.Decodes > 0 {
				row = 20
			}
			return time.Duration(3+6*st.Decodes+row*st.Prefills) * time.Millisecond
		}
	}
	ps := prompts{rng: rng}
	submitted := 0
	for submitted < jobs {
		for submitted < jobs && rng.IntN(3) > 0 {
			submitted++
			w.must(w.submit(randomJob(rng, &ps, cfg, batch.JobID(submitted))))
		}
		if ids := slices.Sorted(maps.Keys(w.jobs)); len(ids) > 0 {
			switch id := ids[rng.IntN(len(ids))]; rng.IntN(30) {
			case 0:
				w.s.Cancel(w.now, id) // false when its end is announced by the next Plan
			case 1:
				w.hold(id, true)
			default:
				w.hold(id, false)
			}
		}
		for range rng.IntN(6) {
			w.turn()
		}
	}
	for id := range w.jobs {
		w.hold(id, false)
	}
	w.run(20000)
	if len(w.done) != jobs {
		t.Fatalf("%d of %d jobs done", len(w.done), jobs)
	}
	return w.s.Stats(), w.parts
}

// TestRandomCodes lets decodes fail: nothing may be lost but time.
func TestRandomCodes(t *testing.T) {
	for name, cfg := range variants {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 5))
			w := newWorld(t, cfg)
			w.code = nowAndThen(rng)
			ps := prompts{rng: rng}
			for id := range batch.JobID(40) {
				w.must(w.submit(randomJob(rng, &ps, cfg, id)))
				w.turn()
			}
			w.run(20000)
			w.noneFailed()
		})
	}
}

// nowAndThen lets one decode in ten find no cells, and one be aborted.
func nowAndThen(rng *rand.Rand) func(*batch.Step) batch.Code {
	return func(*batch.Step) batch.Code {
		switch rng.IntN(10) {
		case 0:
			return batch.CodeNoSlot
		case 1:
			return batch.CodeAborted
		}
		return batch.CodeOK
	}
}

func (w *world) noneFailed() {
	w.t.Helper()
	for id, ev := range w.done {
		if ev.Reason == engine.FinishError {
			w.t.Errorf("job %d failed", id)
		}
	}
}

func randomJob(rng *rand.Rand, ps *prompts, cfg batch.Config, id batch.JobID) batch.Job {
	j := batch.Job{
		ID: id, Prompt: ps.next(cfg.Context * 2 / 3), MaxTokens: rng.IntN(cfg.Context / 2), Cache: rng.IntN(5) > 0,
		Tenant: fmt.Sprint("tenant", rng.IntN(3)), Priority: engine.Priority(rng.IntN(3) - 1),
	}
	if rng.IntN(8) == 0 {
		j.MaxTokens = -1
	}
	if rng.IntN(4) == 0 {
		j.Choices = 1 + rng.IntN(5)
	}
	for i := range max(j.Choices, 1) {
		if rng.IntN(6) > 0 {
			continue
		}
		for len(j.Resume) <= i {
			j.Resume = append(j.Resume, nil)
		}
		for range rng.IntN(30) {
			j.Resume[i] = append(j.Resume[i], engine.Token(rng.IntN(vocab)))
		}
	}
	for m := 5; m < len(j.Prompt) && rng.IntN(2) == 0; m += 1 + rng.IntN(40) {
		j.Marks = append(j.Marks, m)
	}
	return j
}

// A device so slow that no chunk meets a target goes on all the same, in small chunks, in both layouts and without attention.
func TestSlowDeviceGoesOn(t *testing.T) {
	for name, cfg := range variants {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, cfg)
			w.step = 5 * time.Second
			for i := range 3 {
				prompt := make([]engine.Token, min(cfg.Context/2, 90))
				for k := range prompt {
					prompt[k] = engine.Token((k*7 + i) % vocab)
				}
				w.must(w.submit(batch.Job{ID: batch.JobID(i + 1), Prompt: prompt, MaxTokens: 4, Cache: true}))
			}
			for i := 0; w.turn(); i++ {
				if i > 2000 {
					t.Fatal("it never ends")
				}
			}
			for id, wj := range w.jobs {
				if len(wj.finished) == 0 {
					t.Errorf("job %d did not end", id)
				}
			}
		})
	}
}
