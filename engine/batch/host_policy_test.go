package batch_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// cpu is the step times of SmolLM2 135M on two cores, to a few percent, with noise: 8 ms for a decode row and 0.8 us more for every
// cell in use; 1.1 ms for a prompt row, and 0.11 us more for every cell that it reads.
type cpu struct{ rng *rand.Rand }

func (c cpu) time(st *batch.Step, span int) time.Duration {
	d, p := float64(st.Decodes), float64(st.Prefills)
	ms := d*(2+4e-4*float64(span)) + 6 + 4e-4*float64(span) + p*(1.1+1.1e-4*float64(span))
	if c.rng != nil {
		ms *= 0.97 + 0.06*c.rng.Float64()
	}
	return time.Duration(ms * float64(time.Millisecond))
}

// cpuConfig is what the worker finds on a CPU; host is its budget in tokens of 23 kB, of which a copy takes 10 us.
func cpuConfig(host int64) batch.Config {
	const token = 23 << 10
	return batch.Config{
		Cells: 8192, Context: 8192, Sequences: 32, Parking: 224, Chunk: 512, Outputs: 32, MinPrefill: 16, IdleTarget: 2 * time.Second, NoPad: true,
		Host: batch.Host{Bytes: host * token, EntryBytes: 1 << 10, TokenBytes: token, Save: 10 * time.Microsecond, Load: 10 * time.Microsecond, Move: time.Millisecond},
	}
}

// TestPolicyHostOneClient is one client with prompts that share nothing: what is cached of the earlier ones must not slow it down by
// more than 3 % against an empty cache.
func TestPolicyHostOneClient(t *testing.T) {
	run := func(host int64) (step, ttft time.Duration) {
		rng := rand.New(rand.NewPCG(1, 21))
		l := newClientsOf(t, cpuConfig(host), cpu{rand.New(rand.NewPCG(3, 4))})
		l.next = func(c *client) bool {
			c.watch = true
			c.job = batch.Job{Prompt: random(rng, 570), MaxTokens: 128}
			return c.requests < 30
		}
		l.send(&client{})
		l.run()
		l.report()
		t.Logf("moves took at most %v beside decodes, %+v", l.stall, l.s.Stats())
		return quantile(l.steps, .5), quantile(l.ttft, .5)
	}
	run(0)
	step, ttft := run(100000)
	alone := cpu{}.time(&batch.Step{Decodes: 1}, 768)
	if step > alone*103/100 {
		t.Errorf("decode step %v, with an empty cache %v", step, alone)
	}
	first := cpu{}.time(&batch.Step{Prefills: 512}, 512) + cpu{}.time(&batch.Step{Prefills: 58}, 768)
	if ttft > first*105/100 {
		t.Errorf("first token after %v, with an empty cache %v", ttft, first)
	}
}

// TestPolicyHostConversations is clients that change between conversations, together more than the pool holds: all come back cached.
func TestPolicyHostConversations(t *testing.T) {
	for _, n := range []int{1, 2} {
		rng := rand.New(rand.NewPCG(1, 22))
		l := newClientsOf(t, cpuConfig(100000), cpu{rand.New(rand.NewPCG(3, 5))})
		talks := map[int]*[8][]engine.Token{}
		oracle := 0
		l.next = func(c *client) bool {
			if talks[c.n] == nil {
				talks[c.n] = new([8][]engine.Token)
				for i := range talks[c.n] {
					talks[c.n][i] = random(rng, 900)
				}
			}
			talk := &talks[c.n][c.requests%8]
			if c.requests >= 8 {
				oracle += len(*talk)
				*talk = append(*talk, random(rng, 60)...)
			}
			c.watch = true
			c.job = batch.Job{Prompt: slices.Clone(*talk), MaxTokens: 40}
			return c.requests < 48
		}
		for i := range n {
			l.send(&client{n: i})
		}
		l.run()
		l.report()
		t.Logf("moves took at most %v beside decodes, %+v", l.stall, l.s.Stats())
		if l.cache < oracle*95/100 {
			t.Errorf("%d clients: cached %d of %d tokens", n, l.cache, oracle)
		}
		if l.stall > 25*time.Millisecond {
			t.Errorf("%d clients: moves took %v in a step with decode rows", n, l.stall)
		}
	}
}
