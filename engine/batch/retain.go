package batch

import (
	"time"

	"hearth/engine/prefix"
)

// minKeep is the shortest prefix worth an id after its request has ended, in tokens: below it a prefill costs no more
// than the bookkeeping.
const minKeep = 16

// remove plans the removal of everything behind the first n tokens of an id.
func (s *Scheduler) remove(id int, n int32) {
	if s.mem.lens[id] > n {
		s.ops = append(s.ops, Op{Kind: OpRemove, Seq: int32(id), P0: n, P1: -1})
		s.mem.remove(id, n)
	}
}

// copy plans that dst, which is empty, holds the first n tokens of src.
func (s *Scheduler) copy(src, dst int, n int32) {
	s.ops = s.copyOps(s.ops, src, dst, n)
	s.mem.copy(src, dst, n)
	if s.cfg.Layout == LayoutStreams {
		s.copied++
	}
}

func (s *Scheduler) copyOps(ops []Op, src, dst int, n int32) []Op {
	op := Op{Kind: OpCopy, Seq: int32(dst), Src: int32(src), P1: n}
	whole := s.cfg.Layout == LayoutStreams || s.cfg.Recurrent
	if whole {
		op.P1 = -1
	}
	ops = append(ops, op)
	if whole && n < s.mem.lens[src] {
		ops = append(ops, Op{Kind: OpRemove, Seq: int32(dst), P0: n, P1: -1})
	}
	return ops
}

// drop forgets a cached prefix and frees its id.
func (s *Scheduler) drop(id int) {
	_, hits := s.tree.Used(id)
	s.learnReuse(hits)
	s.discard(id)
}

// discard frees an id and forgets what it held.
func (s *Scheduler) discard(id int) {
	s.tree.Remove(id)
	s.remove(id, 0)
}

// leave takes a run off its id. What it computed stays as a cached prefix when its job allows it.
func (s *Scheduler) leave(now time.Duration, r *run) {
	id := int(r.id)
	s.runs[id] = nil
	s.running--
	s.mem.setPinned(id, false)
	have := r.have
	r.id, r.have, r.take, r.stop, r.boost = -1, 0, 0, 0, 0
	s.rent[id] = 0
	if !r.job.Cache || have < minKeep || !s.tree.Holds(id) {
		s.discard(id)
		return
	}
	if path := s.tree.Path(id); path > have {
		s.tree.Truncate(id, have)
	} else {
		s.tree.Extend(id, r.gen[path-int32(len(r.job.Prompt)):have-int32(len(r.job.Prompt))])
	}
	s.tree.SetHave(id, have)
	s.tree.Touch(id, now, false)
	s.dedupe(id)
}

// dedupe drops cached prefixes that others make useless after id has become one.
func (s *Scheduler) dedupe(id int) {
	if s.cfg.Recurrent || len(s.mem.win) > 0 || s.cfg.NoTrim || s.cfg.NoCopy {
		// Only the same length is as good: states and windows cannot be cut back.
		if twin := s.tree.Twin(id); twin >= 0 {
			s.drop(id)
		}
		return
	}
	if s.tree.Covering(id, 0, len(s.runs)) >= 0 {
		s.drop(id)
		return
	}
	s.above = s.tree.Above(id, s.above[:0])
	for _, o := range s.above {
		if !s.inHost(int(o)) && s.runs[o] == nil && s.tree.Have(int(o)) <= s.tree.Have(id) {
			s.drop(int(o))
		}
	}
}

// dropPrivate forgets what the choices of a job that must not be cached have left: nothing, unless they were preempted.
func (s *Scheduler) dropPrivate(j *job) {
	for id, r := range s.runs {
		if r == nil && s.tree.Holds(id) && s.tree.Key(id) == j.key {
			s.discard(id)
		}
	}
}

// usablePrefix is how many of the first n tokens of an id another sequence can start from.
func (s *Scheduler) usablePrefix(id int, n int32) int32 {
	if s.inHost(id) {
		return 0
	}
	have := s.tree.Have(id)
	if s.mem.lens[id] != have && s.runs[id] == nil {
		return 0
	}
	idle := s.runs[id] == nil
	switch {
	case s.cfg.NoCopy && !idle:
		return 0
	case (s.cfg.Recurrent || (s.cfg.NoTrim && (s.cfg.NoCopy || s.cfg.Layout == LayoutStreams))) && n != s.mem.lens[id]:
		return 0
	case !s.mem.reusable(id, n):
		return 0
	}
	return n
}

