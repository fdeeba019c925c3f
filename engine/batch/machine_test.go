package batch_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/batch/kvsim"
)

// gpu is the step times of an 8B Q4_K model on one GPU through Vulkan, fitted to raw loops of llama.cpp 0.7.0 and steps in service (docs/scheduling.md): a
// decode step by rows, 0.40 us more for every cell in the unified layout or 0.10 us for every token of the rows' own sequences in
// streams; an evaluation of prompt rows by the tiles that it fills, and what their attention reads.
type gpu struct{ streams bool }

var gpuDecode = [][2]float64{{0, 0}, {1, 4.6}, {2, 5.5}, {4, 7.9}, {8, 12.8}, {9, 15.6}, {16, 16.8}, {32, 17.9}, {64, 20.5}} // rows, ms

func (g gpu) decode(rows int) float64 {
	for i := 1; i < len(gpuDecode); i++ {
		if a, b := gpuDecode[i-1], gpuDecode[i]; float64(rows) <= b[0] {
			return a[1] + (b[1]-a[1])*(float64(rows)-a[0])/(b[0]-a[0])
		}
	}
	return gpuDecode[len(gpuDecode)-1][1]
}

// fill is an evaluation of prompt rows in ms.
func (g gpu) fill(rows int) float64 {
	switch {
	case rows <= 8:
		return g.decode(rows)
	case rows <= 64:
		return 15
	case rows < 128:
		return 25
	case rows == 128:
		return 16.5
	case rows <= 256:
		return 24 + 1.8*float64(rows-128)/128
	case rows < 512:
		return 43 + 6*float64(rows-256)/256
	default:
		return 46.8 * float64(rows) / 512
	}
}

// ragged is what a cell costs an evaluation of prompt rows more, in ms, whose attention does not fill its tiles.
func (g gpu) ragged(rows int) float64 {
	if rows%64 == 0 {
		return 0
	}
	return 2e-3
}

// turn is what a decode-only step takes longer behind prompt rows, in ms: the graph is built anew.
func (g gpu) turn() float64 {
	if g.streams {
		return 2.5
	}
	return 4
}

// busy is gpu as it was seen in service: prompt rows take longer, as their graph is built anew as well, and nothing takes the same time twice.
type busy struct {
	gpu
	rng *rand.Rand
}

func (b busy) time(st *batch.Step, span int) time.Duration {
	d := b.gpu.time(st, span)
	if st.Prefills > 0 {
		d += 2300 * time.Microsecond
	}
	return d + time.Duration(float64(600*time.Microsecond)*b.rng.NormFloat64())
}

// part is the rows of one sequence in one evaluation.
type part struct {
	seq, n int
	fill   bool
	depth  int
}

// cut is llama.cpp's split of a step in streams: equal numbers of rows of consecutive sequences.
func cut(parts []part, chunk int) (evals [][]part) {
	for len(parts) > 0 {
		n, last, k := chunk, -1, 0
		for _, p := range parts {
			if k == 0 || p.seq == last+1 {
				n, last, k = min(n, p.n), p.seq, k+1
			}
		}
		n = max(1, min(n, chunk/k))
		var eval, left []part
		last = -1
		for _, p := range parts {
			if (len(eval) == 0 || p.seq == last+1) && len(eval) < k {
				last = p.seq
				eval = append(eval, part{p.seq, n, p.fill, p.depth})
				p.n, p.depth = p.n-n, p.depth+n
			}
			if p.n > 0 {
				left = append(left, p)
			}
		}
		evals, parts = append(evals, eval), left
	}
	return evals
}

// machine computes steps; span is n_kv of the unified pool.
type machine interface {
	time(st *batch.Step, span int) time.Duration
}

// time implements machine.
func (g gpu) time(st *batch.Step, span int) time.Duration {
	var parts []part
	decodes, rows := 0, 0
	for i, r := range st.Rows {
		fill := r.Kind == batch.RowPrefill
		if i > 0 && st.Rows[i-1].Seq == r.Seq {
			parts[len(parts)-1].n++
			continue
		}
		parts = append(parts, part{int(r.Seq), 1, fill, int(r.Pos)})
	}
	for _, p := range parts {
		rows += p.n
		if !p.fill {
			decodes++
		}
	}
	ms := 0.0
	if !g.streams {
		if decodes == rows {
			ms = g.decode(rows) + 4e-4*float64(span)
		} else {
			ms = g.fill(rows) + 4.6e-6*float64(rows)*float64(span)
		}
		return time.Duration(ms * float64(time.Millisecond))
	}
	evals := cut(parts, 512)
	for _, e := range evals {
		n, d, lengths := 0, 0, 0
		for _, p := range e {
			n += p.n
			lengths += p.n * p.depth
			if !p.fill || p.n == 1 && decodes > 0 {
				d++
			}
		}
		if d > 0 {
			ms += g.decode(n) + 1e-4*float64(lengths)
		} else {
			ms += g.fill(n) + 3e-6*float64(lengths) + g.ragged(n)*float64(lengths/n)
		}
	}
	if decodes > 0 {
		ms += 4.5 * float64(len(evals)-1)
	}
	return time.Duration(ms * float64(time.Millisecond))
}

