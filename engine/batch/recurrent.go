package batch

import "slices"

// A recurrent state cannot be cut back, so a prefix is of use only where a state of exactly its length was kept. States
// are shared copy-on-write between ids, which makes an idle id a checkpoint that costs nothing until it is used.

// stopOf is how far a run's prefill may go in one step: to its target, or to where its state is to be kept.
func (s *Scheduler) stopOf(r *run) int32 {
	stop := r.target
	if r.stop > r.have { // a window, too, is whole only at its end
		stop = min(stop, r.stop)
	}
	if !s.cfg.Recurrent {
		return stop
	}
	if m := s.mark(r, r.have+1); m > 0 {
		stop = min(stop, m)
	}
	return stop
}

// mark is the next length, from on, at which a checkpoint of r's prompt is wanted; -1: none. The last one is one token
// before the prompt's end, from where the same prompt and every continuation can start.
func (s *Scheduler) mark(r *run, from int32) int32 {
	n := int32(len(r.job.Prompt))
	from = max(from, minKeep)
	if !r.job.Cache || s.cfg.NoCopy || from > n-1 {
		return -1
	}
	for _, m := range r.job.Marks {
		if m := int32(m); m >= from && m < n-1 {
			return m
		}
	}
	return n - 1
}

// checkpoints keeps the states of prefilling runs that are at a mark, or where another choice diverges.
func (s *Scheduler) checkpoints() {
	for _, r := range s.runs {
		if r == nil || r.state != statePrefill || r.have < minKeep || !s.tree.Holds(int(r.id)) {
			continue
		}
		if (r.have == s.mark(r, r.have) || (r.have == r.stop && len(s.waiting) > 0)) && r.have > r.cached && !s.kept(r) {
			s.checkpoint(r)
		}
	}
}

// kept reports whether an idle id holds the state that a run is at: it stays there while other rows have their turn, and another copy
// would cost a cached state its id each time.
func (s *Scheduler) kept(r *run) bool {
	s.above = s.tree.Above(int(r.id), s.above[:0])
	return slices.ContainsFunc(s.above, func(o int32) bool { return s.runs[o] == nil && s.tree.Have(int(o)) == r.have })
}

// checkpoint copies a run's state to an idle id, if there is one to spare.
func (s *Scheduler) checkpoint(r *run) {
	id := s.freeID(int(r.id))
	if id < 0 {
		return
	}
	n := min(int(r.have), len(r.job.Prompt))
	s.tree.Insert(r.job.key, id, r.job.Prompt[:n], r.gen[:int(r.have)-n], r.have, s.now)
	s.copy(int(r.id), id, r.have)
	s.rent[id] = 0
	s.dedupe(id)
}
