package batch

// packing is one way to use a step's prefill rows.
type packing struct {
	k    int   // how many prompts get rows in streams; otherwise any number of them do, one after the other
	each int32 // rows for each of them, or fewer where a prompt needs fewer; otherwise rows for all together
	// to is the number of rows that each is padded to, 0 for none: only equal numbers share an evaluation in streams, and some
	// sizes have faster kernels.
	to    int32
	extra float64 // seconds that it adds to the time between tokens, beside the decode rows
}

// pack chooses the prefill rows of a step that has slack seconds for them. The result has each 0 when nothing fits.
//
// One prompt at a time, so that its first token comes soon, in the chunks that let it end first; more at once where that lets
// all of them end sooner, on average.
func (s *Scheduler) pack(base, slack float64) packing {
	most := int32(s.room())
	switch {
	case most <= 0:
		return packing{}
	case !s.cost.knows() && len(s.decodes) > 0:
		return packing{k: 1, each: min(most, int32(4*s.cfg.MinPrefill))}
	case !s.cost.knows():
		return packing{k: 1, each: most}
	}
	left, limit := s.firstWork(), min(most, max(s.cost.largest(), int32(s.cfg.MinPrefill)))
	s.chunks(left, limit, base, slack)
	large := s.pace(limit, base, slack)
	best, whole := s.quickest(left, slack, large)
	if s.cfg.Layout != LayoutStreams || len(s.prefills) < 2 {
		return best
	}
	return s.packMany(best, large, whole, base, slack)
}

// firstWork is how many rows the first prompt needs in streams, all prompts otherwise.
func (s *Scheduler) firstWork() int32 {
	left := int32(0)
	for _, r := range s.prefills {
		if left += s.stopOf(r) - r.have; s.cfg.Layout == LayoutStreams {
			break
		}
	}
	return left
}

// beside is how many more rows an evaluation has than the prompt in it.
func (s *Scheduler) beside() int32 {
	if s.split.equal {
		return 0
	}
	return int32(len(s.decodes))
}

// chunks lists chunks of at most most rows, for left rows of work, in s.candidates: those that make an evaluation one of the
// sizes, all of the work, and the largest that fits by interpolation where costs are smooth.
func (s *Scheduler) chunks(left, most int32, base, slack float64) {
	s.candidates = s.candidates[:0]
	beside, least := s.beside(), min(left, int32(s.cfg.MinPrefill))
	for _, size := range sizes {
		if each := size - beside; each >= least && each < min(left, most) {
			s.try(packing{k: 1, each: each}, base)
		}
	}
	s.try(packing{k: 1, each: min(left, most)}, base)
	if left <= most {
		s.tryPadded(left, beside, base)
	}
	if s.cfg.NoPad {
		s.interpolate(base, slack)
	}
}

// interpolate adds the largest chunk that fits by what lies between two candidates, where costs are smooth. On a GPU they are not:
// 161 rows took 38 ms where 192 take 33.
func (s *Scheduler) interpolate(base, slack float64) {
	lo, hi := packing{}, packing{} // the largest that fits, and the next one
	for _, p := range s.candidates {
		switch {
		case p.extra <= slack:
			lo, hi = p, packing{}
		case hi.k == 0:
			hi = p
		}
	}
	if lo.k > 0 && hi.k > 0 {
		if each := lo.each + int32((slack-lo.extra)/(hi.extra-lo.extra)*float64(hi.each-lo.each)); each > lo.each && each < hi.each {
			s.try(packing{k: 1, each: each}, base)
		}
	}
}

// paddingMost is how many times the rows of a prompt's end it may be padded to.
const paddingMost = 4

// tryPadded replaces the last candidate, which is all of the work, by the same with padding to a larger size where that is faster: of
// the next one, and of those whose price is known.
func (s *Scheduler) tryPadded(left, beside int32, base float64) {
	for i := sizeOf(left + beside); i < len(sizes); i++ {
		to := sizes[i] - beside
		if to > int32(s.room()) || to > paddingMost*left || !s.canFill(1, to) {
			return
		}
		if to <= left || i > sizeOf(left+beside) && !s.cost.seen(sizes[i], beside > 0) || !s.try(packing{k: 1, each: left, to: to}, base) {
			continue
		}
		if n := len(s.candidates); n > 1 {
			if s.candidates[n-1].extra < s.candidates[n-2].extra {
				s.candidates[n-2] = s.candidates[n-1]
			}
			s.candidates = s.candidates[:n-1]
		}
	}
}

