package batch_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// closedLoop is n clients that send random prompts of about 330 tokens and want 128 tokens, one after the other.
func closedLoop(t *testing.T, cfg batch.Config, n, each int) *clients {
	l := newClients(t, cfg)
	rng := rand.New(rand.NewPCG(1, 2))
	template := random(rng, 20) // what every chat begins with
	l.next = func(c *client) bool {
		c.watch = true
		c.job = batch.Job{Prompt: append(slices.Clone(template), random(rng, 280+rng.IntN(60))...), MaxTokens: 128}
		return c.requests < each
	}
	for i := range n {
		l.send(&client{n: i})
	}
	l.run()
	l.report()
	return l
}

// TestPolicyClosedLoop is the load of the table: llama-server's best at 16 clients is 487 tok/s and a median
// time to first token of 1.1 s; 1.4 times that is asked for. The simulated GPU has no sampling on the step's thread, so
// this says that the schedule allows it, not that it is reached.
func TestPolicyClosedLoop(t *testing.T) {
	best := 0.0
	for _, cfg := range layouts {
		l := closedLoop(t, cfg, 16, 12)
		best = max(best, float64(l.out)/l.now.Seconds())
		if p50 := quantile(l.ttft, .5); p50 > 300*time.Millisecond {
			t.Errorf("%s: median TTFT %v", cfg.Layout, p50)
		}
	}
	if best < 1.4*487 {
		t.Errorf("%.0f tok/s", best)
	}
}

// TestPolicyBusyLoop holds back enough to keep the promise and no more: beside 16 and 32 decode rows a millisecond decides whether a full tile
// of 256 prompt rows fits, or three quarters of it. (A reserve of 2 to 3 ms cost 5 % and 14 %.)
func TestPolicyBusyLoop(t *testing.T) {
	cfg := layouts[1]
	cfg.Context, cfg.Sequences = 8192, 32
	for n, least := range map[int]float64{8: 480, 16: 660, 32: 1000} {
		busyLoop(newClients(t, cfg), n, 4, least)
	}
}

// busyLoop has n clients in a closed loop, as seen in service, with so many requests each: at least so many tokens a second, and the promise kept.
func busyLoop(l *clients, n, requests int, least float64) {
	l.t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	l.gpu = busy{l.gpu.(gpu), rng}
	l.next = func(c *client) bool {
		c.watch = true
		c.job = batch.Job{Prompt: random(rng, 339), MaxTokens: 128}
		return c.requests < requests
	}
	for i := range n {
		l.send(&client{n: i})
	}
	l.run()
	l.report()
	if rate := float64(l.out) / l.now.Seconds(); rate < least {
		l.t.Errorf("%d clients: %.0f tok/s", n, rate)
	}
	if p99, most := quantile(l.gaps, .99), max(50*time.Millisecond, 3*quantile(l.steps, .5)); p99 > most {
		l.t.Errorf("%d clients: p99 %v of %v", n, p99, most)
	}
}

// TestPolicyStreamsStayDense fills every id with cached prompts of one client, and then of few clients, before eight others come: their
// decode steps must be one evaluation with few padding rows all the same.
func TestPolicyStreamsStayDense(t *testing.T) {
	l := newClients(t, layouts[1])
	rng := rand.New(rand.NewPCG(1, 9))
	wave := func(n, each, long, most int) {
		l.next = func(c *client) bool {
			c.job = batch.Job{Prompt: random(rng, 100+rng.IntN(long)), MaxTokens: 1 + rng.IntN(most)}
			return c.requests < each
		}
		for i := range n {
			l.send(&client{n: i})
		}
		l.run()
	}
	wave(1, 60, 6000, 40)
	wave(3, 9, 6000, 300)
	wave(16, 3, 5000, 200)
	l.decoded, l.evaluated, l.padded = 0, 0, 0
	wave(8, 6, 400, 300)
	if l.evaluated > l.decoded*110/100 || l.padded > l.decoded*5/2 {
		t.Errorf("%d decode steps were %d evaluations and had %d padding rows", l.decoded, l.evaluated, l.padded)
	}
	t.Logf("%d decode steps, %d evaluations, %d padding rows", l.decoded, l.evaluated, l.padded)
}

