package worker

import (
	"context"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// The rehearsal's load: waves of requests, each wave's prompts of one length (tokens), few output tokens each.
const (
	rehearseSequences = 4
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
	cfg.Host = batch.Host{}
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
