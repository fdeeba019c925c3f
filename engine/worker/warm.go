package worker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

const (
	// warmUpLimit bounds the warm-up of the layout that a model starts with, and warmUpAll that of both layouts: ready is
	// promised within 30 s of load. On the GPU measured (docs/scheduling.md) all shapes of one layout take about 20 s when
	// nothing is in the driver's shader cache. What is left out then runs while the model is idle.
	warmUpLimit = 19 * time.Second
	warmUpAll   = 23 * time.Second
	mustLimit   = 5 * time.Second
	// compareLeast is how much time must be left for the other layout: two new contexts alone take a second or two.
	compareLeast = 3 * time.Second
	// warmUpDepth is how many tokens sequences have in the second pass: backends have other kernels for long caches (from 1024
	// cells on, at the longest), and the cost of a cell shows.
	warmUpDepth = 2048
	// warmUpLeast is the least depth worth a second pass.
	warmUpLeast = 256
)

// warmed is a shape's cost: span cells in use, duration of a run with everything compiled.
type warmed struct {
	shape    batch.Shape
	span     int
	duration time.Duration
	// doubtful says that it was measured soon after a compilation, on an empty memory.
	doubtful bool
}

const (
	// essential is how many of batch.WarmupShapes' first shapes every request meets.
	essential = 3
	// probe is the prompt of the second of them, and slowProbe how long it takes, compiled, where it is computing that takes the
	// time: an integrated GPU, or a software driver. There a shape runs once, and nothing is run later, when it would be in the way.
	probe     = 64
	slowProbe = 150 * time.Millisecond
)

// warmUp decodes every shape that the planner will use, on an empty and on a filled memory, because backends compile
// pipelines and allocate buffers at the first use of a shape: up to 11 s that would otherwise land in somebody's first
// request. Backends that compute on the CPU have nothing to compile: one small step pages the weights in, which is what it
// is for there. It stops early at until, but on a fast device not before the essential shapes, nor before these behind a long context unless
// that would take mustLimit more; compiled is how long the longest compilation took so far. brief asks for no more than what two layouts are
// compared by.
//
// It returns what shapes took when they ran a second time, which teaches the scheduler's cost model, and what is left for later.
func warmUp(ctx context.Context, m Model, cfg batch.Config, until time.Time, compiled time.Duration, brief bool, log *slog.Logger, progress func(float64)) ([]warmed, *warmer, error) {
	w := &warmer{ctx: ctx, m: m, log: log, cfg: cfg, until: until, longest: compiled, progress: progress, lens: make([]int32, cfg.Sequences)}
	if !m.Async() {
		if err := w.run(batch.Shape{Decode: 1}); err != nil {
			return nil, nil, err
		}
		progress(1)
		return nil, nil, m.Clear()
	}
	shapes := batch.WarmupShapes(cfg)
	w.total = 2 * len(shapes)
	for _, s := range shapes {
		if s.Prefill == 0 {
			w.widest = max(w.widest, s.Decode)
		}
	}
	first, rest := shapes[:min(essential, len(shapes))], shapes[min(essential, len(shapes)):]
	w.must = !brief
	for _, part := range [][]batch.Shape{first, rest} {
		if err := w.both(part, brief); err != nil {
			return nil, nil, err
		}
		w.must = false
	}
	if !brief {
		if err := rehearse(ctx, m, cfg, w.out, until); err != nil {
			return nil, nil, fmt.Errorf("rehearse: %w", err)
		}
		w.compiled = time.Now() // perhaps
	}
	switch {
	case len(w.missed) > 0 && w.slow:
		log.Warn("the device is slow: the warm-up was cut short", "shapes_left", len(w.missed), "of", w.total)
		w.missed = nil
	case len(w.missed) > 0:
		log.Warn("the warm-up ran out of time: the rest follows while the model is idle", "shapes_left", len(w.missed), "of", w.total)
	}
	if err := w.again(func() bool { return ctx.Err() != nil }); err != nil {
		return nil, nil, err
	}
	progress(1)
	return w.out, w, m.Clear()
}

