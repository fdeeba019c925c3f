package batch

const (
	// spanEvery is how often, in steps, the span is looked at.
	spanEvery = 16
	// spanSlack is how much slower cached prefixes may make a decode step.
	spanSlack = 1.1
)

// trimSpan evicts cached prefixes in the highest cells while they make decode steps notably slower: attention reads
// every cell up to the highest one in use.
func (s *Scheduler) trimSpan() {
	if s.mem.base == nil || len(s.decodes) == 0 || s.step.Number%spanEvery != 0 {
		return
	}
	// What the running choices need at least, wherever their cells are.
	least := max(256, (s.mem.base.Pinned()+255)/256*256)
	for range 4 {
		now := s.cost.decodeTime(load{decodes: len(s.decodes), span: s.mem.base.Span()})
		if now == 0 || now <= spanSlack*s.cost.decodeTime(load{decodes: len(s.decodes), span: least}) {
			return
		}
		high, owner := -1, -1
		for id := range s.runs {
			if h := s.mem.base.Highest(id); h > high {
				high, owner = h, id
			}
		}
		if owner < 0 || s.runs[owner] != nil {
			return
		}
		s.trim(owner, 256)
	}
}
