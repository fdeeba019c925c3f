package batch

import (
	"math"
	"slices"
	"time"
)

// Host memory takes what has to leave the device, or had better: saving a cached prefix and loading it again are two copies, which
// cost far less than computing it again. What it holds are further holders of the prefix tree, so that they are found, remembered
// and forgotten like those on the device; ids from len(runs) on are theirs, one for each slot. An entry is a whole sequence: a
// trunk that several share is saved with each of them.

const (
	// hostSlots bounds the entries.
	hostSlots = 256
	// moveGain is the weight of a step in the running price of a token that is moved.
	moveGain = 0.3
)

// host is what host memory holds.
type host struct {
	entries      []hostEntry // by slot
	used, tokens int
	bytes        int64
	keep         int // id of the entry that is about to be loaded; -1: none
	save, load   moveCost
	fixed, part  float64 // seconds that every move takes, and that every further run of cells adds
	spent, limit float64 // seconds that the moves of this step take, and may
	partMost     int     // tokens of a part
}

// hostEntry is one sequence; n is 0 in an empty slot.
type hostEntry struct {
	n      int32
	ranges int     // of cells that it was in
	order  []int32 // positions as the state lists them, nil: ascending
	step   uint64  // in which it was saved
}

// moveCost is the price of moves in one direction.
type moveCost struct {
	token        float64       // seconds
	first        float64       // the same, as it was thought at load
	seen         time.Duration // when it was learned or went back last
	tokens, many int           // in the step that is planned
	further      int           // runs of cells, in that step
	high         int           // outliers in a row
}

// priceKept is how long a price that is higher than at first is kept when nothing moves; then half of the rest goes. A price that
// keeps everything from moving is never contradicted otherwise.
const priceKept = time.Minute

// begin starts a new step.
func (h *host) begin(now time.Duration) {
	h.spent, h.keep = 0, -1
	h.save.begin(now)
	h.load.begin(now)
}

func (c *moveCost) begin(now time.Duration) {
	if c.tokens > 0 {
		c.seen = now
	}
	if now-c.seen > priceKept {
		c.token, c.seen = min(c.token, (c.token+c.first)/2), now
	}
	c.tokens, c.many, c.further = 0, 0, 0
}

// add notes a move of n tokens in so many runs of cells.
func (c *moveCost) add(n int32, ranges int) {
	c.tokens, c.many, c.further = c.tokens+int(n), c.many+1, c.further+ranges-1
}

// prime takes what a token was measured to take.
func (c *moveCost) prime(now, token time.Duration) {
	c.first = max(token.Seconds(), 1e-9)
	c.token, c.seen, c.high = c.first, now, 0
}

// observe learns that the moves of a step took t seconds. A lone outlier teaches nothing.
func (c *moveCost) observe(t, fixed, part float64) {
	if c.tokens == 0 || t <= 0 {
		return
	}
	seen := max(0, t-fixed*float64(c.many)-part*float64(c.further)) / float64(c.tokens)
	if seen > outlier*c.token {
		if c.high++; c.high < persistent {
			return
		}
	} else {
		c.high = 0
	}
	c.token += moveGain * (min(seen, outlier*c.token) - c.token)
}

// resetHost empties host memory, and starts it for a new config.
func (s *Scheduler) resetHost() {
	for slot := range s.host.entries {
		if s.host.entries[slot].n > 0 {
			s.ops = append(s.ops, Op{Kind: OpForget, Host: int32(slot)})
		}
	}
	c := &s.cfg.Host
	h := host{keep: -1, fixed: c.Move.Seconds(), part: c.Range.Seconds(), limit: copyLimit, partMost: math.MaxInt32}
	if c.PartBytes > 0 && c.TokenBytes > 0 {
		h.partMost = int(max(1, c.PartBytes/c.TokenBytes))
	}
	h.save.prime(s.now, c.Save)
	h.load.prime(s.now, c.Load)
	if c.Bytes > 0 {
		h.entries = make([]hostEntry, hostSlots)
	}
	s.host = h
}