// TestPolicyOneClient wants cached prefixes of earlier requests, which nobody will use, to slow the only client down by less than
// one in 20.
func TestPolicyOneClient(t *testing.T) {
	for _, cfg := range layouts {
		l := closedLoop(t, cfg, 1, 60)
		ideal := l.gpu.time(&batch.Step{Rows: []batch.Row{{Pos: 400}}}, 512)
		if p50 := quantile(l.gaps, .5) - 200*time.Microsecond; p50 > ideal*21/20 {
			t.Errorf("%s: decode step %v, alone %v", cfg.Layout, p50, ideal)
		}
	}
}

// TestPolicyPadsOverSizes has prompts that end in 83 rows: the next size is no faster, but the one behind it is.
func TestPolicyPadsOverSizes(t *testing.T) {
	l := newClients(t, layouts[1])
	rng := rand.New(rand.NewPCG(1, 8))
	l.next = func(c *client) bool {
		c.job = batch.Job{Prompt: random(rng, 256+83), MaxTokens: 2}
		return c.requests < 4
	}
	l.send(&client{})
	l.run()
	ideal := time.Duration((l.gpu.(gpu).fill(256) + l.gpu.(gpu).fill(128)) * float64(time.Millisecond))
	if p50 := quantile(l.ttft, .5); p50 > ideal+2*time.Millisecond {
		t.Errorf("a prompt takes %v, in full tiles %v", p50, ideal)
	}
}

// TestPolicyLearnsTurns: the first decode step behind prompt rows takes longer than the others, and that is known when it is planned.
func TestPolicyLearnsTurns(t *testing.T) {
	l := closedLoop(t, layouts[1], 8, 6)
	l.next = func(c *client) bool {
		c.job = batch.Job{Prompt: random(rand.New(rand.NewPCG(1, uint64(c.n))), 330), MaxTokens: 40}
		return c.requests < 4
	}
	for i := range 8 {
		l.send(&client{n: i})
	}
	prompts, seen := false, 0
	for len(l.live) > 0 {
		st := l.step()
		if took := l.s.Stats().LastStep; prompts && st.Prefills == 0 && st.Decodes == 8 {
			seen++
			if off := took - st.Predicted; off.Abs() > 700*time.Microsecond {
				t.Errorf("step %d behind prompts: predicted %v, took %v", st.Number, st.Predicted, took)
			}
		}
		prompts = st.Prefills > 0
	}
	if seen == 0 {
		t.Error("no such step")
	}
}

// TestPolicySharedPrefix is 16 clients with one system prompt of 4096 tokens, 48 requests: the prefix is computed once.
func TestPolicySharedPrefix(t *testing.T) {
	for _, cfg := range layouts {
		l := newClients(t, cfg)
		rng := rand.New(rand.NewPCG(1, 3))
		system := random(rng, 4096)
		l.next = func(c *client) bool {
			c.watch = true
			c.job = batch.Job{Prompt: append(slices.Clone(system), random(rng, 64)...), MaxTokens: 128}
			return c.requests < 3
		}
		for i := range 16 {
			l.send(&client{n: i})
		}
		l.run()
		l.report()
		if oracle := 47 * 4096; l.cache < oracle*95/100 {
			t.Errorf("%s: cached %d of %d tokens", cfg.Layout, l.cache, oracle)
		}
	}
}

// TestPolicyBurst has four clients with prompts of their own, of whom all share a long prefix for a while: a load that lasts gets the other
// layout at the cost of a pause, a burst does not.
func TestPolicyBurst(t *testing.T) {
	for _, shared := range []int{3, 40} { // requests of each client
		l := newClients(t, layouts[1])
		l.s.AutoLayout(batch.LayoutCosts{Base: 0.008, UnifiedCell: 2e-6, StreamsCell: 1.5e-6, Evaluation: 0.001})
		rng := rand.New(rand.NewPCG(1, 3))
		system := random(rng, 2000)
		l.next = func(c *client) bool {
			c.job = batch.Job{Prompt: random(rng, 330), MaxTokens: 100 + rng.IntN(60)}
			if c.requests >= 8 && c.requests < 8+shared {
				c.job.Prompt = append(slices.Clone(system), c.job.Prompt[:64]...)
			}
			return c.requests < 16+shared
		}
		for i := range 4 {
			l.send(&client{n: i})
		}
		for len(l.live) > 0 && l.wish == nil {
			l.step()
		}
		if paused := len(l.live) > 0; paused != (shared > 10) {
			t.Errorf("%d shared requests of each client: a pause %v, with %d requests left", shared, paused, len(l.live))
		}
	}
}

