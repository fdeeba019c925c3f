package batch

// In the unified layout every decode row's attention reads every cell up to the highest one in use, so a cached prefix
// that nobody uses costs a little in every step. How long to keep it is the ski-rental question: rent it until the rent paid
// equals the price of computing it again, which costs at most twice the best that could have been done in hindsight. The price
// counts more where cached prefixes have turned out to be reused, and less where they have not. On top of that all idle cells
// together may slow a decode step by a bounded part of it, which is small where nothing is reused.

const (
	// rentEvery is how often, in steps, rent is paid.
	rentEvery = 8
	// rentMost bounds evictions at a time: the library scans all its cells for each of them.
	rentMost = 6
	// rentFree is the part of a decode step that idle cells may cost without being charged.
	rentFree = 0.02
	// rentLow and rentHigh bound the price in recomputations: there is always some trust and never endless trust.
	rentLow, rentHigh = 0.05, 2.0
	// rentCap and rentTrust bound the part of a decode step that all idle cells together may cost: rentCap, and rentTrust more where
	// every cached prefix is reused, by the square of the share that is.
	rentCap, rentTrust = 0.03, 0.8
	// rentCheap is what a prefix may take to compute again for those bounds to matter, in seconds: a longer wait would be felt, so
	// longer prefixes stay until their rent is paid.
	rentCheap = 3.0
	// reuseStart is the share of cached prefixes that is taken to be reused before any has gone.
	reuseStart = 0.25
	// reuseKeep is the weight of the past in the share of cached prefixes that were reused before they went.
	reuseKeep = 15.0 / 16
)

// payRent charges cached prefixes for the time that they cost, and evicts those that have cost their price.
func (s *Scheduler) payRent() {
	if s.mem.base == nil {
		return
	}
	s.payPrompts()
	if len(s.decodes) == 0 || s.step.Number%rentEvery != 0 {
		return
	}
	used, pinned, _ := s.mem.count()
	step, perCell := s.cost.cellTime(evaluation{rows: int32(len(s.decodes)), kv: int32(s.mem.base.Span())})
	top := s.mem.base.Top()
	if perCell <= 0 || float64(top-pinned)*perCell < rentFree*step {
		return
	}
	evicted := s.charge(used, top, perCell)
	for allowed := (rentCap + rentTrust*s.reuse*s.reuse) * step; evicted < rentMost; evicted++ {
		used, pinned, _ = s.mem.count()
		if float64(used-pinned)*perCell <= allowed || !s.evictCheap() {
			return
		}
	}
}

// evictCheap evicts the cached prefix that is worth least among those that are computed again in no time.
func (s *Scheduler) evictCheap() bool {
	best, bestValue := -1, 0.0
	for id, r := range s.runs {
		n := int(s.mem.lens[id])
		if r != nil || s.mem.alone(id) == 0 || float64(n)*s.cost.perToken(n/2, s.cfg.Chunk) > rentCheap {
			continue
		}
		if v := s.value(id); best < 0 || v < bestValue {
			best, bestValue = id, v
		}
	}
	if best < 0 || s.waits(best) {
		return false
	}
	s.trim(best, 1)
	return true
}

// charge makes each cached prefix pay for its own cells and returns how many had paid their price and went.
func (s *Scheduler) charge(used, top int, perCell float64) (evicted int) {
	owner := s.mem.base.TopOwner() // whoever keeps the highest cell pays for the holes below it
	for id, r := range s.runs {
		alone := s.mem.alone(id)
		if r != nil || alone == 0 {
			continue
		}
		s.rent[id] += rentEvery * perCell
		if id == owner {
			s.rent[id] += rentEvery * perCell * float64(top-used) / float64(alone)
		}
		_, hits := s.tree.Used(id)
		price := s.cost.perToken(int(s.mem.lens[id]), s.cfg.Chunk) * min(rentHigh, max(rentLow, 2*s.reuse)) * float64(1+hits)
		if evicted < rentMost && s.moveIfDue(id) {
			evicted++
			continue
		}
		next := s.saveTime(id) <= s.host.limit && s.waits(id) // it moves out in one of the next steps
		if price > 0 && !next && s.rent[id] > price && evicted < rentMost {
			s.trim(id, int(alone))
			evicted++
		}
	}
	return evicted
}

// useOf says whether a request that starts from the first n tokens of an id makes use of what only that id keeps: a common
// system prompt or a chat template's first tokens are no reason to keep the rest.
func (s *Scheduler) useOf(id int, n int32) bool {
	all, alone := s.lengthOf(id)
	return 2*(n-(all-alone)) >= alone
}

// learnReuse notes whether a cached prefix that goes was of use.
func (s *Scheduler) learnReuse(hits int) {
	s.reuse *= reuseKeep
	if hits > 0 {
		s.reuse += 1 - reuseKeep
	}
}
