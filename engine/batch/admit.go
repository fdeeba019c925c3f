package batch

import (
	"math"
	"time"

	"hearth/engine"

	"hearth/engine/prefix"
)

// reserveCap bounds the cells that are set aside for a choice's future output, in tokens: long outputs are rarer than
// long limits, and preemption covers the rest.
const reserveCap = 512

// rematches bounds the waiting choices that are matched again in one step; a match costs a walk over the prompt.
const rematches = 4

// admit moves waiting runs to ids, the best one first, until one does not fit.
func (s *Scheduler) admit() {
	if len(s.waiting) == 0 || s.draining || (s.running >= s.cfg.MaxRunning && s.yielding(s.topClass()) == nil) {
		return
	}
	s.refreshMatches()
	committed := s.committed()
	for {
		r := s.next()
		if r == nil {
			return
		}
		m, later := s.bestMatch(r)
		if later || s.follows(r, m) {
			r.skip = s.step.Number
			continue
		}
		if s.copiesEnough(s.copied) {
			return
		}
		if s.running >= s.cfg.MaxRunning {
			if !s.yield(r, &committed) {
				return
			}
			m, _ = s.bestMatch(r)
		}
		need := s.need(r, m)
		for s.running > 0 && committed+need > s.cfg.Cells && s.mem.base != nil {
			if !s.yield(r, &committed) {
				return
			}
			m, _ = s.bestMatch(r)
			need = s.need(r, m)
		}
		if !s.seat(r, m) {
			return
		}
		committed += need
	}
}

// yielding is the running choice that gives its place to a waiting one of a class: one whose client does not read, else the
// youngest of the lowest class, if that is a lower one. nil: none has to.
func (s *Scheduler) yielding(class engine.Priority) *run {
	var worst *run
	for _, r := range s.runs {
		switch {
		case r == nil:
		case r.job.held:
			return r
		case r.job.Priority < class && (worst == nil || worst.before(r)):
			worst = r
		}
	}
	return worst
}

// yield takes a running choice's place for r.
func (s *Scheduler) yield(r *run, committed *int) bool {
	v := s.yielding(r.job.Priority)
	if v == nil {
		return false
	}
	s.preempt(v)
	v.skip = s.step.Number
	*committed = s.committed()
	return true
}

// committed is how many cells the running choices hold, will surely need, and are likely to need.
func (s *Scheduler) committed() int {
	_, n, _ := s.mem.count()
	for _, r := range s.runs {
		if r != nil {
			n += int(max(r.target-r.have, 0)) + s.reserve(r)
		}
	}
	return n
}

// reserve is what is set aside for a run's output.
func (s *Scheduler) reserve(r *run) int {
	return min(r.left(s.cfg.Context), int(s.output)+1, reserveCap)
}

// need is how many cells more will be committed with r running from match m.
func (s *Scheduler) need(r *run, m prefix.Match) int {
	if s.inHost(int(m.ID)) { // its cells are new ones
		return int(r.len()) + s.reserve(r)
	}
	n := int(r.len()-m.N) + s.reserve(r)
	if m.ID >= 0 && s.mem.base != nil {
		n += int(max(0, m.N-s.mem.base.Unpinned(int(m.ID)))) // cached cells that become pinned
	}
	return n
}

// follows reports whether r should wait for a running choice that is computing a prefix of it, and makes that choice
// as urgent as r.
func (s *Scheduler) follows(r *run, m prefix.Match) bool {
	if m.Leader < 0 || s.cfg.NoCopy {
		return false
	}
	lead := s.runs[m.Leader]
	if lead == nil || lead.state != statePrefill || lead.job.held {
		return false
	}
	if lead.ready > 0 && m.Next-m.N <= 1 { // it is kept from its last row for others, who may as well be computed with this one
		return false
	}
	// Once it has waited the rest is near, however little.
	if lead.job != r.job && int(m.Next-m.N) < s.cfg.FollowMin && r.followed != lead.job.order {
		return false
	}
	r.followed = lead.job.order
	lead.boost = max(lead.boost, r.job.Priority)
	if (s.cfg.Recurrent || s.cfg.Window > 0) && (lead.stop <= lead.have || m.Next < lead.stop) {
		lead.stop = m.Next
	}
	return true
}