// TestPolicyInjection is 8 decoding clients and an 8k-token prompt every now and then: the gaps that the decoders see, on a device
// whose steps take 5 % longer than the least, some more and some less.
func TestPolicyInjection(t *testing.T) {
	for _, cfg := range layouts {
		l := newClients(t, cfg)
		rng := rand.New(rand.NewPCG(1, 4))
		l.noise = rng
		l.next = func(c *client) bool {
			if c.n < 8 {
				c.watch = true
				c.job = batch.Job{Prompt: random(rng, 200), MaxTokens: 1500}
			} else {
				c.job = batch.Job{Prompt: random(rng, 8192), MaxTokens: 30}
			}
			return c.requests < 1 || (c.n == 8 && c.requests < 6)
		}
		for i := range 9 {
			l.send(&client{n: i})
		}
		l.run()
		l.report()
		if p99, most := quantile(l.gaps, .99), max(50*time.Millisecond, 3*quantile(l.steps, .5)); p99 > most {
			t.Errorf("%s: p99 ITL %v, at most %v", cfg.Layout, p99, most)
		}
	}
}

// TestPolicyOverload wants four times the pool: nobody fails and everybody completes.
func TestPolicyOverload(t *testing.T) {
	cfg := layouts[0]
	cfg.Cells = 16384
	l := newClients(t, cfg)
	rng := rand.New(rand.NewPCG(1, 5))
	l.next = func(c *client) bool {
		c.watch = true
		c.job = batch.Job{Prompt: random(rng, 1000+rng.IntN(2000)), MaxTokens: 200 + rng.IntN(2000)}
		return c.requests < 2
	}
	for i := range 24 {
		l.send(&client{n: i})
	}
	l.run()
	l.report()
	if l.s.Stats().Mismatches > 0 {
		t.Error("mirror and context differ")
	}
}

// TestPolicyConversations is what a cache is for: 24 agents, each turn appends to what the last one answered.
func TestPolicyConversations(t *testing.T) {
	for _, cfg := range layouts {
		cfg.Cells = 200000
		cfg.Sequences = 40
		l := newClients(t, cfg)
		rng := rand.New(rand.NewPCG(1, 6))
		system := random(rng, 2000)
		oracle := 0
		l.next = func(c *client) bool {
			if c.requests == 0 {
				c.job.Prompt = append(slices.Clone(system), random(rng, 100)...)
			} else {
				prompt := c.job.Prompt
				oracle += len(prompt) + 63
				for i := range int32(64) {
					prompt = append(prompt, engine.Token(c.job.ID)*7+i)
				}
				c.job.Prompt = append(prompt, random(rng, 150)...)
			}
			c.watch = true
			c.job.MaxTokens = 64
			return c.requests < 10
		}
		for i := range 24 {
			l.send(&client{n: i})
		}
		l.run()
		l.report()
		if l.cache < oracle*90/100 {
			t.Errorf("%s: cached %d of %d tokens", cfg.Layout, l.cache, oracle)
		}
	}
}

// TestPolicyReuseIsLearnedAgain is a machine that has learned from one-off prompts to keep nothing, and then serves clients who
// each change between three long conversations.
func TestPolicyReuseIsLearnedAgain(t *testing.T) {
	cfg := layouts[0]
	l := closedLoop(t, cfg, 4, 30)
	l.cache, l.asked = 0, 0
	rng := rand.New(rand.NewPCG(1, 7))
	type talk struct{ prompt []engine.Token }
	talks := map[int]*[3]talk{}
	l.next = func(c *client) bool {
		if talks[c.n] == nil {
			talks[c.n] = new([3]talk)
			for i := range talks[c.n] {
				talks[c.n][i].prompt = random(rng, 1500)
			}
		}
		tk := &talks[c.n][c.requests%3]
		if c.requests >= 3 {
			tk.prompt = append(tk.prompt, random(rng, 60)...)
		}
		c.job = batch.Job{Prompt: slices.Clone(tk.prompt), MaxTokens: 100}
		return c.requests < 60
	}
	for i := range 4 {
		l.send(&client{n: i})
	}
	l.run()
	l.report()
	if l.cache*2 < l.asked {
		t.Errorf("cached %d of %d tokens", l.cache, l.asked)
	}
}
