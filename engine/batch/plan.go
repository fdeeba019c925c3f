package batch

import "time"

// Plan decides the next step. Time must not go backwards between calls.
func (s *Scheduler) Plan(now time.Duration) *Step {
	s.check()
	s.now = max(s.now, now)
	st := &s.step
	*st = Step{
		Number: st.Number + 1, Ops: st.Ops[:0], After: st.After[:0], Rows: st.Rows[:0],
		Samples: st.Samples[:0], Events: append(st.Events[:0], s.pending...),
	}
	s.pending = s.pending[:0]
	s.decodes, s.prefills = s.decodes[:0], s.prefills[:0]
	s.sampled, s.forks = s.sampled[:0], s.forks[:0]
	s.preempted, s.copied, s.forked = false, s.forked, 0
	s.host.begin(s.now)
	s.cost.forget(s.now)
	s.forgetCopies()
	if !s.dead && (len(s.jobs) > 0 || s.draining) && !s.endDrain() {
		s.ensure()
		s.limitMoves(false)
		if !s.preempted {
			s.admit()
			if len(s.mem.win) > 0 {
				s.ensure() // a cell that got a second owner cannot be taken over when the window has passed it
			}
		}
		if s.cfg.Recurrent {
			s.checkpoints()
		}
		if s.gather(); len(s.decodes) == 0 {
			s.slip.since = 0
		}
		s.payRent()
		s.limitMoves(true)
		s.choosePrefills()
		s.build()
	}
	st.Ops, s.ops = append(st.Ops, s.ops...), s.ops[:0]
	if s.planned = !st.Idle(); !s.planned {
		s.slip.since = 0 // who waits for a client is not late
	}
	return st
}

// gather lists the running choices by what they do next.
func (s *Scheduler) gather() {
	s.decodes, s.prefills = s.decodes[:0], s.prefills[:0]
	for _, r := range s.runs {
		switch {
		case r == nil:
		case r.job.held:
			r.take, r.fill = 0, 0
		case r.state == stateDecode:
			r.take, r.fill = 1, 0
			s.decodes = append(s.decodes, r)
		case r.state == statePrefill:
			r.take, r.fill = 0, 0
			s.prefills = append(s.prefills, r)
		}
	}
}

// ensure makes room for the rows that must go on: every decode, and the first of all choices when it is prefilling. It
// evicts cached prefixes first and then takes the place of the youngest choices of the lowest class.
//
// Progress: the first choice (highest class, oldest) is never preempted, alone it always fits because Cells >=
// Context, and everything else can be taken away. So every choice is the first one at some time and completes.
func (s *Scheduler) ensure() {
	for {
		s.gather()
		first := s.first()
		need := len(s.decodes)
		if first != nil && first.state == statePrefill {
			need += int(min(first.target-first.have, int32(min(s.cfg.MinPrefill, s.cfg.Chunk-need))))
		}
		if s.mem.fits(need) {
			return
		}
		s.limitMoves(false)
		if s.evict(need-s.mem.base.Free(), -1) {
			continue
		}
		v := s.victim(first)
		if v == nil {
			return
		}
		s.preempt(v)
	}
}

// first is the running choice that goes before all others, those of slow clients last; nil when nothing runs.
func (s *Scheduler) first() *run {
	var best *run
	for _, r := range s.runs {
		if r != nil && (best == nil || (best.job.held && !r.job.held) || (best.job.held == r.job.held && r.before(best))) {
			best = r
		}
	}
	return best
}

// patience is how often a choice may be preempted before others are preferred.
const patience = 3

// victim is the running choice to preempt: one whose client does not read, else the youngest of the lowest class, if
// possible not one that was often preempted. Never first.
func (s *Scheduler) victim(first *run) *run {
	var worst *run
	rank := func(r *run) int {
		switch {
		case r.job.held:
			return 0
		case r.preempted < patience:
			return 1
		}
		return 2
	}
	for _, r := range s.runs {
		if r == nil || r == first {
			continue
		}
		if worst == nil || rank(r) < rank(worst) || (rank(r) == rank(worst) && worst.before(r)) {
			worst = r
		}
	}
	return worst
}

// preempt sends a running choice back to the queue. What it computed stays cached as long as nobody needs the cells.
func (s *Scheduler) preempt(r *run) {
	s.leave(s.now, r)
	r.state = stateWaiting
	r.preempted++
	r.matched = 0
	r.job.usage.Preemptions++
	s.stats.Preemptions++
	s.preempted = true
	s.waiting = append(s.waiting, r)
	s.step.Events = append(s.step.Events, Event{Kind: EventPreempted, Job: r.job.ID, Choice: r.choice})
}