// refreshMatches looks a few waiting runs up again, the stalest first, so that the queue's order knows what is cached.
func (s *Scheduler) refreshMatches() {
	for range rematches {
		var old *run
		for _, r := range s.waiting {
			if r.matched != s.tree.Version()+1 && (old == nil || r.matched < old.matched) {
				old = r
			}
		}
		if old == nil {
			return
		}
		s.matchOf(old)
	}
}

// next picks the waiting run to admit: the highest class; within it, choices that lost their place before; then among
// tenants with service left in this round, the least uncached work, less what a wait is worth. nil: nobody is eligible.
func (s *Scheduler) next() *run {
	for {
		var best *run
		var bestWork float64
		starved := false
		top := s.topClass()
		for _, r := range s.waiting {
			if r.skip == s.step.Number || r.job.held || r.job.Priority != top {
				continue
			}
			if r.job.tenant.deficit <= 0 && r.preempted == 0 {
				starved = true
				continue
			}
			work := s.work(r)
			if best == nil || work < bestWork || (work == bestWork && r.before(best)) {
				best, bestWork = r, work
			}
		}
		if best != nil || !starved {
			return best
		}
		s.replenish(top)
	}
}

// topClass is the highest class among the runs that may be admitted in this step.
func (s *Scheduler) topClass() (top engine.Priority) {
	top = math.MinInt8
	for _, r := range s.waiting {
		if r.skip != s.step.Number && !r.job.held {
			top = max(top, r.job.Priority)
		}
	}
	return top
}

// work orders the queue: uncached tokens to prefill, less one token for every token that could have been prefilled
// while the run waited. So nobody is overtaken for much longer than its own prefill takes.
func (s *Scheduler) work(r *run) float64 {
	if r.preempted > 0 {
		return math.Inf(-1)
	}
	return float64(r.len()-r.match.N) - s.credit(s.now-r.job.submitted)
}

// credit is what a wait is worth, in prefill tokens.
func (s *Scheduler) credit(wait time.Duration) float64 {
	perToken := s.cost.perToken(0, s.cfg.Chunk)
	if perToken == 0 {
		perToken = 1e-3 // a small GPU, until measured
	}
	return wait.Seconds() / perToken
}

// replenish starts new rounds until a tenant with a run of the class has service left. None has any now.
func (s *Scheduler) replenish(class engine.Priority) {
	need := int64(math.MaxInt64)
	for _, r := range s.waiting {
		if r.skip != s.step.Number && !r.job.held && r.job.Priority == class {
			need = min(need, -r.job.tenant.deficit)
		}
	}
	rounds := need/quantum + 1
	for _, t := range s.tenants {
		t.deficit = min(t.deficit+rounds*quantum, quantum) // nobody saves service up
	}
}

// seat gives r an id that holds the first m.N of its tokens. It fails when no id can be had.
func (s *Scheduler) seat(r *run, m prefix.Match) bool {
	used := m.ID >= 0 && s.useOf(int(m.ID), m.N)
	id := s.seatID(r, &m)
	if id < 0 {
		return false
	}
	s.waiting = remove(s.waiting, r)
	if r.preempted == 0 {
		before := s.reuse
		if s.meetGhosts(r, m.N); !used && r.job.Cache && s.reuse <= before {
			s.learnReuse(0) // what is cached was of no use again
		}
	}
	s.occupy(r, id, m.N)
	r.charged = false
	r.state, r.target, r.cached = statePrefill, r.len(), m.N
	j := r.job
	if !j.wasAdmitted {
		j.wasAdmitted, j.admitted = true, s.now
		j.usage.Queue = s.now - j.submitted
		j.usage.Cached = int(min(m.N, int32(len(j.Prompt))-1))
	}
	s.stats.CachedTokens += uint64(m.N)
	s.step.Events = append(s.step.Events, Event{Kind: EventAdmitted, Job: j.ID, Choice: r.choice, Cached: m.N, Total: r.target})
	return true
}

// occupy makes a run the owner of an id that holds its first n tokens.
func (s *Scheduler) occupy(r *run, id int, n int32) {
	s.runs[id], r.id, r.have, r.ready, r.waitUntil = r, int32(id), n, 0, 0
	s.running++
	s.mem.setPinned(id, true)
	if r.job.Cache || len(r.job.runs) > 1 {
		s.tree.Insert(r.job.key, id, r.job.Prompt, r.gen, n, s.now)
	}
}

