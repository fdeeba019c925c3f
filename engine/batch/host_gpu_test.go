package batch_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/batch/kvsim"
)

// card is a graphics card that takes slow times as long as the GPU measured.
type card struct {
	gpu
	slow time.Duration
}

func (c card) time(st *batch.Step, span int) time.Duration { return c.slow * c.gpu.time(st, span) }

// cardConfig is an 8B model with 128 KiB a token, whose copies reach 6 GB/s and take 1.5 ms for each run of cells; host is in tokens.
func cardConfig(host int64) batch.Config {
	const token = 128 << 10
	return batch.Config{
		Cells: 24 << 10, Context: 16 << 10, Sequences: 16, Parking: 240, Chunk: 512, Outputs: 16,
		Host: batch.Host{
			Bytes: host * token, EntryBytes: 1 << 10, TokenBytes: token, Save: 20 * time.Microsecond, Load: 20 * time.Microsecond,
			Move: 2 * time.Millisecond, Range: 1500 * time.Microsecond, PartBytes: 64 << 20,
		},
	}
}

// talks is clients that each change between conversations of 4000 tokens and more. It returns the share of what could be cached that was.
func talks(t *testing.T, l *clients, n, each int) float64 {
	rng := rand.New(rand.NewPCG(1, 23))
	all := map[int][][]engine.Token{}
	oracle := 0
	l.next = func(c *client) bool {
		if all[c.n] == nil {
			for range each {
				all[c.n] = append(all[c.n], random(rng, 3500+rng.IntN(1000)))
			}
		}
		talk := &all[c.n][c.requests%each]
		if c.requests >= each {
			oracle += len(*talk)
			*talk = append(*talk, random(rng, 100)...)
		}
		c.watch = true
		c.job = batch.Job{Prompt: slices.Clone(*talk), MaxTokens: 100}
		return c.requests < 4*each
	}
	for i := range n {
		l.send(&client{n: i})
	}
	l.run()
	l.report()
	t.Logf("cached %d of %d tokens; moves took at most %v beside decodes, %+v", l.cache, oracle, l.stall, l.s.Stats())
	return float64(l.cache) / float64(oracle)
}

// TestPolicyHostOnACard is conversations on a card that together are more than its pool holds.
func TestPolicyHostOnACard(t *testing.T) {
	for _, c := range []struct {
		slow          time.Duration
		clients, each int
		least         float64
	}{{5, 1, 8, .95}, {5, 2, 4, .75}, {5, 4, 3, .35}, {1, 1, 8, .9}} {
		for _, host := range []int64{0, 100000} {
			if host == 0 && !testing.Verbose() { // to compare with
				continue
			}
			cfg := cardConfig(host)
			l := newClientsOf(t, cfg, card{slow: c.slow})
			if host > 0 {
				l.sim = kvsim.New(kvsim.ConfigOf(cfg))
			}
			if got := talks(t, l, c.clients, c.each); host > 0 && got < c.least {
				t.Errorf("%d clients of a card %d times as slow: %.2f was cached, want %.2f", c.clients, c.slow, got, c.least)
			}
		}
	}
}