// value is what evicting a cached prefix loses, per token: the time to compute it again times a guess of how soon it
// is wanted. Only comparisons count.
func (s *Scheduler) value(id int) float64 {
	last, hits := s.tree.Used(id)
	n, _ := s.lengthOf(id)
	age := (s.now - last).Seconds()
	perToken := 1.0
	if shallow, deep := s.cost.perToken(0, s.cfg.Chunk), s.cost.perToken(int(n), s.cfg.Chunk); shallow > 0 {
		perToken = deep / shallow
	}
	// A prefix that was used again k times in its life is that much more likely to be used once more; a minute without
	// use halves it, two thirds it, as reuse times of conversations are heavy-tailed.
	return perToken * float64(1+hits) / (1 + max(0, age)/60)
}

// evict frees cells of the cached prefix that is worth least, at least want of them if it has as many. keep is an id
// that must stay, -1 for none. It reports whether there was anything to evict.
func (s *Scheduler) evict(want int, keep int) bool {
	best, bestValue := -1, 0.0
	fallback := -1
	for id, r := range s.runs {
		if r != nil || id == keep || s.mem.lens[id] == 0 {
			continue
		}
		if s.mem.alone(id) == 0 && len(s.mem.win) == 0 {
			if s.mem.base.Unpinned(id) < s.mem.lens[id] {
				fallback = id
			}
			continue
		}
		if v := s.value(id); best < 0 || v < bestValue {
			best, bestValue = id, v
		}
	}
	if best < 0 {
		best = fallback
	}
	if best < 0 {
		return false
	}
	s.trim(best, want)
	return true
}

// trim moves a cached prefix to host memory, if that can be and is worth it. Otherwise it frees about want cells from its end, but
// nothing that another path shares, and no more of its last branch than needed. Where a sequence cannot be cut it goes as a whole.
func (s *Scheduler) trim(id int, want int) {
	if s.moveOut(id) {
		return
	}
	s.stats.Evictions++
	s.haunt(id)
	before, _, _ := s.mem.count()
	defer func() {
		after, _, _ := s.mem.count()
		s.stats.EvictedCells += uint64(before - after)
	}()
	length, alone := s.mem.lens[id], s.mem.alone(id)
	// Not less than an eighth of what there is: many small cuts cost an operation each, which scans all cells.
	cut := min(alone, max(int32(want), alone/8, 256))
	if branch := s.tree.Branch(id); length-cut < branch {
		cut = max(length-branch, min(alone, 1))
	}
	left := length - cut
	if cut == 0 || left < minKeep || s.cfg.Recurrent || s.cfg.NoTrim || (len(s.mem.win) > 0 && !s.mem.reusable(id, left)) {
		s.drop(id)
		return
	}
	s.tree.Truncate(id, left)
	s.remove(id, left)
	s.rent[id] = 0
	s.dedupe(id)
}

// evictID empties one id below top that holds a cached prefix, the one that is worth least, and returns it, -1 for none.
func (s *Scheduler) evictID(keep, top int) int {
	best, bestValue := -1, 0.0
	for id, r := range s.runs[:top] {
		if r != nil || id == keep || s.mem.lens[id] == 0 {
			continue
		}
		if v := s.value(id) * float64(1+s.lost(id)); best < 0 || v < bestValue {
			best, bestValue = id, v
		}
	}
	if best >= 0 {
		s.evictAll(best)
	}
	return best
}

// lost is how many tokens must be computed again when what an idle id holds goes and is wanted: those that it alone keeps, or, where only
// whole states are of use, those behind the next shorter one. Its cells say nothing of that: a system prompt's state shares all of them.
func (s *Scheduler) lost(id int) int32 {
	n := s.mem.lens[id]
	if !s.cfg.Recurrent {
		return s.mem.alone(id)
	}
	shorter := int32(0)
	s.above = s.tree.Above(id, s.above[:0])
	for _, o := range s.above {
		if s.runs[o] == nil {
			shorter = max(shorter, s.tree.Have(int(o)))
		}
	}
	return n - min(n, shorter)
}

// evictAll empties an id that holds a cached prefix.
func (s *Scheduler) evictAll(id int) {
	if s.moveOut(id) {
		return
	}
	s.stats.Evictions++
	s.stats.EvictedCells += uint64(s.mem.alone(id))
	s.haunt(id)
	s.drop(id)
}

// matchOf looks a run up in the prefix cache.
func (s *Scheduler) matchOf(r *run) prefix.Match {
	if r.matched != s.tree.Version()+1 {
		r.match = s.tree.Match(r.job.key, r.job.Prompt, r.gen, s.usable)
		if m := &r.match; int(m.N) < s.cfg.MinShare {
			m.N, m.ID = 0, -1
		}
		r.matched = s.tree.Version() + 1
	}
	return r.match
}