// seatID returns an id below Sequences that belongs to nobody and holds exactly m.N tokens of the matched prefix. It may lower
// m.N when the prefix cannot be had. -1: there is no id.
func (s *Scheduler) seatID(r *run, m *prefix.Match) int {
	if s.inHost(int(m.ID)) {
		device := s.matchOf(r)
		if device.N < m.N {
			if id := s.moveIn(m, &device); id >= 0 {
				return id
			}
		}
		*m = s.matchOf(r)
	}
	src := int(m.ID)
	if src >= 0 && s.useOf(src, m.N) {
		s.tree.Touch(src, s.now, true)
		s.rent[src] = 0
	}
	idle := src >= 0 && s.runs[src] == nil
	// Take a cached prefix over where nothing of it is lost.
	if idle && src < s.cfg.Sequences && m.N == s.mem.lens[src] && !s.cfg.Recurrent && (s.dense(src) || s.cfg.NoCopy) {
		s.learnReuse(1)
		s.tree.Remove(src)
		return src
	}
	if id := s.cutID(r, m.N); src >= 0 && id >= 0 {
		s.tree.Remove(id)
		s.remove(id, m.N)
		return id
	}
	if src >= 0 && s.cfg.Layout == LayoutStreams && s.recompute(m.N) <= s.copyTime() {
		src, m.N = -1, 0 // computing it again is no slower
	}
	id := -1
	if (!s.cfg.NoCopy || src < 0) && !(idle && src >= 0 && s.cutRather(src)) {
		id = s.freeID(src)
	}
	switch {
	case id >= 0 && src >= 0:
		s.copy(src, id, m.N)
	case id < 0 && idle && src < s.cfg.Sequences:
		// The matched prefix itself is in the last id: cut it.
		s.tree.Remove(src)
		if (s.cfg.NoTrim || s.cfg.Recurrent) && m.N != s.mem.lens[src] {
			m.N = 0
		}
		s.remove(src, m.N)
		id = src
	case id < 0:
		if id = s.freeID(-1); id >= 0 {
			m.N = 0
		}
	}
	return id
}

// freeID returns an empty id below Sequences, the lowest one, or empties one. keep is not touched.
func (s *Scheduler) freeID(keep int) int {
	empty := s.emptyID(0, s.cfg.Sequences)
	if s.cfg.Layout == LayoutStreams && !s.cfg.NoCopy {
		return s.denseID(keep)
	}
	if empty >= 0 {
		return empty
	}
	if s.cfg.Parking == 0 || s.cfg.NoCopy {
		return s.evictID(keep, s.cfg.Sequences)
	}
	park := s.emptyID(s.cfg.Sequences, len(s.runs))
	if park < 0 {
		park = s.evictID(keep, len(s.runs))
	}
	if park < s.cfg.Sequences {
		return park
	}
	// Move the prefix that was least recently of use: a fresh one is likely to be taken over in place.
	old := -1
	for id, r := range s.runs[:s.cfg.Sequences] {
		if r == nil && id != keep && (old < 0 || s.lastUse(id) < s.lastUse(old)) {
			old = id
		}
	}
	if old >= 0 {
		s.moveCached(old, park)
	}
	return old
}

// emptyID returns the lowest empty id in from..to-1, -1 for none.
func (s *Scheduler) emptyID(from, to int) int {
	for id := from; id < to; id++ {
		if s.runs[id] == nil && s.mem.lens[id] == 0 {
			return id
		}
	}
	return -1
}

// moveCached gives a cached prefix another id, which is empty.
func (s *Scheduler) moveCached(from, to int) {
	s.copy(from, to, s.mem.lens[from])
	s.tree.Rename(from, to)
	s.rent[to] = s.rent[from]
	s.remove(from, 0)
}

// denseID is freeID for streams, where the running ids must be close together: a step reads the buffers between them, too. When
// there is no empty id near them, the nearest id that does not run is cleared: its cached prefix moves to an empty id, which is a
// copy of one buffer, once, against a few padding rows or another evaluation in every step; or it goes, when it is not worth that.
func (s *Scheduler) denseID(keep int) int {
	near, empty := -1, -1
	for id, r := range s.runs[:s.cfg.Sequences] {
		switch {
		case r != nil || id == keep:
		case s.mem.lens[id] > 0:
			if near < 0 || s.width(id) < s.width(near) {
				near = id
			}
		case empty < 0 || s.width(id) < s.width(empty):
			empty = id
		}
	}
	switch {
	case empty >= 0 && (s.dense(empty) || near < 0 || s.width(empty) <= s.width(near)):
		return empty
	case near < 0 || s.running == 0:
		return s.evictID(keep, s.cfg.Sequences)
	case s.reuse*s.recompute(s.mem.lens[near]) <= s.copyTime(): // what it would save, if it is of use at all
		s.evictAll(near)
		return near
	case empty < 0:
		if empty = s.evictID(keep, s.cfg.Sequences); empty == near {
			return near
		}
	}
	s.moveCached(near, empty)
	return near
}

