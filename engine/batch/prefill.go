package batch

import (
	"math"
	"slices"
	"time"

	"hearth/engine"
)

// choosePrefills sets take and fill for the prefilling choices that get rows in this step.
func (s *Scheduler) choosePrefills() {
	if len(s.prefills) == 0 {
		s.sinceGrant = 0
		return
	}
	s.orderPrefills()
	together := s.cfg.NoPad && !s.split.equal // elsewhere they have steps of their own in any case
	if together {
		if s.together(); len(s.prefills) == 0 {
			return
		}
	}
	s.perStep, s.behind = 0, s.prefillsDeep()
	base := s.decodeTime()
	target := s.stepTarget(base) - s.host.spent
	decodes := s.decodes
	s.promised = len(decodes) > 0
	if apart := s.split.equal && len(decodes) > 0; apart {
		if s.lastPrefill {
			s.comeAlong()
			s.fitPrefills()
			return
		}
		s.setAside()
		s.perStep = s.turnTime() // of the decode rows' step behind this one
		defer func() {
			if len(s.prefills) == 0 {
				s.bringBack(decodes)
			}
		}()
	}
	var p packing
	if together && len(decodes) == 0 && s.allReady() {
		p = s.lastRows()
	} else {
		p = s.pack(base*float64(min(1, len(s.decodes))), target-base)
	}
	if len(decodes) == 0 && p.each <= 0 { // a device on which nothing fits must still go on
		p = s.bestRate()
	}
	switch {
	case len(decodes) > 0 && !s.granted(&p, base, target):
		s.prefills = s.prefills[:0]
		return
	case s.cfg.Recurrent:
		s.chooseStates(int(p.each) * p.k)
	default:
		s.prefills = s.prefills[:s.apply(p)]
	}
	s.fitPrefills()
}

// comeAlong leaves the prefills of one row of recurrent models, which are like decode rows.
func (s *Scheduler) comeAlong() {
	n := 0
	for _, r := range s.prefills {
		if s.cfg.Recurrent && s.stopOf(r)-r.have == 1 && len(s.decodes)+n < min(s.cfg.Chunk, s.cfg.Outputs) {
			r.take = 1
			s.prefills[n] = r
			n++
		}
	}
	s.prefills = s.prefills[:n]
}

// setAside takes the decode rows out of this step. Where only equal numbers of rows share an evaluation they would be one of
// their own in any case, and a step of their own serves them better: with a prompt's row among them every row's attention reads
// as much as the prompt has, a ninth row leaves the kernels for eight, and the prompt's evaluation misses its size by one.
func (s *Scheduler) setAside() {
	for _, r := range s.decodes {
		r.take = 0
	}
	s.decodes = s.decodes[:0]
}

// setsAside reports whether the step that is planned has decode rows alone because prompts have steps of their own: that it succeeds
// says nothing about a prompt's.
func (s *Scheduler) setsAside() bool {
	return s.split.equal && slices.ContainsFunc(s.runs, func(r *run) bool { return r != nil && r.state == statePrefill && r.take == 0 && !r.job.held })
}

