package batch_test

import (
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// loaded returns a scheduler with n decoding sequences of about depth tokens and some cached prefixes.
func loaded(b testing.TB, cfg batch.Config, n, depth int) (*batch.Scheduler, func()) {
	s, err := batch.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		prompt := make([]engine.Token, depth)
		for k := range prompt {
			prompt[k] = engine.Token(k)
			if k > depth/4 {
				prompt[k] += engine.Token(i)
			}
		}
		if err := s.Submit(0, batch.Job{ID: batch.JobID(i + 1), Prompt: prompt, MaxTokens: -1, Cache: true}); err != nil {
			b.Fatal(err)
		}
	}
	now := time.Duration(0)
	var sampled []batch.Sampled
	turn := func() {
		st := s.Plan(now)
		sampled = sampled[:0]
		for i := range st.Samples {
			sampled = append(sampled, batch.Sampled{Token: engine.Token(i)})
		}
		now += 10 * time.Millisecond
		if !st.Idle() {
			s.Commit(now, batch.Result{Duration: 10 * time.Millisecond, Sampled: sampled})
		}
	}
	for i := 0; s.Stats().LastDecodes < n; i++ {
		if turn(); i > 100000 {
			b.Fatalf("not all decode: %+v", s.Stats())
		}
	}
	return s, turn
}

func benchConfigs() map[string]batch.Config {
	return map[string]batch.Config{
		"unified": {Cells: 1 << 20, Context: 1 << 19, Sequences: 64, Parking: 64, Chunk: 512, Outputs: 64},
		"streams": {Layout: batch.LayoutStreams, Context: 1 << 19, Sequences: 64, Chunk: 512, Outputs: 64},
		"iswa":    {Cells: 1 << 20, Context: 1 << 19, Sequences: 64, Parking: 64, Chunk: 512, Outputs: 64, Window: 1024, WindowCells: 1024*65 + 512},
	}
}

// BenchmarkStep is Plan and Commit of a decode step of 64 sequences; the goal is 100 us and no allocation.
func BenchmarkStep(b *testing.B) {
	for name, cfg := range benchConfigs() {
		b.Run(name, func(b *testing.B) {
			_, turn := loaded(b, cfg, 64, 2000)
			b.ReportAllocs()
			for b.Loop() {
				turn()
			}
		})
	}
}

// BenchmarkChurn is a step in which, on average, four of 64 sequences end and others come.
func BenchmarkChurn(b *testing.B) {
	cfg := benchConfigs()["unified"]
	s, _ := loaded(b, cfg, 1, 100)
	prompts := make([][]engine.Token, 256)
	for i := range prompts {
		prompts[i] = make([]engine.Token, 512)
		for k := range prompts[i] {
			prompts[i][k] = engine.Token(k % 100)
			if k > 256 {
				prompts[i][k] += engine.Token(i)
			}
		}
	}
	now, id := time.Hour, batch.JobID(1000)
	var sampled []batch.Sampled
	b.ReportAllocs()
	for b.Loop() {
		for s.Stats().Jobs < 80 {
			id++
			if err := s.Submit(now, batch.Job{ID: id, Prompt: prompts[int(id)%len(prompts)], MaxTokens: 16, Cache: true}); err != nil {
				b.Fatal(err)
			}
		}
		st := s.Plan(now)
		sampled = sampled[:0]
		for i := range st.Samples {
			sampled = append(sampled, batch.Sampled{Token: engine.Token(i)})
		}
		now += 10 * time.Millisecond
		s.Commit(now, batch.Result{Duration: 10 * time.Millisecond, Sampled: sampled})
	}
}

// TestSteadyState pins what BenchmarkStep shows: a decode step allocates nothing.
func TestSteadyState(t *testing.T) {
	for name, cfg := range benchConfigs() {
		cfg.Cells, cfg.Context = min(cfg.Cells, 1<<16), 1<<13
		t.Run(name, func(t *testing.T) {
			_, turn := loaded(t, cfg, 64, 300)
			if n := testing.AllocsPerRun(500, turn); n > 0 {
				t.Fatalf("%v allocations per step, want 0", n)
			}
		})
	}
}
