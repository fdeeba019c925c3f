package batch_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"hearth/engine/batch"
)

// Choices of one prompt in streams begin a few at a time: each is a copy of a buffer, and everybody waits for it.
func TestForksAreBounded(t *testing.T) {
	w := newWorld(t, batch.Config{Layout: batch.LayoutStreams, Context: 256, Sequences: 12, Chunk: 64, CopyTime: 10 * time.Millisecond})
	rng := rand.New(rand.NewPCG(1, 2))
	copies := func(ops []batch.Op) (n int) {
		for _, op := range ops {
			if op.Kind == batch.OpCopy {
				n++
			}
		}
		return n
	}
	before := 0 // behind the last step: the library makes them when it computes the next one
	w.took = func(st *batch.Step) time.Duration {
		n := before + copies(st.Ops)
		if n > 2 {
			t.Errorf("step %d waits for %d copies of 10 ms", st.Number, n)
		}
		before = copies(st.After)
		return time.Duration(10*(1+n)) * time.Millisecond
	}
	w.must(w.submit(batch.Job{ID: 1, Prompt: ofVocab(rng, 30), MaxTokens: 60}))
	w.turn()
	w.must(w.submit(batch.Job{ID: 2, Prompt: ofVocab(rng, 120), Choices: 8, MaxTokens: 20, Cache: true}))
	w.run(1000)
}

func ofVocab(rng *rand.Rand, n int) []int32 {
	out := random(rng, n)
	for i := range out {
		out[i] %= vocab
	}
	return out
}