func (s *Scheduler) bringBack(decodes []*run) {
	s.decodes = decodes
	for _, r := range decodes {
		r.take = 1
	}
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
		return r.class(), float64(r.target-r.have) - s.credit(s.now-r.job.submitted)
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

// decodeTime predicts the decode rows of this step alone, in seconds; 0: unknown, or there are none.
func (s *Scheduler) decodeTime() float64 {
	t, _ := s.cost.predict(s.sketch())
	return t
}

// idleRows is how many steps of one row a step without decode rows may take, where that is more than the idle target: a large model on a slow
// device, or a busy one, takes seconds for a single row, and not much longer for some more.
const idleRows = 4

// idleTarget is how long a step without decode rows may take, in seconds.
func (s *Scheduler) idleTarget() float64 {
	return max(s.cfg.IdleTarget.Seconds(), idleRows*s.decodeTimeOf(1))
}

// stepTarget is how long this step may take, in seconds.
func (s *Scheduler) stepTarget(base float64) float64 {
	if len(s.decodes) == 0 {
		return s.idleTarget()
	}
	reserve := slipReserve
	if s.cfg.NoPad {
		reserve = slipReserveCPU
	}
	target := s.promise(len(s.decodes), base)
	return target - s.slip.of(s.behind, target, reserve) - float64(s.copied)*s.copyTime()
}

// granted reports whether prefill rows are due beside decode rows. What does not fit into the target comes every m steps, so
// that the mean time between tokens meets it, but at least a quarter of the time goes to prefill.
func (s *Scheduler) granted(p *packing, base, target float64) bool {
	least := s.least()
	if least.each <= 0 {
		return false
	}
	if p.each > 0 && (p.k > 1 || p.each >= least.each) {
		s.sinceGrant = 0
		return true
	}
	*p = least
	extra := least.extra
	if t, ok := s.timeOf(least); ok {
		extra = t + s.perStep
		if len(s.decodes) > 0 {
			extra -= base
		}
	}
	m := 1.0
	if extra > 0 && base > 0 {
		m = 3 * extra / base // extra / ((m-1)*base + base + extra) >= 1/4
		if slack := target - base; slack > 0 {
			m = min(m, math.Ceil(extra/slack))
		}
	}
	if s.sinceGrant++; float64(s.sinceGrant) < math.Floor(m) {
		return false
	}
	s.sinceGrant = 0
	return true
}

// bestRate is the candidate with the most rows a second of those that take at most idleRows times as long as the quickest.
func (s *Scheduler) bestRate() packing {
	if len(s.candidates) == 0 {
		return s.least()
	}
	limit := math.Inf(1)
	for _, p := range s.candidates {
		limit = min(limit, idleRows*p.extra)
	}
	best := packing{}
	for _, p := range s.candidates {
		if p.extra <= limit && (best.k == 0 || float64(p.each)/p.extra > float64(best.each)/best.extra) {
			best = p
		}
	}
	return best
}

// least is the smallest chunk that is worth a step.
func (s *Scheduler) least() packing {
	return packing{k: 1, each: min(int32(s.cfg.MinPrefill), s.stopOf(s.prefills[0])-s.prefills[0].have, int32(s.room()))}
}

// room is how many prefill rows a step can have at most.
func (s *Scheduler) room() int {
	return max(0, s.cfg.Chunk>>s.caution-len(s.decodes))
}

// span is n_kv of the next step, as far as it is known before its rows are.
func (s *Scheduler) span() int {
	if s.mem.base != nil {
		return s.mem.base.Span()
	}
	top := int32(0)
	for _, r := range s.decodes {
		top = max(top, r.have+1)
	}
	return max(256, (int(top)+255)/256*256)
}

// chooseStates is apply for recurrent models: budget rows, one prompt after the other.
func (s *Scheduler) chooseStates(budget int) {
	outputs := len(s.decodes)
	chosen, evals := 0, 0
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
		// One more evaluation is one more pass over the weights. A prompt that ends here needs it sooner or later; one that
		// goes on would need another one in the next step.
		now := s.evaluations()
		if chosen > 0 && now > evals && r.have+n < s.stopOf(r) {
			r.take = 0
			continue
		}
		evals = now
		if last {
			outputs++
		}
		budget -= int(n)
		s.prefills[chosen] = r
		chosen++
	}
	s.prefills = s.prefills[:chosen]
}

// evaluations counts those of the takes set so far.
func (s *Scheduler) evaluations() int {
	s.split.begin()
	for _, r := range s.runs {
		if r != nil && r.take > 0 {
			s.split.add(r.id, r.take)
		}
	}
	return s.split.count()
}

// fitPrefills evicts until the step has its cells, and shrinks the prefills when that does not suffice. Padding goes first: it is worth no
// cached prefix.
func (s *Scheduler) fitPrefills() {
	rows := len(s.decodes)
	for _, r := range s.prefills {
		rows += int(r.take + r.fill)
	}
	for i := len(s.prefills) - 1; i >= 0 && !s.mem.fits(rows); i-- {
		rows -= int(s.prefills[i].fill)
		s.prefills[i].fill = 0
	}
	for {
		for !s.mem.fits(rows) && s.evict(rows-s.mem.base.Free(), -1) {
		}
		n := len(s.prefills)
		if s.mem.fits(rows) || n == 0 {
			return
		}
		last := s.prefills[n-1]
		rows -= int(last.take - last.take/2)
		if last.take /= 2; last.take == 0 {
			s.prefills = s.prefills[:n-1]
		}
	}
}

// toDuration turns seconds into a Duration.
func toDuration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