// reach is the first and the last of the running ids and one more, and the tokens of the longest run.
func (s *Scheduler) reach(id int) (lo, hi int, longest int32) {
	lo, hi = id, id
	for i, r := range s.runs[:s.cfg.Sequences] {
		if r != nil {
			lo, hi, longest = min(lo, i), max(hi, i), max(longest, r.len())
		}
	}
	return lo, hi, longest
}

// width is how many ids the running ones and one more reach over.
func (s *Scheduler) width(id int) int {
	lo, hi, _ := s.reach(id)
	return hi - lo + 1
}

// dense says that the running ids and one more are close enough together for one evaluation with few padding rows: there are few
// idle ids between them, and none whose cached prefix is too long for a padding row (canPad).
func (s *Scheduler) dense(id int) bool {
	if s.cfg.Layout != LayoutStreams {
		return true
	}
	lo, hi, longest := s.reach(id)
	switch {
	case lo < id && id < hi: // it fills a gap
		return true
	case hi-lo > s.running+maxGap/4:
		return false
	}
	limit := (longest + 255) / 256 * 256
	for i := lo + 1; i < hi; i++ {
		if s.runs[i] == nil && i != id && s.mem.lens[i]+1 > limit {
			return false
		}
	}
	return true
}

const (
	// copyLimit bounds the copies of sequences in one step, in seconds: everybody waits for them.
	copyLimit = 0.025
	// copyUnknown is taken for the time of a copy until it was measured.
	copyUnknown = 0.002
)

// copyTime is what it takes to copy a sequence, in seconds; in the unified layout that moves nothing.
func (s *Scheduler) copyTime() float64 {
	switch {
	case s.cfg.Layout != LayoutStreams:
		return 0
	case s.cfg.CopyTime == 0:
		return copyUnknown
	}
	return s.cfg.CopyTime.Seconds()
}

// copiesEnough reports whether one more copy behind so many in the same step is too much.
func (s *Scheduler) copiesEnough(made int) bool {
	return made > 0 && float64(made+1)*s.copyTime() > copyLimit
}

// recompute is what it takes to compute n tokens again, in seconds.
func (s *Scheduler) recompute(n int32) float64 {
	return float64(n) * s.tokenTime(n)
}

// cutID returns an idle id that holds n tokens of the run, and so little behind them that losing it costs less than a copy; -1: there
// is none. It is for streams, and near the running ids. What is lost counts by the chance that its conversation goes on, which is the
// share of cached prefixes that were of use again.
func (s *Scheduler) cutID(r *run, n int32) int {
	if s.cfg.Layout != LayoutStreams || s.cfg.NoTrim || n == 0 {
		return -1
	}
	m := s.tree.Match(r.job.key, r.job.Prompt, r.gen, s.idle)
	id := int(m.ID)
	if m.N < n || s.reuse*s.recompute(s.mem.lens[id]-n) > s.copyTime() {
		return -1
	}
	return id
}

// usableIdle is usablePrefix for ids that do not run and are near those that do.
func (s *Scheduler) usableIdle(id int, n int32) int32 {
	if s.inHost(id) || s.runs[id] != nil || !s.dense(id) {
		return 0
	}
	return s.usablePrefix(id, n)
}

// cutRather says that a cached prefix should be shortened in place instead of being copied: in streams, where a copy has a price and
// another cached prefix would have to go for it that is worth as much.
func (s *Scheduler) cutRather(src int) bool {
	if s.cfg.Layout != LayoutStreams || src >= s.cfg.Sequences || s.cfg.NoTrim || s.emptyID(0, s.cfg.Sequences) >= 0 {
		return false
	}
	for id, r := range s.runs[:s.cfg.Sequences] {
		if r == nil && id != src && 2*s.value(id) < s.value(src) {
			return false
		}
	}
	return true
}

func (s *Scheduler) lastUse(id int) time.Duration {
	last, _ := s.tree.Used(id)
	return last
}
