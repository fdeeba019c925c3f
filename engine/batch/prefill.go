package batch

import (
	"math"
	"time"

	"hearth/engine"
)

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
		if s.split.equal {
			// One more evaluation is one more pass over the weights. A prompt that ends here needs it sooner or later;
			// one that goes on would need another one in the next step.
			now := s.evaluations()
			if chosen > 0 && now > evals && r.have+n < s.stopOf(r) {
				r.take = 0
				continue
			}
			evals = now
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

// margin is kept between the predicted step and its target, in percent: half of the steps take longer than predicted.
const margin = 10

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
	n, ok := s.cost.prefillWithin(target*(100-margin)/100-tDecode, d, depth)
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
		top = max(top, r.have+1)
	}
	return max(256, (int(top)+255)/256*256)
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
