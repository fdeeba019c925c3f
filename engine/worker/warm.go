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
	if m.Async() {
		if err := rehearse(ctx, m, cfg, out, deadline); err != nil {
			return nil, fmt.Errorf("rehearse: %w", err)
		}
	}
	progress(1)
	return out, m.Clear()
}

// The rehearsal's load: waves of requests, each wave's prompts of one length (tokens), few output tokens each.
const (
	rehearseSequences = 16
	rehearseOutput    = 24
)

// rehearse runs the scheduler itself on made-up requests: prompts packed over several sequences, decodes beside prefills
// as their number grows, all on a cache that is not empty. Attention has pipelines of its own for much of that. Measured
// on the GPU of docs/benchmarks: without it the first 16 clients met steps of 1.1 and 2.3 s.
func rehearse(ctx context.Context, m Model, cfg batch.Config, costs []warmed, deadline time.Time) error {
	if err := m.Clear(); err != nil {
		return err
	}
	cfg.QueueLimit = 0 // the default, whatever clients may be allowed
	sched, err := batch.New(cfg)
	if err != nil {
		return err
	}
	for _, c := range costs {
		sched.Prime(c.shape, c.span, c.duration)
	}
	n := min(cfg.Sequences, rehearseSequences)
	id, now := batch.JobID(0), time.Duration(0)
	for _, length := range []int{512, 96, 2048} {
		if length > cfg.Context-rehearseOutput-1 {
			continue
		}
		for k := range n {
			id++
			prompt := make([]engine.Token, length)
			for i := range prompt {
				prompt[i] = fillToken(m, 1+i*(k+3)+length)
			}
			job := batch.Job{ID: id, Prompt: prompt, MaxTokens: rehearseOutput + k} // they end one after the other
			if err := sched.Submit(now, job); err != nil {
				return err
			}
		}
		for {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if time.Now().After(deadline) {
				return nil
			}
			now += time.Millisecond
			step := sched.Plan(now)
			if step.Idle() {
				break
			}
			if err := compute(m, step); err != nil {
				return err
			}
			// No duration: a step that compiled something must not teach the planner that steps are slow.
			sampled := make([]batch.Sampled, len(step.Samples))
			for i := range sampled {
				sampled[i].Token = fillToken(m, i+1)
			}
			sched.Commit(now, batch.Result{Sampled: sampled})
		}
	}
	return nil
}

// compute makes a planned step on the model.
func compute(m Model, step *batch.Step) error {
	apply := func(ops []batch.Op) error {
		for _, op := range ops {
			var err error
			if op.Kind == batch.OpCopy {
				err = m.Copy(op.Src, op.Seq, op.P0, op.P1)
			} else {
				err = m.Remove(op.Seq, op.P0, op.P1)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := apply(step.Ops); err != nil {
		return err
	}
	if len(step.Rows) > 0 {
		if err := decode(m, step.Rows); err != nil {
			return err
		}
	}
	return apply(step.After)
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
