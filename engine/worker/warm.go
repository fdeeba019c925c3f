package worker

import (
	"context"
	"fmt"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// warmUpLimit bounds the warm-up. On the GPU measured (docs/scheduling.md) all shapes of one layout take about 20 s when
// nothing is in the driver's shader cache.
const warmUpLimit = 60 * time.Second

// warmUp decodes every shape that the planner will use once, because backends compile pipelines and allocate buffers at
// the first use of a shape: up to 10 s that would otherwise land in somebody's first request. Backends that compute
// on the CPU have nothing to compile: one small step pages the weights in, which is what it is for there.
//
// It returns what each shape took when it ran a second time, which teaches the scheduler's cost model.
func warmUp(ctx context.Context, m Model, cfg batch.Config, progress func(float64)) ([]warmed, error) {
	shapes := batch.WarmupShapes(cfg)
	if !m.Async() {
		shapes = []batch.Shape{{Decode: 1}}
	}
	deadline := time.Now().Add(warmUpLimit)
	var out []warmed
	for i, s := range shapes {
		progress(float64(i) / float64(len(shapes)))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if time.Now().After(deadline) {
			break
		}
		for again := range 2 {
			began := time.Now()
			if err := runShape(m, s); err != nil {
				return nil, fmt.Errorf("warm up %d decode and %d prefill rows: %w", s.Decode, s.Prefill, err)
			}
			if again == 1 {
				out = append(out, warmed{s, max(s.Decode, 1) + s.Prefill, time.Since(began)})
			}
			if !m.Async() {
				break // nothing was compiled, and start-up time counts
			}
		}
	}
	if m.Async() && time.Now().Before(deadline) {
		if err := rehearse(m, cfg); err != nil {
			return nil, fmt.Errorf("rehearse a full batch: %w", err)
		}
	}
	progress(1)
	return out, m.Clear()
}

// rehearseSequences and rehearseTokens size the rehearsal.
const (
	rehearseSequences = 16
	rehearseTokens    = 4096
)

// rehearse computes what a busy server computes: prompts packed over several sequences, decode steps on a cache that is
// not empty, and steps with both. Attention has pipelines of its own for these, which no shape on an empty cache
// compiles (measured: the first prefill of two sequences took 8 s, and the first full batch ran at half its later speed).
func rehearse(m Model, cfg batch.Config) error {
	n := min(cfg.Sequences, cfg.Outputs, rehearseSequences)
	room := cfg.Cells / 2
	if cfg.Layout == batch.LayoutStreams {
		room = rehearseTokens
	}
	length := min(min(room, rehearseTokens)/n, cfg.Context-8)
	if n < 2 || length < 2 || cfg.Recurrent { // recurrent models never mix sequences of unequal lengths
		return nil
	}
	if err := m.Clear(); err != nil {
		return err
	}
	at := make([]int32, n)
	var rows []batch.Row
	add := func(seq int, output bool) {
		r := batch.Row{Token: fillToken(m, int(at[seq])+seq), Pos: at[seq], Seq: int32(seq), Output: -1}
		if output {
			r.Output = 0 // its place among the outputs is given by its order
		}
		rows = append(rows, r)
		at[seq]++
	}
	flush := func() error {
		defer func() { rows = rows[:0] }()
		outputs := int32(0)
		for i := range rows {
			if rows[i].Output >= 0 {
				rows[i].Output = outputs
				outputs++
			}
		}
		return decode(m, rows)
	}
	for seq := range n {
		for i := range length {
			if add(seq, i == length-1); len(rows) == cfg.Chunk {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if len(rows) > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	return rehearseMixed(m, cfg, n, at, add, flush)
}

// rehearseMixed decodes with all n sequences, then with all but the last, which prefills beside them again, in the sizes
// that the planner grants.
func rehearseMixed(m Model, cfg batch.Config, n int, at []int32, add func(int, bool), flush func() error) error {
	for range 2 {
		for seq := range n {
			add(seq, true)
		}
		if err := flush(); err != nil {
			return err
		}
	}
	last := n - 1
	for _, prefill := range []int{64, 128, 256, cfg.Chunk - last} {
		if prefill > cfg.Chunk-last || prefill > cfg.Context-8 || prefill < 1 {
			continue
		}
		if err := m.Remove(int32(last), 0, -1); err != nil {
			return err
		}
		at[last] = 0
		for seq := range last {
			add(seq, true)
		}
		for i := range prefill {
			add(last, i == prefill-1)
		}
		if err := flush(); err != nil {
			return err
		}
	}
	return nil
}

// warmed is a shape's cost: span cells in use, duration of a run with everything compiled.
type warmed struct {
	shape    batch.Shape
	span     int
	duration time.Duration
}

// runShape decodes one step of a shape on an empty memory.
func runShape(m Model, s batch.Shape) error {
	if err := m.Clear(); err != nil {
		return err
	}
	var rows []batch.Row
	for i := range s.Decode {
		rows = append(rows, batch.Row{Token: fillToken(m, i), Seq: int32(i), Output: int32(i), Kind: batch.RowDecode})
	}
	for i := range s.Prefill {
		r := batch.Row{Token: fillToken(m, i), Pos: int32(i), Seq: int32(s.Decode), Output: -1, Kind: batch.RowPrefill}
		if i == s.Prefill-1 {
			r.Output = int32(s.Decode)
		}
		rows = append(rows, r)
	}
	return decode(m, rows)
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
