package batch

import (
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/prefix"
)

// counting is n tokens in a row.
func counting(n, from int) []engine.Token {
	out := make([]engine.Token, n)
	for i := range out {
		out[i] = engine.Token(from + i)
	}
	return out
}

// An entry is forgotten for a longer one of its conversation only when that fits.
func TestNothingIsForgottenInVain(t *testing.T) {
	s, err := New(Config{Cells: 512, Context: 512, Sequences: 4, Parking: 4, Chunk: 64,
		Host: Host{Bytes: 2607, TokenBytes: 10, Save: time.Microsecond, Load: time.Microsecond, Move: time.Microsecond}})
	if err != nil {
		t.Fatal(err)
	}
	entry := func(slot, n, from, hits int) {
		id := len(s.runs) + slot
		s.tree.Insert(prefix.Key{}, id, counting(n, from), nil, int32(n), 0)
		for range hits {
			s.tree.Touch(id, s.now, true)
		}
		s.host.entries[slot] = hostEntry{n: int32(n)}
		s.host.used, s.host.tokens, s.host.bytes = s.host.used+1, s.host.tokens+n, s.host.bytes+s.hostBytes(int32(n))
	}
	s.now = time.Hour
	entry(0, 100, 1000, 0)
	entry(1, 150, 9000, 3)
	s.tree.Insert(prefix.Key{}, 0, counting(160, 1000), nil, 160, 0)
	s.mem.restore(0, 160, nil)
	if slot := s.freeSlot(0, 160); slot != -1 || s.host.entries[0].n != 100 || s.host.entries[1].n != 150 {
		t.Errorf("slot %d, %+v", slot, s.host.entries[:2])
	}
	s.cfg.Host.Bytes = 3200
	if slot := s.freeSlot(0, 160); slot != 0 || s.host.entries[1].n != 150 {
		t.Errorf("with room: slot %d, %+v", slot, s.host.entries[:2])
	}
}

// The library makes the copies behind a step when it computes the next one: they are no price of its rows.
func TestForksDoNotTeachDecodeSteps(t *testing.T) {
	s, err := New(Config{Layout: LayoutStreams, Context: 1024, Sequences: 8, Chunk: 64, CopyTime: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	const step = 16 * time.Millisecond
	for i := range 16 {
		s.Prime(Shape{Decode: 4}, 256+i, step)
		s.Prime(Shape{Prefill: 64}, 64, step)
	}
	now := time.Duration(0)
	for id := range 20 {
		if err := s.Submit(now, Job{ID: JobID(id), Prompt: counting(64, 1000*id), Choices: 4, MaxTokens: 10}); err != nil {
			t.Fatal(err)
		}
		copies := 0
		for st := s.Plan(now); !st.Idle(); st = s.Plan(now) {
			took := step + time.Duration(copies+copiesIn(st.Ops))*10*time.Millisecond
			copies = copiesIn(st.After)
			now += took
			s.Commit(now, Result{Duration: took, Sampled: make([]Sampled, len(st.Samples))})
		}
	}
	if got, _ := s.cost.predict(load{{rows: 4, decodes: 4, kv: 256}}); got > 1.1*step.Seconds() {
		t.Errorf("4 decode rows are thought to take %v s", got)
	}
	if d := s.cfg.CopyTime; d < 5*time.Millisecond || d > 20*time.Millisecond {
		t.Errorf("a copy is thought to take %v", d)
	}
}

func copiesIn(ops []Op) (n int) {
	for _, op := range ops {
		if op.Kind == OpCopy {
			n++
		}
	}
	return n
}
