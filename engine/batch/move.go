package batch

import "hearth/engine/prefix"

// What moves between the device and host memory, and when.

// worthSaving says that computing again what only an idle id holds takes longer than moving all of it twice.
func (s *Scheduler) worthSaving(id int) bool {
	n, alone := s.lengthOf(id)
	if !s.hosts() || alone < minKeep || s.mem.lens[id] != s.tree.Have(id) || s.tree.Path(id) != n || s.tree.Key(id).Private != 0 ||
		s.hostBytes(n) > s.cfg.Host.Bytes {
		return false
	}
	return s.recompute(n)-s.recompute(n-alone) > s.saveTime(n)+s.loadTime(n)
}

// moveOut frees an idle id whose cached prefix host memory has or now gets, and reports whether it did.
func (s *Scheduler) moveOut(id int) bool {
	if !s.hosts() || !s.tree.Holds(id) {
		return false
	}
	if e := s.tree.Covering(id, len(s.runs), len(s.runs)+len(s.host.entries)); e >= 0 {
		if last := s.lastUse(id); last > s.lastUse(e) {
			s.tree.Touch(e, last, false)
		}
		s.discard(id)
		return true
	}
	n := s.mem.lens[id]
	from := id
	if id >= s.cfg.Sequences { // a state is of use only where its id can be decoded
		from = s.emptyID(0, s.cfg.Sequences)
	}
	if !s.worthSaving(id) || from < 0 || s.saveTime(n) > s.moveRoom() {
		return false
	}
	slot := s.freeSlot(id)
	if slot < 0 {
		return false
	}
	if from != id {
		s.copy(id, from, n)
	}
	s.store(from, slot, n)
	if from != id {
		s.remove(from, 0)
	}
	s.tree.Share(id, len(s.runs)+slot)
	s.discard(id)
	return true
}

// usableHost is usablePrefix for what host memory holds, since an earlier step.
func (s *Scheduler) usableHost(id int, n int32) int32 {
	if !s.inHost(id) || s.host.entries[id-len(s.runs)].step == s.step.Number {
		return 0
	}
	return n
}

// loadWorth is how many times as long as a load computing the same must take for everybody to wait for the load.
const loadWorth = 8

// bestMatch looks a run up again, on the device, and in host memory, which is taken where loading is quicker than computing what the
// device lacks. later says that the load does not fit beside what this step moves already, but into a step of its own.
func (s *Scheduler) bestMatch(r *run) (best prefix.Match, later bool) {
	r.matched = 0
	m := s.matchOf(r)
	if !s.hosts() {
		return m, false
	}
	h := s.tree.Match(r.job.key, r.job.Prompt, r.gen, s.hosted)
	if int(h.N-m.N) < s.cfg.MinShare {
		return m, false
	}
	n, _ := s.lengthOf(int(h.ID))
	load := s.loadTime(n)
	if load >= s.recompute(h.N)-s.recompute(m.N) || s.mem.base.Size()-s.mem.base.Pinned() < int(n) {
		return m, false
	}
	if load > s.moveRoom() {
		// Alone it may take longer, where computing takes many times as long; beside others it waits for a step of its own.
		if load*loadWorth > s.recompute(h.N)-s.recompute(m.N) {
			return m, false
		}
		if s.host.spent > 0 {
			return m, true
		}
	}
	if m.ID, m.N = h.ID, h.N; m.Next <= m.N {
		m.Leader, m.Next = -1, 0
	}
	return m, false
}

// moveIn gives an id the tokens of a match in host memory, of which it shares the first ones with a match on the device; -1: there is
// no id or no room.
func (s *Scheduler) moveIn(m, on *prefix.Match) int {
	h := &s.host
	slot := int(m.ID) - len(s.runs)
	n := h.entries[slot].n
	h.keep, h.spent = int(m.ID), h.spent+s.loadTime(n)
	defer func() { h.keep = -1 }()
	trunk, share := int(on.ID), on.N
	id := s.freeID(trunk)
	if id < 0 {
		trunk = -1
		id = s.freeID(-1)
	}
	for id >= 0 && s.mem.base.Free() < int(n) {
		switch {
		case s.evict(int(n)-s.mem.base.Free(), trunk):
		case trunk >= 0:
			trunk = -1
		default:
			id = -1
		}
	}
	if id < 0 {
		h.spent -= s.loadTime(n)
		return -1
	}
	s.ops = append(s.ops, Op{Kind: OpLoad, Seq: int32(id), Host: int32(slot), P1: n})
	s.mem.restore(id, n, h.entries[slot].order)
	s.remove(id, m.N)
	if trunk >= 0 && s.mem.lens[trunk] >= share { // attention of everybody reads a trunk once
		s.ops = append(s.ops, Op{Kind: OpRemove, Seq: int32(id), P1: share}, Op{Kind: OpCopy, Seq: int32(id), Src: int32(trunk), P1: share})
		s.mem.graft(trunk, id, share)
		if s.useOf(trunk, share) {
			s.tree.Touch(trunk, s.now, true)
			s.rent[trunk] = 0
		}
	}
	h.load.tokens, h.load.many = h.load.tokens+int(n), h.load.many+1
	s.stats.HostLoads++
	if s.useOf(int(m.ID), m.N) {
		s.tree.Touch(int(m.ID), s.now, true)
	}
	return id
}

// payPrompts charges idle prefixes for what the prompts that begin in this step will read of them: attention of every row reads
// all cells. Those that have paid for two copies move out before.
func (s *Scheduler) payPrompts() {
	if !s.hosts() {
		return
	}
	rows := int32(0)
	for _, r := range s.prefills {
		if !r.charged {
			rows += r.target - r.have
			r.charged = true
		}
	}
	perCell := float64(rows) * s.cost.rowCell()
	if perCell == 0 {
		return
	}
	for id, r := range s.runs {
		if r == nil && s.mem.lens[id] > 0 {
			s.rent[id] += perCell
			s.moveIfDue(id)
		}
	}
}

// moveIfDue moves a cached prefix out that has paid rent for it, and reports whether it did.
func (s *Scheduler) moveIfDue(id int) bool {
	n, alone := s.lengthOf(id)
	return s.hosts() && alone > 0 && s.rent[id]*float64(alone) > s.saveTime(n)+s.loadTime(n) && s.moveOut(id)
}

// waits says that a prefix which is about to be evicted had better wait for a step in which it can move out.
func (s *Scheduler) waits(id int) bool {
	return s.hosts() && s.saveTime(s.mem.lens[id]) > s.moveRoom() && s.worthSaving(id)
}