// both runs shapes on an empty and on a filled memory.
func (w *warmer) both(shapes []batch.Shape, brief bool) error {
	w.depth = 0
	for _, s := range shapes {
		if brief && !w.comparable(s) {
			w.done++
			continue
		}
		if err := w.shape(s); err != nil {
			return err
		}
	}
	// Attention behind a long context has kernels of its own, which take nearly as long to compile as all of the first long step.
	w.must = w.must && time.Now().Add(w.longest).Before(w.until.Add(mustLimit))
	ok, err := w.fill()
	if err != nil {
		return err
	}
	for _, s := range shapes {
		switch {
		case !costly(&w.cfg, s) || !w.deepens(s) || brief && !w.comparable(s):
			w.done++
		case !ok:
			w.missed = append(w.missed, later{s, true})
		default:
			if err := w.shape(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// costly says whether a shape is run behind a long context, too: those that are met there most.
func costly(cfg *batch.Config, s batch.Shape) bool {
	return s.Decode > 0 || s.Prompts > 0 || s.Prefill == cfg.Chunk || s.Prefill == 128 || s.Prefill == 256
}

// comparable says whether a shape is what layouts are compared by.
func (w *warmer) comparable(s batch.Shape) bool {
	switch s {
	case batch.Shape{Decode: 1}, batch.Shape{Decode: w.widest}, batch.Shape{Decode: costRows}, batch.Shape{Prefill: evaluationRows},
		batch.Shape{Decode: costRows, Prefill: evaluationRows - costRows}:
		return true
	}
	return false
}

// warmer is a warm-up under way.
type warmer struct {
	ctx         context.Context
	m           Model
	log         *slog.Logger
	cfg         batch.Config
	until       time.Time
	progress    func(float64)
	done, total int
	widest      int           // most decode rows of a shape
	must        bool          // whatever the time, unless the device is slow
	slow        bool          // the device is
	moved       bool          // what moves to and from host memory take was measured
	perRow      time.Duration // of a prompt, on a slow device
	missed      []later       // what there was no time for
	copyTime    time.Duration // of one sequence, in streams
	compiled    time.Time     // when something was, last
	longest     time.Duration // that took so far
	depth       int32         // tokens of every sequence between two shapes
	lens        []int32       // tokens of each
	rows        []batch.Row
	out         []warmed
}

// later is a shape that has not run yet, deep: behind a long context.
type later struct {
	shape batch.Shape
	deep  bool
}

// goOn runs missed shapes on a memory that is empty until there are none left or busy says that there is something better to do,
// and leaves the memory empty. It returns what was measured.
func (w *warmer) goOn(busy func() bool) ([]warmed, error) {
	w.ctx, w.until, w.out, w.depth = context.Background(), time.Now().Add(time.Hour), nil, 0
	var err error
	for len(w.missed) > 0 && err == nil && !busy() {
		l := w.missed[0]
		w.missed = w.missed[1:]
		ok := true
		switch {
		case !l.deep:
			w.depth = 0
		case w.depth == 0:
			ok, err = w.fill()
		}
		if err == nil && ok {
			err = w.shape(l.shape)
		}
	}
	w.depth = 0
	if err == nil {
		err = w.again(busy)
	}
	if err != nil {
		return nil, err
	}
	return w.out, w.m.Clear()
}

// timedRuns is how often a shape is timed; the fastest counts. The costs of cells are differences of these. The shapes of less interest
// run once.
const timedRuns = 3

// settle is how long a shape is timed for which something was compiled: meanwhile the GPU has lowered its clocks, and 64 rows that
// take 15 ms took 75.
const settle = 120 * time.Millisecond

// slowShape is what a warm-up's log mentions, if the shape is faster later: something was compiled.
const slowShape = 300 * time.Millisecond

// shape runs a shape and, to measure it, again.
func (w *warmer) shape(s batch.Shape) error {
	w.progress(min(1, float64(w.done)/float64(w.total)))
	w.done++
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if w.late(s.Rows()) {
		w.missed = append(w.missed, later{s, w.depth > 0})
		return nil
	}
	first, err := w.timed(s)
	if err != nil {
		return err
	}
	if first > slowShape {
		w.compiled, w.longest = time.Now(), max(w.longest, first)
	}
	took := time.Duration(0)
	if w.slow {
		took = first
	}
	measured := time.Now()
	for n := 0; !w.slow && (n == 0 || n < timedRuns && (s.Prefill == 0 || costly(&w.cfg, s)) || first > slowShape && time.Since(measured) < settle); n++ {
		d, err := w.timed(s)
		if err != nil {
			return err
		}
		if n == 0 || d < took {
			took = d
		}
	}
	if n := min(probe, w.cfg.Chunk); s.Decode == 0 && s.Prefill == n && took/time.Duration(n) > slowProbe/probe {
		w.slow, w.perRow = true, took/time.Duration(n)
	}
	if first > slowShape && first > 3*took {
		w.log.Info("a shape was slow the first time", "decode", s.Decode, "prefill", s.Prefill, "prompts", s.Prompts,
			"depth", w.depth, "first", first, "then", took)
	}
	span := int(w.depth) + s.Rows()
	if w.cfg.Layout == batch.LayoutStreams && s.Decode > 0 {
		span = int(w.depth) + 1
	}
	w.log.Debug("shape", "decode", s.Decode, "prefill", s.Prefill, "prompts", s.Prompts, "depth", w.depth, "first", first, "then", took)
	w.out = append(w.out, warmed{s, span, took, w.depth == 0 && !w.slow && measured.Sub(w.compiled) < clocksUp})
	return nil
}

const (
	// clocksUp is how long after a compilation a GPU may have low clocks (64 rows took 59 ms instead of 15), againLimit how long measuring what
	// was measured then may take.
	clocksUp   = 400 * time.Millisecond
	againLimit = time.Second
)

// again measures shapes once more that were measured with low clocks, until busy says that there is something better to do. Start-up has no
// time to wait after each compilation, and with an empty shader cache most of what it measures comes behind one.
func (w *warmer) again(busy func() bool) error {
	until := time.Now().Add(againLimit)
	w.depth = 0
	for i := range w.out {
		c := &w.out[i]
		if !c.doubtful {
			continue
		}
		c.doubtful = false
		for n := 0; n < timedRuns || time.Since(w.compiled) < clocksUp; n++ {
			if busy() || time.Now().After(until) {
				return nil
			}
			d, err := w.timed(c.shape)
			if err != nil {
				return err
			}
			c.duration = min(c.duration, d)
		}
	}
	return nil
}

// timed is run, and how long that took.
func (w *warmer) timed(s batch.Shape) (time.Duration, error) {
	began := time.Now()
	err := w.run(s)
	return time.Since(began), err
}

// run decodes one step of a shape and takes its tokens back.
func (w *warmer) run(s batch.Shape) error {
	if w.depth == 0 {
		if err := w.m.Clear(); err != nil {
			return err
		}
		clear(w.lens)
	}
	w.rows = w.rows[:0]
	for i := range s.Decode {
		w.row(i, batch.RowDecode, int32(i))
	}
	output, left, prompts := int32(s.Decode), s.Prefill, max(1, s.Prompts)
	for p := range prompts {
		n := left / (prompts - p)
		left -= n
		for i := range n {
			if i < n-1 {
				w.row(s.Decode+p, batch.RowPrefill, -1)
				continue
			}
			w.row(s.Decode+p, batch.RowPrefill, output)
			output++
		}
	}
	if err := decode(w.m, w.rows); err != nil {
		return fmt.Errorf("warm up %d decode and %d prefill rows: %w", s.Decode, s.Prefill, err)
	}
	return w.cut()
}

// row appends a row behind the tokens of a sequence.
func (w *warmer) row(seq int, kind batch.RowKind, output int32) {
	n := w.lens[seq]
	w.rows = append(w.rows, batch.Row{Token: fillToken(w.m, int(n)), Pos: n, Seq: int32(seq), Output: output, Kind: kind})
	w.lens[seq] = n + 1
}

// cut shortens every sequence to the depth again.
func (w *warmer) cut() error {
	if w.depth == 0 {
		return nil // the next run clears all
	}
	for id, n := range w.lens {
		if n > w.depth {
			if err := w.m.Remove(int32(id), w.depth, -1); err != nil {
				return err
			}
			w.lens[id] = w.depth
		}
	}
	return nil
}

// isSlow says that measuring takes too long on this device; a nil warmer is not.
func (w *warmer) isSlow() bool { return w != nil && w.slow }

// late says that there is no time for a number of rows.
func (w *warmer) late(rows int) bool {
	return (!w.must || w.slow) && time.Now().Add(w.perRow*time.Duration(rows)).After(w.until)
}

// deepest is how many tokens every sequence can be given behind which shapes still fit.
func (w *warmer) deepest() int {
	room := w.cfg.Context - w.cfg.Chunk
	if w.cfg.Layout == batch.LayoutUnified {
		room = min(room, w.cfg.Cells-2*w.cfg.Chunk)
	}
	return min(warmUpDepth, room)
}

// deepens says whether a shape can run behind a long context: there is room, and the model can do what fill takes.
func (w *warmer) deepens(s batch.Shape) bool {
	c := &w.cfg
	return w.deepest() >= warmUpLeast && !c.NoCopy && !c.NoTrim && !c.Recurrent && (s.IDs() == 1 || !w.alone())
}

// alone says that only the first sequence is given a long context. In a window cache a cell that several sequences share stays, so that the
// windows of all would soon hold nothing else.
func (w *warmer) alone() bool { return w.cfg.Window > 0 }

// fill gives every sequence the same tokens. ok is false when that cannot be, or when there is no time left.
func (w *warmer) fill() (ok bool, err error) {
	c, depth := &w.cfg, int32(w.deepest())
	if !w.deepens(batch.Shape{Decode: 1}) || w.late(w.deepest()) {
		return false, nil
	}
	if err := w.m.Clear(); err != nil {
		return false, err
	}
	if err := prefillSequence(w.ctx, w.m, c.Chunk, 0, int(depth)); err != nil {
		return false, err
	}
	if err := w.moves(depth); err != nil {
		return false, err
	}
	clear(w.lens)
	w.depth, w.lens[0] = depth, depth
	if w.alone() {
		return true, nil
	}
	for id := range w.lens {
		w.lens[id] = depth
	}
	// In streams the library copies when the next step is computed: the same step before, with, and after the copies.
	var took [3]time.Duration
	for i := range took {
		if i == 1 {
			for id := 1; id < c.Sequences; id++ {
				if err := w.m.Copy(0, int32(id), 0, -1); err != nil {
					return false, err
				}
			}
		}
		began := time.Now()
		if err := w.run(batch.Shape{Decode: 1}); err != nil {
			return false, err
		}
		took[i] = time.Since(began)
	}
	if c.Layout == batch.LayoutStreams && c.Sequences > 1 {
		w.copyTime = max(time.Microsecond, (took[1]-took[2])/time.Duration(c.Sequences-1))
		w.log.Debug("copies of a sequence", "took", w.copyTime)
	}
	return true, nil
}

// fillToken is some ordinary token: BOS first, then ids from the middle of the vocabulary.
func fillToken(m Model, i int) engine.Token {
	if i == 0 && m.BOS() >= 0 {
		return m.BOS()
	}
	n := m.Info().VocabSize
	return engine.Token(n/2 + i%max(1, n/2))
}

// decode runs rows to their end; any code but OK is an error.
func decode(m Model, rows []batch.Row) error {
	code, err := m.Decode(rows)
	if err == nil {
		code, err = m.Sync()
	}
	if err == nil && code != batch.CodeOK {
		err = fmt.Errorf("decode returned %d", code)
	}
	return err
}