// try adds a candidate, if its price is known.
func (s *Scheduler) try(p packing, base float64) bool {
	t, ok := s.timeOf(p)
	if ok {
		p.extra = s.extraOf(t, base)
		s.candidates = append(s.candidates, p)
	}
	return ok
}

// extraOf is what a step that takes t seconds adds to the time between tokens, beside decode rows that take base.
func (s *Scheduler) extraOf(t, base float64) float64 { return max(t-base, leastStep) + s.perStep }

// fewer is how much longer all of a prompt may take for a larger chunk now: fewer steps are fewer that others notice.
const fewer = 1.02

// pace lists in s.paces what evaluations of every size take behind the first prompt, and the candidates, and returns the one with the
// most rows a second of those that fit: what prompts come in that have not begun.
func (s *Scheduler) pace(limit int32, base, slack float64) (large packing) {
	s.paces = s.paces[:0]
	beside := s.beside()
	add := func(each int32) {
		e := evaluation{rows: each + beside, decodes: beside, kv: int32(s.span())}
		if s.mem.base == nil {
			e.kv = s.prefills[0].have + each/2
		}
		s.loads = append(s.loads[:0], e)
		if t, ok := s.cost.predict(s.loads); ok {
			s.paces = append(s.paces, packing{k: 1, each: each, extra: s.extraOf(t, base)})
		}
	}
	for _, size := range sizes {
		if each := size - beside; each >= int32(s.cfg.MinPrefill) && each < limit {
			add(each)
		}
	}
	add(limit)
	s.paces = append(s.paces, s.candidates...)
	for _, p := range s.paces {
		if p.extra <= slack && (large.k == 0 || float64(p.each)/p.extra > float64(large.each)/large.extra) {
			large = p
		}
	}
	return large
}

// quickest is the candidate within slack after which left rows of work end first, if the rest then comes in large ones, and the time
// that all of them take.
func (s *Scheduler) quickest(left int32, slack float64, large packing) (best packing, whole float64) {
	for _, p := range s.candidates {
		if p.extra > slack {
			continue
		}
		t := p.extra + s.rest(left-p.each, large)
		if best.k == 0 || t < whole || (p.each > best.each && t <= whole*fewer) {
			best, whole = p, t
		}
	}
	return best, whole
}

// rest estimates the time of rows that remain: as many large chunks as they hold, and the cheapest evaluation that holds the
// remainder.
func (s *Scheduler) rest(rows int32, large packing) float64 {
	n := rows / large.each
	t, rows := float64(n)*large.extra, rows-n*large.each
	if rows == 0 {
		return t
	}
	last := large.extra
	for _, p := range s.paces {
		if max(p.each, p.to) >= rows && p.extra < last {
			last = p.extra
		}
	}
	if s.cfg.NoPad { // costs are smooth there
		last = min(last, s.between(rows, last))
	}
	return t + last
}

// between is what rows take by interpolation between the sizes in s.paces, and at most what those above take. In proportion to a large chunk is
// not the same: below 32 rows a CPU has other kernels, and 20 rows were thought to come in as fast as if they were part of 512, so that a prompt
// of 20 tokens was computed row by row.
func (s *Scheduler) between(rows int32, most float64) float64 {
	lo, hi := packing{}, packing{}
	for _, p := range s.paces {
		if p.each >= rows && (hi.k == 0 || p.each < hi.each) {
			hi = p
		}
		if p.each <= rows && p.each > lo.each {
			lo = p
		}
	}
	switch {
	case hi.k == 0:
		return most
	case lo.k == 0 || hi.each == lo.each:
		return hi.extra
	}
	return lo.extra + (hi.extra-lo.extra)*float64(rows-lo.each)/float64(hi.each-lo.each)
}

const (
	// packingTrust is how much later the mean prompt may end for the sake of the load as a whole.
	packingTrust = 1.05
	// packingGain is how much sooner the last prompt must end to compute several at once.
	packingGain = 0.97
	// packingMost bounds the prompts that are tried together.
	packingMost = 16
)