// load is clients that send one request after the other, and what they saw.
type clients struct {
	t     *testing.T
	s     *batch.Scheduler
	gpu   machine
	cfg   batch.Config
	now   time.Duration
	seq   batch.JobID
	live  map[batch.JobID]*client
	next  func(c *client) bool // makes the client's next request, false: it is done
	ttft  []time.Duration
	gaps  []time.Duration // between tokens of clients with watch
	steps []time.Duration // decode-only
	out   int
	// decode-only steps, their evaluations and padding rows
	decoded, evaluated, padded int
	cache                      int
	stall                      time.Duration // the longest that moves took in a step with decode rows
	asked                      int
	prompts                    bool          // the last step had prompt rows
	wish                       *batch.Layout // of the last EventRelayout
	trace                      bool          // log every step with prefill rows
	sim                        *kvsim.Sim    // the cells, where their places matter; nil elsewhere
	noise                      *rand.Rand    // spreads the times of steps with prefill rows; nil: they are exact
}

type client struct {
	n        int
	requests int
	watch    bool
	sent     time.Duration
	last     time.Duration // 0: no token yet
	job      batch.Job
}

func newClients(t *testing.T, cfg batch.Config) *clients {
	return newClientsOn(t, cfg, gpu{streams: cfg.Layout == batch.LayoutStreams})
}

// newClientsOn is newClients on a GPU of any kind.
func newClientsOn(t *testing.T, cfg batch.Config, m machine) *clients {
	l := newClientsOf(t, cfg, m)
	for _, sh := range batch.WarmupShapes(cfg) { // as the worker does at load
		for _, depth := range []int{0, 2048} {
			st := &batch.Step{}
			for i := range sh.Decode {
				st.Rows = append(st.Rows, batch.Row{Seq: int32(i), Pos: int32(depth), Kind: batch.RowDecode})
			}
			left, prompts := sh.Prefill, max(1, sh.Prompts)
			for p := range prompts {
				n := left / (prompts - p)
				left -= n
				for i := range n {
					st.Rows = append(st.Rows, batch.Row{Seq: int32(sh.Decode + p), Pos: int32(depth + i), Kind: batch.RowPrefill})
				}
			}
			span := depth + len(st.Rows)
			if cfg.Layout == batch.LayoutStreams && sh.Decode > 0 {
				span = depth + 1
			}
			l.s.Prime(sh, span, l.gpu.time(st, max(span, 256)))
		}
	}
	return l
}

// newClientsOf is newClients on a machine of any kind, without a warm-up.
func newClientsOf(t *testing.T, cfg batch.Config, m machine) *clients {
	s, err := batch.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &clients{trace: *trace, t: t, s: s, cfg: cfg, gpu: m, live: map[batch.JobID]*client{}}
}

func (l *clients) send(c *client) {
	if !l.next(c) {
		return
	}
	l.seq++
	c.requests++
	c.job.ID, c.job.Cache = l.seq, true
	c.sent, c.last = l.now, 0
	l.live[l.seq] = c
	if err := l.s.Submit(l.now, c.job); err != nil {
		l.t.Fatal(err)
	}
}

func (l *clients) run() {
	l.t.Helper()
	for len(l.live) > 0 {
		l.step()
	}
}

// simulate does an operation in the cells, where their places have a price.
func (l *clients) simulate(op batch.Op) {
	if l.sim == nil {
		return
	}
	if err := l.sim.Apply(op); err != nil {
		l.t.Fatalf("%+v: %v", op, err)
	}
}

// decode computes a step in the cells.
func (l *clients) decode(st *batch.Step) {
	if l.sim == nil {
		return
	}
	if planned := l.s.Stats().CellsUsed; planned != l.sim.Used() {
		l.t.Fatalf("step %d: %d cells are used, %d should be: %+v", st.Number, l.sim.Used(), planned, st.Ops)
	}
	if len(st.Rows) == 0 {
		return
	}
	if code, err := l.sim.Decode(st.Rows); err != nil || code != batch.CodeOK {
		l.t.Fatalf("step %d of %d rows: code %d, %v; %d cells used, %+v", st.Number, len(st.Rows), code, err, l.sim.Used(), l.s.Stats())
	}
	for _, op := range st.After {
		l.simulate(op)
	}
}

