package batch

import (
	"math"
	"slices"
	"time"

	"hearth/engine"
)

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
	s.preempted = false
	if !s.dead && len(s.jobs) > 0 {
		s.ensure()
		if !s.preempted {
			s.admit()
			if len(s.mem.win) > 0 {
				s.ensure() // a cell that got a second owner cannot be taken over when the window has passed it
			}
		}
		if s.cfg.Recurrent {
			s.checkpoints()
		}
		s.gather()
		s.trimSpan()
		s.choosePrefills()
		s.build()
	}
	st.Ops, s.ops = append(st.Ops, s.ops...), s.ops[:0]
	s.planned = !st.Idle()
	return st
}

// gather lists the running choices by what they do next.
func (s *Scheduler) gather() {
	s.decodes, s.prefills = s.decodes[:0], s.prefills[:0]
	for _, r := range s.runs {
		switch {
		case r == nil:
		case r.job.held:
			r.take = 0
		case r.state == stateDecode:
			r.take = 1
			s.decodes = append(s.decodes, r)
		case r.state == statePrefill:
			r.take = 0
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

// choosePrefills sets take for the prefilling choices that get rows in this step.
func (s *Scheduler) choosePrefills() {
	if len(s.prefills) == 0 {
		s.sinceGrant = 0
		return
	}
	s.orderPrefills()
	budget := s.budget()
	if s.cfg.Recurrent && len(s.decodes) > 0 {
		s.alternate(&budget)
	}
	outputs := len(s.decodes)
	chosen := 0
	for _, r := range s.prefills {
		n := min(int32(budget), s.stopOf(r)-r.have)
		last := r.have+n == r.target && r.job.MaxTokens != 0
		if last && outputs >= s.cfg.Outputs {
			n, last = n-1, false
		}
		if n <= 0 {
			continue
		}
		r.take = n
		if chosen > 0 && s.split.equal && !s.worthwhile() {
			r.take = 0
			continue
		}
		if last {
			outputs++
		}
		budget -= int(n)
		s.prefills[chosen] = r
		chosen++
	}
	s.prefills = s.prefills[:chosen]
	s.fitPrefills()
}

// orderPrefills sorts by class, then by work left less what waiting is worth. When cells are short the first choice
// of all goes first, so that it progresses.
func (s *Scheduler) orderPrefills() {
	first := s.first()
	_, pinned, total := s.mem.count()
	short := s.mem.base != nil && total-pinned < s.cfg.Chunk
	key := func(r *run) (engine.Priority, float64) {
		if short && r == first {
			return math.MaxInt8, 0
		}
		return max(r.job.Priority, r.boost), float64(r.target-r.have) - s.credit(s.now-r.job.submitted)
	}
	for i := 1; i < len(s.prefills); i++ { // few, and nearly sorted
		for k := i; k > 0; k-- {
			a, b := s.prefills[k-1], s.prefills[k]
			pa, wa := key(a)
			pb, wb := key(b)
			if pa > pb || (pa == pb && (wa < wb || (wa == wb && a.before(b)))) {
				break
			}
			s.prefills[k-1], s.prefills[k] = b, a
		}
	}
}

// budget is how many prefill rows this step may have.
func (s *Scheduler) budget() int {
	d := len(s.decodes)
	most := (s.cfg.Chunk >> s.caution) - d
	if s.cfg.Recurrent {
		most = s.cfg.Chunk >> s.caution
	}
	depth := int(s.prefills[0].have)
	if d == 0 {
		n, ok := s.cost.prefillWithin(s.cfg.IdleTarget, 0, depth)
		if !ok {
			n = most
		}
		return max(1, min(max(n, s.cfg.MinPrefill), most))
	}
	left := 0
	for _, r := range s.prefills {
		left += int(r.target - r.have)
	}
	l := load{decodes: d, span: s.span()}
	tDecode := time.Duration(s.cost.decodeTime(l) * float64(time.Second))
	target := s.cfg.ITLTarget
	if target == 0 {
		target = max(50*time.Millisecond, tDecode*5/2)
	}
	n, ok := s.cost.prefillWithin(target-tDecode, d, depth)
	if !ok {
		n = 4 * s.cfg.MinPrefill
	}
	if least := min(s.cfg.MinPrefill, left); n < least {
		s.sinceGrant++
		if s.sinceGrant < s.grantEvery(l, tDecode, target, least, depth) {
			return 0
		}
		n = least
	}
	s.sinceGrant = 0
	return max(0, min(n, most))
}

// grantEvery is m for a prefill that does not fit into the target: one of every m steps has it, so that the mean time
// between tokens meets the target, but at least a quarter of the time goes to prefill.
func (s *Scheduler) grantEvery(l load, tDecode, target time.Duration, rows, depth int) int {
	l.prefills, l.depth = rows, depth
	extra := s.cost.predict(l) - tDecode
	if extra <= 0 || tDecode <= 0 {
		return 1
	}
	byShare := int(3 * extra / tDecode) // extra / ((m-1)*tDecode + tDecode + extra) >= 1/4
	m := byShare
	if slack := target - tDecode; slack > 0 {
		m = min(m, int((extra+slack-1)/slack))
	}
	return max(1, m)
}

// span is n_kv of the next step, as far as it is known before its rows are.
func (s *Scheduler) span() int {
	if s.mem.base != nil {
		return s.mem.base.Span()
	}
	top := int32(0)
	for _, r := range s.decodes {
		top = max(top, r.have)
	}
	return max(256, (int(top)+256)/256*256)
}

// alternate keeps prefill and decode rows of a recurrent model apart: two evaluations either way, so that a step with
// one of them costs the running choices less. A prefill of one row is like a decode row and comes along.
func (s *Scheduler) alternate(budget *int) {
	if *budget > 0 && !s.lastPrefill {
		for _, r := range s.decodes {
			r.take = 0
		}
		s.decodes = s.decodes[:0]
		return
	}
	ready := s.prefills[:0]
	for _, r := range s.prefills {
		if s.stopOf(r)-r.have == 1 {
			ready = append(ready, r)
		}
	}
	s.prefills = ready
	*budget = min(len(ready), s.cfg.Chunk-len(s.decodes))
}

// worthwhile reports whether the takes set so far make a batch in which every evaluation behind the first has enough
// rows to be worth another pass over the weights.
func (s *Scheduler) worthwhile() bool {
	s.split.begin()
	rows := int32(0)
	for _, r := range s.runs {
		if r != nil && r.take > 0 {
			s.split.add(r.id, r.take)
			if r.state == statePrefill {
				rows += r.take
			}
		}
	}
	return s.split.count()-1 <= max(1, int(rows)/s.cfg.MinPrefill)
}

// fitPrefills evicts until the step has its cells, and shrinks the prefills when that does not suffice.
func (s *Scheduler) fitPrefills() {
	for {
		rows := len(s.decodes)
		for _, r := range s.prefills {
			rows += int(r.take)
		}
		for !s.mem.fits(rows) && s.evict(rows-s.mem.base.Free(), -1) {
		}
		if s.mem.fits(rows) || len(s.prefills) == 0 {
			return
		}
		last := s.prefills[len(s.prefills)-1]
		if last.take /= 2; last.take == 0 {
			s.prefills = s.prefills[:len(s.prefills)-1]
		}
	}
}

// build writes rows, samples and padding.
func (s *Scheduler) build() {
	if s.cfg.Layout == LayoutStreams {
		for _, r := range s.runs {
			if r != nil && r.take > 0 {
				s.addRows(r)
			}
		}
	} else {
		for _, r := range s.decodes {
			s.addRows(r)
		}
		for _, r := range s.prefills {
			s.addRows(r)
		}
	}
	st := &s.step
	if len(st.Rows) == 0 {
		return
	}
	if !s.cfg.NoPad && !s.cfg.Recurrent && st.Decodes > 0 {
		s.pad()
	}
	st.Evaluations = s.split.rows(st.Rows)
	s.lastPrefill = st.Prefills > 0 && st.Decodes == 0
	s.load = load{decodes: st.Decodes + st.Pads, span: s.mem.span(st.Rows), prefills: st.Prefills}
	if st.Prefills > 0 {
		depth := 0
		for _, r := range s.prefills {
			depth += int(r.take) * int(r.have+r.take/2)
		}
		s.load.depth = depth / st.Prefills
	}
	st.Predicted = s.cost.predict(s.load)
}

// addRows appends a run's rows, and what is sampled from the last of them.
func (s *Scheduler) addRows(r *run) {
	st := &s.step
	kind := RowPrefill
	if r.state == stateDecode {
		kind = RowDecode
		st.Decodes++
	} else {
		st.Prefills += int(r.take)
	}
	for i := range r.take {
		p := r.have + i
		st.Rows = append(st.Rows, Row{Token: r.token(p), Pos: p, Seq: r.id, Output: -1, Kind: kind})
	}
	if r.have+r.take < r.len() || r.job.MaxTokens == 0 {
		return
	}
	row := int32(len(st.Rows) - 1)
	st.Rows[row].Output = int32(st.Outputs)
	st.Outputs++
	s.addSample(r, row)
	if kind == RowPrefill && len(r.job.runs) > 1 && len(r.gen) == 0 {
		s.forkSiblings(r, row)
	}
}

func (s *Scheduler) addSample(r *run, row int32) {
	s.step.Samples = append(s.step.Samples, Sample{
		Job: r.job.ID, Choice: r.choice, Row: row, Output: s.step.Rows[row].Output, Index: int32(len(r.gen)),
	})
	s.sampled = append(s.sampled, r)
}

// forkSiblings starts other choices of the job from the row behind the prompt: they sample from the same logits and
// share the prompt's cells. Those that find no id or no cells stay in the queue and find the prompt cached later.
func (s *Scheduler) forkSiblings(lead *run, row int32) {
	if s.cfg.NoCopy {
		return
	}
	committed := s.committed()
	for i := range lead.job.runs {
		r := &lead.job.runs[i]
		if r.state != stateWaiting || len(r.gen) > 0 || s.running >= s.cfg.MaxRunning {
			continue
		}
		committed += s.reserve(r)
		if s.mem.base != nil && committed > s.cfg.Cells {
			return
		}
		id := s.freeID(int(lead.id))
		if id < 0 {
			return
		}
		s.waiting = remove(s.waiting, r)
		s.occupy(r, id, 0)
		r.state, r.target, r.cached = statePrefill, r.len(), r.len()-1
		s.forks = append(s.forks, r)
		s.step.After = s.copyOps(s.step.After, int(lead.id), id, r.target)
		s.addSample(r, row)
		s.step.Events = append(s.step.Events, Event{Kind: EventAdmitted, Job: r.job.ID, Choice: r.choice, Cached: r.cached, Total: r.target})
	}
}

// remove deletes a run from a list and keeps its order.
func remove(list []*run, r *run) []*run {
	if i := slices.Index(list, r); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