// packMany compares the best for one prompt, after which it is done in whole seconds, with the first prompts together: as many
// rows for each as the first one needs, or all that they need.
func (s *Scheduler) packMany(best, large packing, whole, base, slack float64) packing {
	if best.k == 0 {
		return best
	}
	first := s.stopOf(s.prefills[0]) - s.prefills[0].have
	longest, saved := first, 0.0
	done, mean := whole, whole // one after the other: when the last one ends, and the sum of all ends
	for k := 2; k <= min(len(s.prefills), s.cfg.Outputs-len(s.decodes), packingMost); k++ {
		r := s.prefills[k-1]
		left := s.stopOf(r) - r.have
		longest = max(longest, left)
		done += s.rest(left, large)
		mean += done
		if int(first)*k > s.room() {
			break
		}
		s.packs = s.packs[:0]
		s.tryMany(k, first, longest, base)
		for _, p := range s.packs {
			end, sum := s.endOf(p, large)
			if p.extra <= slack && end < done*packingGain && sum <= mean*packingTrust && done-end > saved {
				best, saved = p, done-end
			}
		}
	}
	return best
}

// endOf estimates when the last prompt of a packing ends, and the sum of all their ends.
func (s *Scheduler) endOf(p, large packing) (end, sum float64) {
	end = p.extra
	for _, r := range s.prefills[:p.k] {
		if left := s.stopOf(r) - r.have - p.each; left > 0 {
			end += s.rest(left, large)
			sum += end
			continue
		}
		sum += p.extra
	}
	return end, sum
}

// tryMany proposes rows for each of k prompts in s.packs: the first one's, the longest one's, and what makes the next sizes.
func (s *Scheduler) tryMany(k int, first, longest int32, base float64) {
	n := int32(k)
	try := func(each int32) {
		p := packing{k: k, each: each}
		if s.canFill(k, each) {
			p.to = each
		}
		if int(each)*k > s.room() || p.to == 0 && first != longest {
			return
		}
		if t, ok := s.timeOf(p); ok {
			p.extra = s.extraOf(t, base)
			s.packs = append(s.packs, p)
		}
	}
	try(first)
	if longest > first {
		try(longest)
	}
	for i, tried := sizeOf(first*n), 0; i < len(sizes) && tried < 2; i++ {
		if each := sizes[i] / n; sizes[i]%n == 0 && each > first {
			try(each)
			tried++
		}
	}
}

// canFill reports whether the first k prompts may be padded to a number of rows. The padding rows are removed behind the step.
func (s *Scheduler) canFill(k int, to int32) bool {
	if s.cfg.NoPad || s.cfg.NoTrim || s.cfg.Recurrent || len(s.mem.win) > 0 {
		return false
	}
	if !s.split.equal {
		last := s.prefills[len(s.prefills)-1]
		return last.target+to <= int32(s.cfg.Context)
	}
	for _, r := range s.prefills[:k] {
		if r.have+to > int32(s.cfg.Context) {
			return false
		}
	}
	return true
}

// apply sets take and fill as p says, and returns how many prompts have rows; these are the first.
func (s *Scheduler) apply(p packing) int {
	outputs, chosen := len(s.decodes), 0
	left, streams := p.each, s.cfg.Layout == LayoutStreams
	for i, r := range s.prefills {
		r.take, r.fill = 0, 0
		if streams && i >= p.k || left <= 0 {
			continue
		}
		need := s.stopOf(r) - r.have
		n := min(need, left)
		last := r.have+n == r.target && r.job.MaxTokens != 0
		if last && (s.holding || outputs >= s.cfg.Outputs) {
			n, last = n-1, false
		}
		if n <= 0 {
			continue
		}
		if last {
			outputs++
		}
		r.take = n
		if streams {
			r.fill = max(0, p.to-n)
		} else {
			left -= n
		}
		s.prefills[chosen], s.prefills[i] = r, s.prefills[chosen]
		chosen++
	}
	if !streams && p.to > p.each && chosen > 0 {
		s.prefills[chosen-1].fill = p.to - p.each
	}
	return chosen
}

// timeOf predicts this step with a packing, in seconds; hopefully beside decode rows, where a promise bounds it, if all rows are of use:
// padding is for sizes that are known. It leaves take and fill at 0.
func (s *Scheduler) timeOf(p packing) (float64, bool) {
	n := s.apply(p)
	s.cost.hoping = s.promised && p.to == 0
	t, ok := s.cost.predict(s.sketch())
	s.cost.hoping = false
	for _, r := range s.prefills[:n] {
		r.take, r.fill = 0, 0
	}
	return t, ok
}
