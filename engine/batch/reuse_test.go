package batch

import (
	"testing"
	"time"

	"hearth/engine"
)

// Requests that find nothing of use in the cache teach that cached prefixes are not worth much, long before one is evicted; a conversation
// that goes on teaches the opposite.
func TestReuseIsLearnedFromRequests(t *testing.T) {
	s, err := New(Config{Cells: 65536, Context: 4096, Sequences: 16, Parking: 64, Chunk: 512})
	if err != nil {
		t.Fatal(err)
	}
	now, id := time.Duration(0), JobID(0)
	ask := func(prompt []engine.Token) {
		id++
		if err := s.Submit(now, Job{ID: id, Prompt: prompt, MaxTokens: 2, Cache: true}); err != nil {
			t.Fatal(err)
		}
		for {
			st := s.Plan(now)
			if st.Idle() {
				return
			}
			now += 10 * time.Millisecond
			s.Commit(now, Result{Duration: 10 * time.Millisecond, Sampled: make([]Sampled, len(st.Samples))})
		}
	}
	unrelated := func(k int) []engine.Token {
		out := make([]engine.Token, 300)
		for i := range out {
			out[i] = engine.Token(i)
			if i >= 20 { // behind a common template
				out[i] = engine.Token(k*1000 + i)
			}
		}
		return out
	}
	for k := range 30 {
		ask(unrelated(k + 1))
	}
	if s.reuse > 0.06 || s.stats.Evictions > 0 {
		t.Errorf("after 30 unrelated prompts a share of %.2f is taken to be reused, %d were evicted", s.reuse, s.stats.Evictions)
	}
	talk := unrelated(99)
	for range 30 {
		talk = append(talk, 0, 0, 7) // its answer and the next question
		ask(talk)
	}
	if s.reuse < 0.5 {
		t.Errorf("after 30 turns of a conversation a share of %.2f is taken to be reused", s.reuse)
	}
}

// A state that is kept on the id of a prefix that has paid its rent begins with none.
func TestKeptStateOwesNothing(t *testing.T) {
	d := newDrill(t, Config{Recurrent: true, Cells: 4096, Context: 1024, Sequences: 4, MaxRunning: 1, Chunk: 64}, func(st *Step) time.Duration {
		return 10 * time.Millisecond
	})
	for id := range d.s.rent {
		d.s.rent[id] = 1 // as they went with
	}
	d.submit(1, 200, 2)
	d.finish(1)
	for id := range d.s.runs {
		if d.s.tree.Holds(id) && d.s.rent[id] > 0 {
			t.Errorf("id %d: a state of %d tokens has %v s to pay", id, d.s.tree.Have(id), d.s.rent[id])
		}
	}
}