// PrimeMoves tells what a token takes to be saved and loaded where that was measured after New.
func (s *Scheduler) PrimeMoves(save, load time.Duration) {
	s.check()
	s.host.save.prime(s.now, save)
	s.host.load.prime(s.now, load)
}

// hosts says that there is host memory.
func (s *Scheduler) hosts() bool { return len(s.host.entries) > 0 }

// inHost says that an id of the tree is one of host memory's.
func (s *Scheduler) inHost(id int) bool { return id >= len(s.runs) }

// lengthOf is how many tokens an idle id holds, and how many of them it alone: on the device, or as far as the tree knows.
func (s *Scheduler) lengthOf(id int) (n, alone int32) {
	if s.inHost(id) {
		n = s.host.entries[id-len(s.runs)].n
		return n, n - min(n, s.tree.Branch(id))
	}
	return s.mem.lens[id], s.mem.alone(id)
}

// savable is how many tokens of an idle id are worth saving, and in how many runs of consecutive cells they are: all and 1, where runs have
// no price; none where a long tail is not. Answers that were computed beside others are in runs of one cell.
func (s *Scheduler) savable(id int) (n int32, ranges int) {
	h, n := &s.host, s.mem.lens[id]
	if h.part == 0 {
		return n, 1
	}
	gain := s.tokenTime(n) - h.save.token - h.load.token
	if gain <= 0 {
		return 0, 0
	}
	cut, ranges := s.mem.base.Cut(id, 2*h.part/gain)
	if n -= n / tailShare; int32(cut) < n { // more would be lost than is won: it is cut from its end, as without host memory, until this is
		return 0, 0
	}
	return int32(cut), ranges
}

// tailShare is what part of a prefix may be behind what is worth saving of it.
const tailShare = 8

// tokenTime is what it takes to compute each of n tokens again, in seconds.
func (s *Scheduler) tokenTime(n int32) float64 {
	if t := s.cost.perToken(int(n)/2, s.cfg.Chunk); t > 0 {
		return t
	}
	return 1e-3
}

// copyTo and copyFrom host memory is what moving n tokens in so many runs of cells takes, in seconds.
func (h *host) copyTo(n int32, ranges int) float64 {
	return h.fixed + float64(n)*h.save.token + float64(max(0, ranges-1))*h.part
}

func (h *host) copyFrom(n int32, ranges int) float64 {
	return h.fixed + float64(n)*h.load.token + float64(max(0, ranges-1))*h.part
}

// saveTime is what saving an idle id takes, in seconds, bothTime also what loading it again does, into cells like those that it frees.
func (s *Scheduler) saveTime(id int) float64 { return s.host.copyTo(s.savable(id)) }
func (s *Scheduler) bothTime(id int) float64 {
	n, ranges := s.savable(id)
	return s.host.copyTo(n, ranges) + s.host.copyFrom(n, ranges)
}

// hostBytes is what n saved tokens take.
func (s *Scheduler) hostBytes(n int32) int64 {
	return s.cfg.Host.EntryBytes + int64(n)*s.cfg.Host.TokenBytes
}

// moveRoom is how many seconds moves may still take in this step.
func (s *Scheduler) moveRoom() float64 { return s.host.limit - s.host.spent }

// moveSteps is how long the moves of one step may take in decode steps, where those are slow.
const moveSteps = 1.5

// limitMoves sets how long moves may take in the step that is planned, for everybody waits for them: where nothing decodes, half of
// what such a step may take. Otherwise copyLimit, or, where steps are slow, what prompt rows might take beside the decode rows; they
// get the less for it. In what is planned last, which comes on top of them, copyLimit.
func (s *Scheduler) limitMoves(last bool) {
	h := &s.host
	switch {
	case !s.hosts():
	case len(s.decodes) == 0:
		h.limit = s.cfg.IdleTarget.Seconds() / 2
	case last:
		h.limit = min(h.limit, h.spent+copyLimit)
	default:
		base := s.decodeTime()
		h.limit = max(copyLimit, min(moveSteps*base, s.stepTarget(base)-base))
	}
}

