package batch

// In the unified layout every decode row's attention reads every cell up to the highest one in use, so a cached prefix
// that nobody uses costs a little in every step. How long to keep it is the ski-rental question: rent it until the rent paid
// equals the price of computing it again, which costs at most twice the best that could have been done in hindsight. The price
// counts more where cached prefixes have turned out to be reused, and less where they have not.

const (
	// rentEvery is how often, in steps, rent is paid.
	rentEvery = 8
	// rentFree is the part of a decode step that idle cells may cost without being charged.
	rentFree = 0.02
	// rentLow and rentHigh bound the price in recomputations: there is always some trust and never endless trust.
	rentLow, rentHigh = 0.25, 2.0
	// reuseKeep is the weight of the past in the share of cached prefixes that were reused before they went.
	reuseKeep = 15.0 / 16
)

// payRent charges cached prefixes for the time that they cost, and evicts those that have cost their price.
func (s *Scheduler) payRent() {
	if s.mem.base == nil || len(s.decodes) == 0 || s.step.Number%rentEvery != 0 {
		return
	}
	used, pinned, _ := s.mem.count()
	step, perCell := s.cost.cellTime(load{decodes: len(s.decodes), span: s.mem.base.Span()})
	top := s.mem.base.Top()
	if perCell <= 0 || float64(top-pinned)*perCell < rentFree*step {
		return
	}
	highest, owner := -1, -1
	if top > used { // whoever keeps the highest cell pays for the holes below it
		for id, r := range s.runs {
			if r == nil {
				if h := s.mem.base.Highest(id); h > highest {
					highest, owner = h, id
				}
			}
		}
	}
	for id, r := range s.runs {
		alone := s.mem.alone(id)
		if r != nil || alone == 0 {
			continue
		}
		s.rent[id] += rentEvery * perCell
		if id == owner && highest == top-1 {
			s.rent[id] += rentEvery * perCell * float64(top-used) / float64(alone)
		}
		_, hits := s.tree.Used(id)
		price := s.cost.perToken(int(s.mem.lens[id])) * min(rentHigh, max(rentLow, 2*s.reuse)) * float64(1+hits)
		if price > 0 && s.rent[id] > price {
			s.trim(id, int(alone))
		}
	}
}

// learnReuse notes whether a cached prefix that goes was of use.
func (s *Scheduler) learnReuse(hits int) {
	s.reuse *= reuseKeep
	if hits > 0 {
		s.reuse += 1 - reuseKeep
	}
}
