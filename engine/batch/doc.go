// Package batch decides, step by step, what a llama.cpp context computes: which sequences decode, which prompts are
// prefilled and how far, who waits, which cached prefixes are shared, kept or evicted, and who gives way when the KV
// cells run out.
//
// It is the pure half of the step loop in engine/worker, its only caller. A Scheduler is a value with no goroutine,
// lock, clock, randomness, I/O or cgo: time comes in as an argument (a time.Duration since any fixed start), sampled
// tokens come in through Commit, and KV operations and batch rows go out through Plan. A Scheduler belongs to one
// goroutine, the one that owns the llama context.
//
// The caller's loop:
//
//	s.Submit(now, job), s.Cancel(now, id)       // as they arrive, between a Commit and the next Plan
//	step := s.Plan(now)                         // valid until the next Plan
//	report(step.Events)
//	if step.Idle() { wait for a Submit or Cancel, or for step.Wait; continue }
//	for op := range step.Ops { apply it to the context's memory }
//	if len(step.Rows) > 0 { code = llama_decode(step.Rows); sample step.Samples }
//	if code == 0 { for op := range step.After { apply it } }
//	report(s.Commit(now, Result{Code, Duration, Sampled}))
//
// Every Plan that is not idle is followed by exactly one Commit. The Scheduler mirrors the cells of the context
// (package prefix), so a step that it plans always finds its cells: llama_decode's return code 1 is a bug, which is
// counted and survived, and never reaches a client.
package batch