// step is one Plan and Commit.
func (l *clients) step() *batch.Step {
	l.t.Helper()
	st := l.s.Plan(l.now)
	l.events(st.Events)
	if st.Idle() && st.Wait > 0 {
		l.now += st.Wait
		return st
	}
	if st.Idle() {
		if l.wish != nil {
			return st
		}
		l.t.Fatalf("idle with %d requests: %+v", len(l.live), l.s.Stats())
	}
	d := l.gpu.time(st, l.s.Stats().Span)
	var copies, saving, loading time.Duration
	for _, op := range st.Ops {
		move := l.cfg.Host.Move + time.Duration(op.P1-op.P0)*l.cfg.Host.Save
		if op.Kind == batch.OpSave && l.sim != nil {
			move += time.Duration(l.sim.Runs(op.Seq)-1) * l.cfg.Host.Range
		}
		switch {
		case op.Kind == batch.OpCopy && l.cfg.Layout == batch.LayoutStreams:
			copies += l.cfg.CopyTime
		case op.Kind == batch.OpSave:
			saving += move
		case op.Kind == batch.OpLoad:
			loading += move
		}
		l.simulate(op)
	}
	l.decode(st)
	if l.noise != nil && st.Prefills > 0 {
		d += time.Duration(0.05 * l.noise.ExpFloat64() * float64(d))
	}
	if g, ok := l.gpu.(interface{ turn() float64 }); ok && st.Prefills == 0 && l.prompts {
		d += time.Duration(g.turn() * float64(time.Millisecond))
	}
	l.prompts = st.Prefills > 0
	d += copies
	if st.Prefills == 0 && st.Decodes > 0 {
		l.steps = append(l.steps, d)
		l.decoded, l.evaluated, l.padded = l.decoded+1, l.evaluated+st.Evaluations, l.padded+st.Pads
	}
	if l.trace && st.Prefills > 0 {
		l.t.Logf("step %d: ops %v decodes %d prefills %d pads %d evals %d predicted %v took %v", st.Number, st.Ops, st.Decodes, st.Prefills, st.Pads, st.Evaluations, st.Predicted, d)
	}
	l.now += d + saving + loading + 200*time.Microsecond // sampling and the rest
	if st.Decodes > 0 {
		l.stall = max(l.stall, saving+loading)
	}
	var sampled []batch.Sampled
	for _, sm := range st.Samples {
		sampled = append(sampled, batch.Sampled{Token: engine.Token(sm.Job)*7 + sm.Index})
		c := l.live[sm.Job]
		if c.last == 0 {
			l.ttft = append(l.ttft, l.now-c.sent)
		} else if c.watch {
			l.gaps = append(l.gaps, l.now-c.last)
		}
		c.last = l.now
		l.out++
	}
	l.events(l.s.Commit(l.now, batch.Result{Duration: d, Sampled: sampled, Saving: saving, Loading: loading}))
	return st
}

func (l *clients) events(evs []batch.Event) {
	for _, ev := range evs {
		if ev.Kind == batch.EventRelayout {
			l.wish = &ev.Layout
		}
		if ev.Kind == batch.EventFinished && ev.Reason != engine.FinishLength {
			l.t.Fatalf("job %d: %s", ev.Job, ev.Reason)
		}
		if ev.Kind == batch.EventDone {
			c := l.live[ev.Job]
			delete(l.live, ev.Job)
			l.cache += ev.Usage.Cached
			l.asked += ev.Usage.Prompt
			l.send(c)
		}
	}
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[int(q*float64(len(s)-1))]
}

func (l *clients) report() {
	l.t.Logf("%s: %.0f tok/s, TTFT p50 %v p99 %v, ITL p50 %v p99 %v, decode-only step p50 %v, cached %d of %d prompt tokens, preempted %d, evicted %d",
		l.cfg.Layout, float64(l.out)/l.now.Seconds(), quantile(l.ttft, .5), quantile(l.ttft, .99), quantile(l.gaps, .5), quantile(l.gaps, .99),
		quantile(l.steps, .5), l.cache, l.asked, l.s.Stats().Preemptions, l.s.Stats().EvictedCells)
}

func random(rng *rand.Rand, n int) []engine.Token {
	out := make([]engine.Token, n)
	for i := range out {
		out[i] = rng.Int32N(30000)
	}
	return out
}

var trace = flag.Bool("steps", false, "log every simulated step with prefill rows")

var layouts = []batch.Config{
	{Cells: 65536, Context: 16384, Sequences: 64, Parking: 128, MaxRunning: 32, Chunk: 512, Outputs: 64},
	{Layout: batch.LayoutStreams, Context: 16384, Sequences: 40, MaxRunning: 32, Chunk: 512, Outputs: 64, CopyTime: 10 * time.Millisecond},
}
