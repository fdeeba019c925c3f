package batch_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"hearth/engine/batch"
)

// The state behind a system prompt outlives those of the conversations that began with it, although it has no cells of its own.
func TestSharedStateStays(t *testing.T) {
	for _, noAttention := range []bool{false, true} {
		cfg := batch.Config{Cells: 8192, Context: 2048, Sequences: 12, MaxRunning: 4, Chunk: 64, Recurrent: true, NoAttention: noAttention}
		w := newWorld(t, cfg)
		rng := rand.New(rand.NewPCG(1, 2))
		system := random(rng, 200)
		id := batch.JobID(0)
		for wave := range 12 {
			for range 4 {
				id++
				prompt := append(slices.Clone(system), random(rng, 100)...)
				w.must(w.submit(batch.Job{ID: id, Prompt: prompt, MaxTokens: 30, Cache: true, Marks: []int{200, 290}}))
			}
			w.run(10000)
			for _, ev := range w.done {
				if wave > 0 && ev.Usage.Cached < len(system) {
					t.Errorf("no attention %t, wave %d: %d tokens of a prompt were cached", noAttention, wave, ev.Usage.Cached)
				}
			}
			clear(w.done)
		}
	}
}

// A state is kept once while other rows have their turn, and costs one cached state its id.
func TestStateIsKeptOnce(t *testing.T) {
	w := newWorld(t, batch.Config{Cells: 4096, Context: 512, Sequences: 8, MaxRunning: 2, Chunk: 64, Recurrent: true})
	rng := rand.New(rand.NewPCG(1, 2))
	for id := range batch.JobID(6) {
		w.must(w.submit(batch.Job{ID: id, Prompt: random(rng, 100), MaxTokens: 2, Cache: true}))
		w.run(100)
	}
	w.must(w.submit(batch.Job{ID: 20, Prompt: random(rng, 10), MaxTokens: 100}))
	w.turn()
	before := w.s.Stats().Evictions
	w.must(w.submit(batch.Job{ID: 21, Prompt: random(rng, 100), MaxTokens: 2, Cache: true, Marks: []int{40, 70}}))
	w.run(1000)
	if n := w.s.Stats().Evictions - before; n > 4 { // for the prompt itself, two marks and its end
		t.Errorf("%d cached states went for three kept ones", n)
	}
}
