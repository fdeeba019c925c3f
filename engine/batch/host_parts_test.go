package batch

import (
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/prefix"
)

// gpuHost is a scheduler of a card on which a token takes 0.5 ms to compute, a move 2 ms, and a run of cells rng.
func gpuHost(t *testing.T, cells, seqs, park int, rng time.Duration) *Scheduler {
	s, err := New(Config{Cells: cells, Context: cells, Sequences: seqs, Parking: park, Chunk: 512, Outputs: 16,
		Host: Host{Bytes: 1 << 34, EntryBytes: 1 << 10, TokenBytes: 128 << 10, Save: 20 * time.Microsecond, Load: 20 * time.Microsecond,
			Move: 2 * time.Millisecond, Range: rng, PartBytes: 64 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.Prime(Shape{Decode: 1}, 256, 5*time.Millisecond)
		s.Prime(Shape{Decode: 1}, 2048, 6*time.Millisecond)
		s.Prime(Shape{Prefill: 512}, 512, 250*time.Millisecond) // 0.5 ms a token
	}
	return s
}

// putEntry puts a prefix into a slot.
func (s *Scheduler) putEntry(slot, n int, toks []engine.Token) {
	id := len(s.runs) + slot
	s.tree.Insert(prefix.Key{}, id, toks, nil, int32(n), 0)
	s.host.entries[slot] = hostEntry{n: int32(n), ranges: 1}
	s.host.used, s.host.tokens, s.host.bytes = s.host.used+1, s.host.tokens+n, s.host.bytes+s.hostBytes(int32(n))
}

// scatter gives an id n tokens, the first together, the others in cells of their own between those of other.
func (s *Scheduler) scatter(id, other, together, n int, toks []engine.Token, otherToks []engine.Token) {
	ids, pos := []int32{}, []int32{}
	for p := range together {
		ids, pos = append(ids, int32(id)), append(pos, int32(p))
	}
	for p := together; p < n; p++ {
		ids, pos = append(ids, int32(id), int32(other)), append(pos, int32(p), int32(p-together))
	}
	if !s.mem.base.Place(ids, pos) {
		panic("batch: no room for a test")
	}
	s.mem.lens[id], s.mem.lens[other] = int32(n), int32(n-together)
	s.tree.Insert(prefix.Key{}, id, toks, nil, int32(n), 0)
	s.tree.Insert(prefix.Key{}, other, otherToks, nil, int32(n-together), 0)
}

// What cannot be saved is not given away for the price of moving what can.
func TestLongTailsAreNotGivenAway(t *testing.T) {
	for _, saved := range []bool{false, true} {
		s := gpuHost(t, 16384, 4, 4, 1500*time.Microsecond)
		toks := counting(3000, 1000)
		s.scatter(0, 1, 500, 3000, toks, counting(2500, 9000))
		if saved {
			s.putEntry(0, 500, toks[:500])
		}
		s.limitMoves(false)
		keep, _ := s.savable(0)
		price := s.recompute(3000) * min(rentHigh, max(rentLow, 2*s.reuse))
		s.rent[0] = 1.01 * s.bothTime(0) / float64(s.mem.alone(0)) // 0.045 s in all
		paid := s.rent[0] * float64(s.mem.alone(0))
		if s.moveIfDue(0) {
			t.Errorf("saved before %v: a prefix of 3000 tokens (%.2f s to compute, price without host memory %.2f s) goes after %.3f s of rent; %d tokens of it are kept",
				saved, s.recompute(3000), price, paid, keep)
		}
	}
}

// 100 cells are wanted; the tail has them.
func TestEvictionCutsLongTails(t *testing.T) {
	s := gpuHost(t, 16384, 4, 4, 1500*time.Microsecond)
	toks := counting(3000, 1000)
	s.scatter(0, 1, 500, 3000, toks, counting(2500, 9000))
	s.putEntry(0, 500, toks[:500])
	s.limitMoves(false)
	s.trim(0, 100)
	if s.mem.lens[0] < 2000 {
		t.Errorf("%d tokens of 3000 are left, %d evictions counted", s.mem.lens[0], s.stats.Evictions)
	}
}

// A load that does not fit beside those who run must not empty the cache first.
func TestNoLoadThatCannotFit(t *testing.T) {
	s := gpuHost(t, 512, 4, 4, 0)
	s.putEntry(0, 400, counting(400, 1000))
	now := time.Duration(0)
	// one running request of 110 tokens, and one cached prefix of something else
	if err := s.Submit(now, Job{ID: 1, Prompt: counting(109, 20000), MaxTokens: 50, Cache: true}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		st := s.Plan(now)
		now += 10 * time.Millisecond
		s.Commit(now, Result{Duration: 10 * time.Millisecond, Sampled: make([]Sampled, len(st.Samples))})
	}
	r := &run{job: &job{Job: Job{Prompt: counting(410, 1000), Cache: true}}, match: prefix.Match{ID: -1, Leader: -1}}
	s.limitMoves(false)
	for s.mem.base.Pinned() < 112 { // one more token
		st := s.Plan(now)
		now += 10 * time.Millisecond
		s.Commit(now, Result{Duration: 10 * time.Millisecond, Sampled: make([]Sampled, len(st.Samples))})
	}
	m, _ := s.bestMatch(r)
	if s.inHost(int(m.ID)) {
		dev := s.matchOf(r)
		if id := s.moveIn(&m, &dev); id < 0 {
			t.Errorf("a match that cannot be had was taken")
		}
	}
}

// A load whose cells turn out to be scattered behind the evictions stalls everybody for no longer than one that was known to be.
func TestScatteredLoadsAreJudgedAgain(t *testing.T) {
	s := gpuHost(t, 8192, 6, 4, 1500*time.Microsecond)
	// two interleaved idle prefixes fill the pool; one of them is pinned as a running decode
	n := 4080
	ids, pos := []int32{}, []int32{}
	run1 := 5 // cells of each in a row
	for p := 0; p < n; p += run1 {
		for k := range 2 {
			for i := range run1 {
				ids, pos = append(ids, int32(k)), append(pos, int32(p+i))
			}
		}
	}
	s.mem.base.Place(ids, pos)
	s.mem.lens[0], s.mem.lens[1] = int32(n), int32(n)
	s.tree.Insert(prefix.Key{}, 0, counting(n, 100000), nil, int32(n), 0) // idle
	j := &job{Job: Job{ID: 7, Prompt: counting(n, 200000), MaxTokens: 100}, tenant: s.tenantOf("")}
	j.runs = make([]run, 1)
	r1 := &j.runs[0]
	*r1 = run{job: j, id: 1, have: int32(n), state: stateDecode, take: 1}
	s.runs[1], s.running = r1, 1
	s.mem.setPinned(1, true)
	s.gather()
	for range 8 {
		s.Prime(Shape{Decode: 1, Prefill: 63}, 256, 35*time.Millisecond)
		s.Prime(Shape{Decode: 1, Prefill: 31}, 256, 20*time.Millisecond)
		s.Prime(Shape{Decode: 1, Prefill: 255}, 256, 130*time.Millisecond)
	}
	s.limitMoves(false)
	s.putEntry(0, 4000, counting(4000, 1000))
	s.host.entries[0].step = 1 << 40
	r := &run{job: &job{Job: Job{Prompt: counting(4010, 1000), Cache: true}}, match: prefix.Match{ID: -1, Leader: -1}}
	m, _ := s.bestMatch(r)
	if !s.inHost(int(m.ID)) {
		t.Fatalf("the match is %+v", m)
	}
	dev := s.matchOf(r)
	id := s.moveIn(&m, &dev)
	if id >= 0 && s.host.spent > s.host.limit && !s.worthStall(s.host.spent, 0, m.N) {
		t.Errorf("a stall of %.3f s that is not worth it", s.host.spent)
	}
}

// Without an id for parts to come through nothing is evicted for a load.
func TestNoPartsWithoutASpareID(t *testing.T) {
	s := gpuHost(t, 4096, 1, 4, 1500*time.Microsecond)
	// one idle prefix on the only id in alternating cells is impossible; three parked ones leave holes
	toks := func(i int) []engine.Token { return counting(1000, 100000*(i+1)) }
	ids, pos := []int32{}, []int32{}
	for p := 0; p < 1000; p += 100 {
		for k := range 4 {
			for i := range 100 {
				ids, pos = append(ids, int32(k+1)), append(pos, int32(p+i))
			}
		}
	}
	s.mem.base.Place(ids, pos)
	for k := range 4 {
		s.mem.lens[k+1] = 1000
		s.tree.Insert(prefix.Key{}, k+1, toks(k), nil, 1000, time.Duration(k))
	}
	s.putEntry(0, 900, counting(900, 1000))
	s.host.entries[0].step = 1 << 40
	s.limitMoves(false)
	r := &run{job: &job{Job: Job{Prompt: counting(910, 1000), Cache: true}}, match: prefix.Match{ID: -1, Leader: -1}}
	if m, _ := s.bestMatch(r); s.inHost(int(m.ID)) {
		t.Errorf("a load in parts is planned: %+v", m)
	}
}
