package batch

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"hearth/engine"
)

// giveUp is how many steps in a row may find no cells before the only choice left is failed: never, unless the
// context is not the one that the config describes.
const giveUp = 12

// Commit takes the result of the step that Plan returned. The events are valid until the next Commit.
func (s *Scheduler) Commit(now time.Duration, r Result) []Event {
	if !s.planned {
		panic("batch: Commit without a Plan that was not idle")
	}
	s.planned = false
	s.now = max(s.now, now)
	s.events = s.events[:0]
	s.commitMoves(&r)
	if len(s.step.Rows) == 0 {
		return s.events
	}
	s.finishStep(r)
	s.events = s.proposeLayout(s.events)
	return s.events
}

// finishStep acts on the code.
func (s *Scheduler) finishStep(r Result) {
	s.slip.spoiled = s.slip.spoiled || r.Code != CodeOK
	switch {
	case r.Code == CodeOK && len(r.Sampled) != len(s.step.Samples):
		panic("batch: Commit with another number of samples than Plan asked for")
	case r.Code == CodeOK:
		s.commitOK(r)
	case r.Code == CodeNoSlot:
		s.undoForks()
		s.commitNoSlot()
	case r.Code == CodeAborted:
		s.undoForks()
		s.commitAborted()
	case r.Code == CodeInvalid:
		s.undoForks()
		s.failStep()
	default:
		s.failAll()
	}
}

// commitOK brings mirror, runs and accounts up to date.
func (s *Scheduler) commitOK(res Result) {
	st := &s.step
	if !s.mem.place(st.Rows, s.split.pieces) {
		s.mismatch()
	}
	if st.Prefills > 0 || !s.setsAside() {
		s.caution, s.mismatches = 0, 0
	}
	s.stats.LastStep, s.stats.LastDecodes, s.stats.LastPrefills = res.Duration, st.Decodes, st.Prefills
	s.stats.PadRows += uint64(st.Pads)
	s.stats.PromptTokens += uint64(st.Prefills)
	s.learn(res.Duration)
	for _, r := range s.decodes {
		r.have += r.take
		r.job.tenant.deficit -= decodeWeight
	}
	for _, r := range s.prefills {
		r.have += r.take
		r.job.tenant.deficit -= prefillWeight * int64(r.take)
		if s.tree.Holds(int(r.id)) {
			s.tree.SetHave(int(r.id), r.have)
		}
		s.events = append(s.events, Event{
			Kind: EventPrefill, Job: r.job.ID, Choice: r.choice, Cached: r.cached, Done: r.have, Total: r.target,
		})
	}
	s.commitAfter()
	s.observeSharing()
	for i, r := range s.sampled {
		s.accept(r, res.Sampled[i])
	}
	for _, r := range s.prefills {
		if r.state == statePrefill && r.have == r.target && r.job.MaxTokens == 0 {
			s.events = s.end(s.now, r, engine.FinishLength, s.events)
		}
	}
	s.afterPrompt = st.Prefills > 0
	s.slip.passed(s.now, st, st.Prefills > 0 && s.behind, res.Duration > 0 && s.copied == 0, slices.ContainsFunc(s.runs, func(r *run) bool { return r != nil && r.state == stateDecode }))
}

// learn takes what the step took; 0: nobody knows. A step in which sequences were copied teaches what a copy takes, and nothing else:
// the library makes the copies when it computes the step, and their price is none of its rows'.
func (s *Scheduler) learn(took time.Duration) {
	switch st := &s.step; {
	case took <= 0:
	case s.copied == 0 && st.Prefills == 0:
		t, _ := s.cost.predict(s.load)
		t = s.learnTurn(took.Seconds(), t)
		s.cost.observe(s.load, toDuration(t), true)
		s.learnUsual(t)
	case s.copied == 0:
		s.cost.observe(s.load, took, true)
	case st.Predicted > 0:
		s.learnCopy((took - st.Predicted).Seconds() / float64(s.copied))
	}
}

// usually is a running mean of what decode-only steps take, in seconds, n of them.
type usually struct {
	n int
	t float64
}

// usualSpan is over how many seconds of such steps the mean is taken.
const usualSpan = 20.0

// learnUsual takes a decode-only step that took t seconds.
func (s *Scheduler) learnUsual(t float64) {
	u := &s.usual[bucketOf(s.step.Decodes)]
	u.n++
	u.t += max(min(1, t/usualSpan), 1/float64(u.n)) * (t - u.t)
}

// learnCopy corrects the price of a copy by one that seemed to take so many seconds, which is the difference of two large numbers: it
// counts by its factor, so that what is too much and what is too little have the same weight.
func (s *Scheduler) learnCopy(seen float64) {
	now := s.copyTime()
	factor := min(max(seen/now, 1/copyTrust), copyTrust)
	s.cfg.CopyTime, s.copySeen = max(time.Microsecond, toDuration(now*math.Pow(factor, copyGain))), s.now
}

// forgetCopies takes half of what made copies dearer back when none was made for a while: those that are thought too dear are not made.
func (s *Scheduler) forgetCopies() {
	if s.copyFirst > 0 && s.cfg.CopyTime > s.copyFirst && s.now-s.copySeen > priceKept {
		s.cfg.CopyTime, s.copySeen = (s.cfg.CopyTime+s.copyFirst)/2, s.now
	}
}

const (
	// copyGain is the weight of a step in the price of a copy, copyTrust the most that one is believed, as a factor.
	copyGain, copyTrust = 0.1, 4.0
)