// store plans that a slot gets what an id holds, in so many runs of cells.
func (s *Scheduler) store(from, slot, ranges int) {
	n, e := s.mem.lens[from], &s.host.entries[slot]
	e.n, e.ranges, e.step, e.order = n, ranges, s.step.Number, s.mem.base.Order(from)
	s.ops = append(s.ops, Op{Kind: OpSave, Seq: int32(from), Host: int32(slot), P1: n})
	h := &s.host
	h.spent += h.copyTo(n, ranges)
	h.save.add(n, ranges)
	h.used, h.tokens, h.bytes = h.used+1, h.tokens+int(n), h.bytes+s.hostBytes(n)
	s.stats.HostSaves++
}

// density is value per byte that a prefix takes in host memory: what others have, too, is not lost with it.
func (s *Scheduler) density(id int) float64 {
	n, alone := s.lengthOf(id)
	return s.value(id) * float64(1+alone) / float64(1+n)
}

// freeSlot returns an empty slot for the first n tokens of an idle id, within the budget: entries go that are prefixes of it, then those that
// are worth less. -1: there is none, and nothing has gone.
func (s *Scheduler) freeSlot(id int, n int32) int {
	replaced, ok := s.chooseVictims(id, n)
	if !ok {
		return -1
	}
	for i, o := range s.victims {
		_, hits := s.tree.Used(int(o))
		switch {
		case i >= replaced:
			s.learnReuse(hits)
			s.haunt(int(o))
		case hits > 0: // its conversation went on
			s.learnReuse(hits)
		}
		s.forget(int(o))
	}
	for slot := range s.host.entries {
		if s.host.entries[slot].n == 0 {
			return slot
		}
	}
	return -1
}

// chooseVictims lists in s.victims the entries that make room for the first n tokens of an idle id: first those that are prefixes of them,
// so many, then the least worth. It reports whether they suffice.
func (s *Scheduler) chooseVictims(id int, n int32) (replaced int, ok bool) {
	h := &s.host
	s.victims = s.victims[:0]
	used, bytes := h.used, h.bytes+s.hostBytes(n)
	take := func(o int) {
		s.victims = append(s.victims, int32(o))
		used, bytes = used-1, bytes-s.hostBytes(h.entries[o-len(s.runs)].n)
	}
	s.above = s.tree.Above(id, s.above[:0])
	for _, o := range s.above {
		if s.inHost(int(o)) && int(o) != h.keep && h.entries[int(o)-len(s.runs)].n <= n {
			take(int(o))
		}
	}
	replaced = len(s.victims)
	for used == len(h.entries) || bytes > s.cfg.Host.Bytes {
		worst := -1
		for slot := range h.entries {
			o := len(s.runs) + slot
			if h.entries[slot].n > 0 && o != h.keep && !slices.Contains(s.victims, int32(o)) && (worst < 0 || s.density(o) < s.density(worst)) {
				worst = o
			}
		}
		if worst < 0 || s.density(worst) > s.density(id) {
			return replaced, false
		}
		take(worst)
	}
	return replaced, true
}

// forget frees the slot of an id of host memory.
func (s *Scheduler) forget(id int) {
	slot := id - len(s.runs)
	h, e := &s.host, &s.host.entries[slot]
	h.used, h.tokens, h.bytes = h.used-1, h.tokens-int(e.n), h.bytes-s.hostBytes(e.n)
	*e = hostEntry{}
	s.tree.Remove(id)
	s.ops = append(s.ops, Op{Kind: OpForget, Host: int32(slot)})
}

// commitMoves takes what the step's moves took, and forgets what could not be saved.
func (s *Scheduler) commitMoves(r *Result) {
	s.slip.moved += r.Saving + r.Loading
	s.host.save.observe(r.Saving.Seconds(), s.host.fixed, s.host.part)
	s.host.load.observe(r.Loading.Seconds(), s.host.fixed, s.host.part)
	for _, slot := range r.Lost {
		if s.host.entries[slot].n > 0 {
			s.forget(len(s.runs) + int(slot))
		}
	}
}
