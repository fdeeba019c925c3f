package batch

import "hearth/engine/prefix"

// What comes back from host memory, and how.

// usableHost is usablePrefix for what host memory holds, since an earlier step.
func (s *Scheduler) usableHost(id int, n int32) int32 {
	if !s.inHost(id) || s.host.entries[id-len(s.runs)].step == s.step.Number {
		return 0
	}
	return n
}

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
	f := s.fetchOf(&h)
	load, compute := s.host.copyFrom(f.n, f.parts), s.again(m.N, f.use)
	if int(f.use-m.N) < s.cfg.MinShare || load >= compute || s.mem.base.Size()-s.mem.base.Pinned() < int(f.n)+s.running {
		return m, false
	}
	if load > s.moveRoom() {
		// Alone it may take longer, where computing takes much longer; beside others it waits for a step of its own.
		if !s.worthStall(load, m.N, f.use) {
			return m, false
		}
		if s.host.spent > 0 {
			return m, true
		}
	}
	if m.ID, m.N = h.ID, f.use; m.Next <= m.N {
		m.Leader, m.Next = -1, 0
	}
	return m, false
}

// fetch is what loading a match in host memory comes to: n tokens in so many parts, of which the request uses the first ones.
type fetch struct {
	n, use int32
	parts  int
}

// fetchOf is what a match's tokens come back as now: all that its slot has, or, in parts, as many of those that match as are worth it.
func (s *Scheduler) fetchOf(m *prefix.Match) fetch {
	h, e := &s.host, s.entryOf(m)
	all := fetch{e.n, m.N, 1}
	if h.part == 0 {
		return all
	}
	ratio := h.part / max(1e-9, s.tokenTime(e.n)-h.load.token)
	n := e.n
	if e.order == nil && m.N < e.n-e.n/8 {
		n = m.N
	} else if room, parts := s.mem.base.Room(int(n), int(n), ratio); parts == 1 && room == int(n) {
		return all
	}
	room, parts := s.mem.base.Room(int(n), h.partMost, ratio)
	switch {
	case !s.spares():
		return fetch{}
	case parts == 0: // there is no room yet
		return fetch{n, min(n, m.N), e.ranges}
	case e.order != nil && room < int(n):
		return fetch{}
	}
	return fetch{int32(room), min(int32(room), m.N), parts}
}

// worthLoading says that a fetch is worth its time in this step, where the first share tokens are on the device.
func (s *Scheduler) worthLoading(f fetch, share int32) bool {
	load := s.host.copyFrom(f.n, f.parts)
	return load < s.again(share, f.use) && (s.host.part == 0 || load <= s.moveRoom() || s.worthStall(load, share, f.use))
}

// entryOf is the entry of a match in host memory.
func (s *Scheduler) entryOf(m *prefix.Match) *hostEntry {
	return &s.host.entries[int(m.ID)-len(s.runs)]
}

// moveIn gives an id the tokens of a match in host memory, of which it shares the first ones with a match on the device; -1: there is
// no id or no room.
func (s *Scheduler) moveIn(m, on *prefix.Match) int {
	h := &s.host
	f := s.fetchOf(m)
	planned := h.copyFrom(f.n, f.parts)
	h.keep, h.spent = int(m.ID), h.spent+planned
	defer func() { h.keep = -1 }()
	trunk, share := int(on.ID), on.N
	id := s.freeID(trunk)
	if id < 0 {
		trunk = -1
		id = s.freeID(-1)
	}
	room := int(f.n) + s.running // each of those who decode gets a cell in this step
	for id >= 0 && s.mem.base.Free() < room {
		switch {
		case s.evict(room-s.mem.base.Free(), trunk):
		case trunk >= 0:
			trunk = -1
		default:
			id = -1
		}
	}
	h.spent -= planned
	if id < 0 {
		return -1
	}
	// In the cells that there are now it may be in more parts than was thought.
	if f = s.fetchOf(m); int(f.use-share) < s.cfg.MinShare || !s.worthLoading(f, share) || !s.loadInto(id, m, f, trunk) {
		return -1
	}
	m.N = f.use
	s.remove(id, m.N)
	if trunk >= 0 && s.mem.lens[trunk] >= share { // attention of everybody reads a trunk once
		s.ops = append(s.ops, Op{Kind: OpRemove, Seq: int32(id), P1: share}, Op{Kind: OpCopy, Seq: int32(id), Src: int32(trunk), P1: share})
		s.mem.graft(trunk, id, share)
		if s.useOf(trunk, share) {
			s.tree.Touch(trunk, s.now, true)
			s.rent[trunk] = 0
		}
	}
	s.stats.HostLoads++
	if s.useOf(int(m.ID), m.N) {
		s.tree.Touch(int(m.ID), s.now, true)
	}
	return id
}

// loadInto plans that an empty id gets what a fetch brings of a match, and reports whether it did. trunk is an idle id that keeps its name.
func (s *Scheduler) loadInto(id int, m *prefix.Match, f fetch, trunk int) bool {
	h, e := &s.host, s.entryOf(m)
	op := Op{Kind: OpLoad, Seq: int32(id), Host: m.ID - int32(len(s.runs)), P1: f.n}
	if f.parts == 1 && f.n == e.n {
		s.ops = append(s.ops, op)
		s.mem.restore(id, f.n, e.order)
	} else {
		via := s.spareID(id, trunk)
		if via < 0 {
			return false
		}
		op.Seq, op.P1 = int32(via), 0
		lengths := s.mem.restoreParts(id, f.n, h.partMost, e.order)
		for _, length := range lengths {
			op.P0, op.P1 = op.P1, op.P1+int32(length)
			s.ops = append(s.ops, op, Op{Kind: OpCopy, Seq: int32(id), Src: int32(via), P1: -1}, Op{Kind: OpRemove, Seq: int32(via), P1: -1})
		}
		f.parts = len(lengths)
	}
	h.spent += h.copyFrom(f.n, f.parts)
	h.load.add(f.n, f.parts)
	return true
}

// spares says that there are an id for a load and one for its parts to come through.
func (s *Scheduler) spares() bool {
	empty, idle := 0, 0
	for i, r := range s.runs[:s.cfg.Sequences] {
		switch {
		case r != nil:
		case s.mem.lens[i] == 0:
			empty++
		default:
			idle++
		}
	}
	return empty > 1 || empty+idle > 1 && s.emptyID(s.cfg.Sequences, len(s.runs)) >= 0
}

// spareID returns an empty id below Sequences beside id, for parts to come through: there may have to be parked for it what another one
// holds. -1: there is none.
func (s *Scheduler) spareID(id, keep int) int {
	idle := -1
	for i, r := range s.runs[:s.cfg.Sequences] {
		switch {
		case r != nil || i == id || i == keep:
		case s.mem.lens[i] == 0:
			return i
		case idle < 0:
			idle = i
		}
	}
	park := s.emptyID(s.cfg.Sequences, len(s.runs))
	if idle < 0 || park < 0 {
		return -1
	}
	s.moveCached(idle, park)
	return idle
}