// commitAfter mirrors step.After: copies for forks, then padding rows that go.
func (s *Scheduler) commitAfter() {
	for _, r := range s.forks {
		lead := s.leadOf(r)
		s.mem.copy(int(lead.id), int(r.id), r.target)
		r.have = r.target
		s.tree.SetHave(int(r.id), r.have)
	}
	if s.cfg.Layout == LayoutStreams {
		s.forked += len(s.forks)
	}
	for _, op := range s.step.After {
		if op.Kind == OpRemove && !s.isFork(int(op.Seq)) {
			s.mem.remove(int(op.Seq), op.P0)
		}
	}
}

// leadOf is the run that computed the prompt of a fork in this step.
func (s *Scheduler) leadOf(fork *run) *run {
	for _, r := range s.prefills {
		if r.job == fork.job {
			return r
		}
	}
	panic("batch: a fork without its prompt")
}

// accept takes a sampled token.
func (s *Scheduler) accept(r *run, got Sampled) {
	if got.Finish == engine.FinishError { // no token was drawn
		s.events = s.end(s.now, r, got.Finish, s.events)
		return
	}
	j := r.job
	r.gen = append(r.gen, got.Token)
	r.state = stateDecode
	j.usage.Completion++
	s.stats.CompletionTokens++
	if !j.wasFirst {
		j.wasFirst, j.first = true, s.now
		j.usage.Prefill = s.now - j.admitted
	}
	reason := got.Finish
	if reason == "" && r.left(s.cfg.Context) == 0 {
		reason = engine.FinishLength
	}
	if reason == "" {
		return
	}
	s.learnLength(len(r.gen))
	s.events = s.end(s.now, r, reason, s.events)
}

// learnLength moves the running 80th percentile of output lengths: up by 4/5 of a step for a longer output, down by 1/5 for
// a shorter one, in steps of an eighth.
func (s *Scheduler) learnLength(n int) {
	step := max(1, s.output/8)
	if float64(n) > s.output {
		s.output += step * 0.8
	} else {
		s.output = max(1, s.output-step*0.2)
	}
}

// undoForks sends choices that were to begin in a failed step back to the queue.
func (s *Scheduler) undoForks() {
	for _, r := range s.forks {
		id := int(r.id)
		s.runs[id] = nil
		s.running--
		s.mem.setPinned(id, false)
		s.tree.Remove(id)
		r.id, r.state, r.take, r.matched = -1, stateWaiting, 0, 0
		s.waiting = append(s.waiting, r)
	}
	s.forks = s.forks[:0]
}

// mismatch counts a disagreement between mirror and library.
func (s *Scheduler) mismatch() {
	s.stats.Mismatches++
	s.events = append(s.events, Event{Kind: EventMismatch})
}

// commitNoSlot survives return code 1: nothing changed, so plan again with less. Cached prefixes go first, then the
// chunk shrinks, then choices give way, and a client only sees a pause.
func (s *Scheduler) commitNoSlot() {
	s.mismatch()
	s.mismatches++
	for id, r := range s.runs {
		if r == nil && s.mem.lens[id] > 0 {
			s.drop(id)
		}
	}
	for s.cfg.Chunk>>(s.caution+1) > s.cfg.MaxRunning && s.mismatches > 1 {
		s.caution++
		if s.mismatches < 4 {
			break
		}
	}
	if s.mismatches < 4 {
		return
	}
	first := s.first()
	if v := s.victim(first); v != nil {
		events := s.step.Events
		s.step.Events = s.events
		s.preempt(v)
		s.events, s.step.Events = s.step.Events, events
		return
	}
	if s.mismatches > giveUp {
		s.events = s.end(s.now, first, engine.FinishError, s.events)
	}
}

// commitAborted goes back to before the step: evaluations that had finished are removed again, and a recurrent state,
// which cannot go back, is computed again from its prompt.
func (s *Scheduler) commitAborted() {
	for i := range s.step.Rows {
		row := &s.step.Rows[i]
		if i > 0 && s.step.Rows[i-1].Seq == row.Seq {
			continue
		}
		id := int(row.Seq)
		r := s.runs[id]
		if !s.cfg.Recurrent {
			s.ops = append(s.ops, Op{Kind: OpRemove, Seq: row.Seq, P0: row.Pos, P1: -1})
			continue
		}
		s.tree.Remove(id)
		s.ops = append(s.ops, Op{Kind: OpRemove, Seq: row.Seq, P0: 0, P1: -1})
		s.mem.remove(id, 0)
		r.have, r.state, r.target = 0, statePrefill, r.len()
		if r.job.Cache || len(r.job.runs) > 1 {
			s.tree.Insert(r.job.key, id, r.job.Prompt, r.gen, 0, s.now)
		}
	}
}

// failStep ends the choices of a step that llama_decode refused: a bug, but no reason to plan it forever.
func (s *Scheduler) failStep() {
	s.mismatch()
	for _, list := range [2][]*run{s.decodes, s.prefills} {
		for _, r := range list {
			s.events = s.end(s.now, r, engine.FinishError, s.events)
		}
	}
}

// failAll ends every job, in the order in which they came: the context is gone.
func (s *Scheduler) failAll() {
	s.dead = true
	jobs := slices.SortedFunc(maps.Values(s.jobs), func(a, b *job) int { return cmp.Compare(a.order, b.order) })
	for _, j := range jobs {
		for i := range j.runs {
			if r := &j.runs[i]; r.state != stateDone {
				s.events = s.end(s.now, r, engine.FinishError, s.events)
			}
		}
	}
}
