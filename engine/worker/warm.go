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
	// nothing is in the driver's shader cache. What is left out then compiles at its first use.
	warmUpLimit = 20 * time.Second
	warmUpAll   = 25 * time.Second
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
}

// warmUp decodes every shape that the planner will use, on an empty and on a filled memory, because backends compile
// pipelines and allocate buffers at the first use of a shape: up to 10 s that would otherwise land in somebody's first
// request. Backends that compute on the CPU have nothing to compile: one small step pages the weights in, which is what it
// is for there. It stops early at until. brief leaves out what another layout of the same model has compiled.
//
// It returns what shapes took when they ran a second time, which teaches the scheduler's cost model.
func warmUp(ctx context.Context, m Model, cfg batch.Config, until time.Time, brief bool, log *slog.Logger, progress func(float64)) ([]warmed, error) {
	w := &warmer{ctx: ctx, m: m, log: log, cfg: cfg, until: until, progress: progress, lens: make([]int32, cfg.Sequences)}
	if !m.Async() {
		if err := w.run(batch.Shape{Decode: 1}); err != nil {
			return nil, err
		}
		progress(1)
		return nil, m.Clear()
	}
	shapes := batch.WarmupShapes(cfg)
	w.total = 2 * len(shapes)
	for _, s := range shapes {
		if brief && !costly(&cfg, s) {
			continue
		}
		if err := w.shape(s, costly(&cfg, s)); err != nil {
			return nil, err
		}
	}
	ok, err := w.fill()
	if err != nil {
		return nil, err
	}
	for _, s := range shapes {
		if !ok || !costly(&cfg, s) {
			continue
		}
		if err := w.shape(s, true); err != nil {
			return nil, err
		}
	}
	if !brief {
		if err := rehearse(ctx, m, cfg, w.out, until); err != nil {
			return nil, fmt.Errorf("rehearse: %w", err)
		}
	}
	if w.missed > 0 {
		log.Warn("the warm-up ran out of time: some first requests will be slow", "shapes_left", w.missed, "of", w.total)
	}
	progress(1)
	return w.out, m.Clear()
}

// costly says whether the planner wants to know what a shape costs: all but the chunks of unusual sizes.
func costly(cfg *batch.Config, s batch.Shape) bool {
	return s.Decode > 0 || s.Prompts > 0 || s.Prefill == cfg.Chunk || s.Prefill == 64
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
	missed      int     // shapes that there was no time for
	depth       int32   // tokens of every sequence between two shapes
	lens        []int32 // tokens of each
	rows        []batch.Row
	out         []warmed
}

// decodeRuns is how often a decode step is timed; the fastest counts. The costs of cells are differences of these.
const decodeRuns = 3

// slowShape is what a warm-up's log mentions, if the shape is faster later: something was compiled.
const slowShape = 300 * time.Millisecond

// shape runs a shape and, to measure it, again.
func (w *warmer) shape(s batch.Shape, measure bool) error {
	w.progress(min(1, float64(w.done)/float64(w.total)))
	w.done++
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if time.Now().After(w.until) {
		w.missed++
		return nil
	}
	began := time.Now()
	if err := w.run(s); err != nil {
		return err
	}
	first := time.Since(began)
	if !measure {
		return nil
	}
	took := time.Duration(0)
	for n := 0; n == 0 || (n < decodeRuns && s.Prefill == 0); n++ {
		began = time.Now()
		if err := w.run(s); err != nil {
			return err
		}
		if d := time.Since(began); n == 0 || d < took {
			took = d
		}
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
	w.out = append(w.out, warmed{s, span, took})
	return nil
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

// fill gives every sequence the same tokens, as many as there is room for. ok is false when there is no room, no time left, or
// the model cannot do what it takes.
func (w *warmer) fill() (ok bool, err error) {
	c := &w.cfg
	room := c.Context - c.Chunk
	if c.Layout == batch.LayoutUnified {
		room = min(room, c.Cells-2*c.Chunk)
	}
	depth := int32(min(warmUpDepth, room))
	if depth < warmUpLeast || c.NoCopy || c.NoTrim || c.Recurrent || c.Window > 0 || time.Now().After(w.until) {
		return false, nil
	}
	if err := w.m.Clear(); err != nil {
		return false, err
	}
	if err := prefillSequence(w.m, c.Chunk, 0, int(depth)); err != nil {
		return false, err
	}
	for id := 1; id < c.Sequences; id++ {
		if err := w.m.Copy(0, int32(id), 0, -1); err != nil {
			return false, err
		}
	}
	w.depth = depth
	for id := range w.lens {
		w.lens[id] = depth
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
