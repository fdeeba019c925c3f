package batch_test

import (
	"math/rand/v2"
	"testing"
	"hearth/engine/batch"
)

func TestDbg(t *testing.T) {
	cfg := layouts[1]
	l := newClients(t, cfg)
	rng := rand.New(rand.NewPCG(1, 4))
	l.next = func(c *client) bool {
		if c.n < 8 {
			c.watch = true
			c.job = batch.Job{Prompt: random(rng, 200), MaxTokens: 1500}
		} else {
			c.job = batch.Job{Prompt: random(rng, 8192), MaxTokens: 30}
		}
		return c.requests < 1 || (c.n == 8 && c.requests < 6)
	}
	l.trace = true
	for i := range 9 {
		l.send(&client{n: i})
	}
	l.run()
}
