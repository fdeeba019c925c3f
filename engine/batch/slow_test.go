package batch_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"hearth/engine/batch"
)

// crawl is a device on which each step takes seconds whatever is in it: a large model in slow memory, or cores that others use, too.
type crawl struct{ step, row time.Duration }

func (c crawl) time(st *batch.Step, span int) time.Duration {
	return c.step + time.Duration(len(st.Rows))*c.row
}

// A prompt on a device that takes longer than the idle target for a single row must not come in row by row.
func TestPromptOnCrawlingDevice(t *testing.T) {
	for _, c := range []crawl{{time.Second, 30 * time.Millisecond}, {3 * time.Second, 5 * time.Millisecond}, {10 * time.Second, 100 * time.Millisecond}} {
		l := newClientsOf(t, cpuConfig(0), c)
		rng := rand.New(rand.NewPCG(1, 29))
		l.next = func(cl *client) bool {
			cl.job = batch.Job{Prompt: random(rng, 1000), MaxTokens: 20}
			return cl.requests < 2
		}
		l.send(&client{})
		l.run()
		l.report()
		best := 2*c.step + 1000*c.row // of two full chunks
		for i, got := range l.ttft {  // before anything was seen to decode, and behind that
			if got > 3*best {
				t.Errorf("%v a step and %v a row, prompt %d: first token after %v, in full chunks %v", c.step, c.row, i, got, best)
			}
		}
	}
}
