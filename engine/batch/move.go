package batch

// What moves to host memory, and when; fetch.go has the way back.

// worthSaving says that computing again what only an idle id holds takes longer than moving all of it twice.
func (s *Scheduler) worthSaving(id int) bool {
	n, alone := s.lengthOf(id)
	if !s.hosts() || alone < minKeep || s.mem.lens[id] != s.tree.Have(id) || s.tree.Path(id) != n || s.tree.Key(id).Private != 0 {
		return false
	}
	keep, _ := s.savable(id)
	return keep >= minKeep && keep > n-alone && s.hostBytes(keep) <= s.cfg.Host.Bytes && s.recompute(keep)-s.recompute(n-alone) > s.bothTime(id)
}

// moveOut frees an idle id whose cached prefix host memory has or now gets, and reports whether it did.
func (s *Scheduler) moveOut(id int) bool {
	if !s.hosts() || !s.tree.Holds(id) {
		return false
	}
	keep, ranges := s.savable(id)
	if e := s.saved(id); e >= 0 {
		if last := s.lastUse(id); last > s.lastUse(e) {
			s.tree.Touch(e, last, false)
		}
		s.discard(id)
		return true
	}
	from := id
	if id >= s.cfg.Sequences { // a state is of use only where its id can be decoded
		from = s.emptyID(0, s.cfg.Sequences)
	}
	if !s.worthSaving(id) || from < 0 || s.saveTime(id) > s.moveRoom() && !s.saveAlone(id) {
		return false
	}
	slot := s.freeSlot(id, keep)
	if slot < 0 {
		return false
	}
	s.tree.Truncate(id, keep)
	if from != id {
		s.copy(id, from, keep)
	}
	s.remove(from, keep)
	s.store(from, slot, ranges)
	if from != id {
		s.remove(from, 0)
	}
	s.tree.Share(id, len(s.runs)+slot)
	s.discard(id)
	return true
}

// saved returns an entry that has what an idle id holds, or nearly all of it where runs of cells have a price; -1: there is none.
func (s *Scheduler) saved(id int) int {
	if e := s.tree.Covering(id, len(s.runs), len(s.runs)+len(s.host.entries)); e >= 0 || s.host.part == 0 {
		return e
	}
	n := s.mem.lens[id]
	s.above = s.tree.Above(id, s.above[:0])
	for _, o := range s.above {
		if s.inHost(int(o)) && s.host.entries[int(o)-len(s.runs)].n >= n-n/tailShare {
			return int(o)
		}
	}
	return -1
}

const (
	// moveWorth is how many times as long as a move computing the same must take for everybody to wait for the move, whatever that takes.
	moveWorth = 8
	// stallWorth is the same where runs of cells have a price, for all the time that moving and computing takes from all.
	stallWorth = 2
	// saveMost bounds such saves in one step, in seconds; nobody has asked for them yet.
	saveMost = 1.0
)

// worthStall says that everybody should wait for a load, which is too long for the step, instead of computing tokens from..to-1 of it.
func (s *Scheduler) worthStall(load float64, from, to int32) bool {
	if s.host.part == 0 {
		return load*moveWorth <= s.recompute(to)-s.recompute(from)
	}
	return load*s.waiters()*stallWorth <= s.delay(from, to)
}

// saveAlone says that everybody should wait for a save, which is too long for any step: on a GPU a token is many more bytes than on a CPU,
// and a prefix that is computed again beside others makes all of their tokens late. What it saves counts by the chance that it is of use.
func (s *Scheduler) saveAlone(id int) bool {
	took := s.saveTime(id)
	n, alone := s.lengthOf(id)
	keep, ranges := s.savable(id)
	return s.host.part > 0 && took+s.host.spent < saveMost &&
		took*s.waiters()*stallWorth <= s.reuse*(s.delay(n-alone, keep)-s.waiters()*s.host.copyFrom(keep, ranges))
}

// waiters is who waits for a move: those who decode, and somebody for whom it is made.
func (s *Scheduler) waiters() float64 { return float64(1 + len(s.decodes)) }

// delay is what computing tokens from..to-1 takes from all, in seconds: who waits for it all of it, and those who decode meanwhile what their
// steps are longer.
func (s *Scheduler) delay(from, to int32) float64 {
	t, d := s.again(from, to), float64(len(s.decodes))
	if d == 0 {
		return t
	}
	base := s.decodeTime()
	return t * (1 + d*min(1, max(0, 1-base/s.stepTarget(base))))
}

// again is how long a client waits for tokens from..to-1 that are computed, in seconds: where runs of cells have a price, by what fits
// beside those who decode now.
func (s *Scheduler) again(from, to int32) float64 {
	t := s.recompute(to) - s.recompute(from)
	if s.host.part > 0 && len(s.decodes) > 0 {
		t = max(t, float64(to-from)*s.besideTime(len(s.decodes)))
	}
	return t
}

// payPrompts charges idle prefixes for what the prompts that begin in this step will read of them: attention of every row reads
// all cells. Those that have paid for two copies move out before.
func (s *Scheduler) payPrompts() {
	if !s.hosts() || s.host.part > 0 { // a GPU's prompts hardly feel them
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
	_, alone := s.lengthOf(id)
	if !s.hosts() || alone == 0 {
		return false
	}
	keep, _ := s.savable(id)
	return keep > 0 && s.rent[id]*float64(alone) > s.bothTime(id) && s.moveOut(id)
}

// waits says that a prefix which is about to be evicted had better wait for a step in which it can move out.
func (s *Scheduler) waits(id int) bool {
	return s.hosts() && s.saveTime(id) > s.moveRoom() && s.worthSaving(id)
}
