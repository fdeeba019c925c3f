package batch_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// slowCPU is the step times of SmolLM2 135M Q4_1 on two cores without AVX-512, where a row takes as long in a prompt as in an answer; with blas,
// steps of 32 rows or more have faster products.
type slowCPU struct {
	rng  *rand.Rand
	blas bool
}

func (c slowCPU) time(st *batch.Step, span int) time.Duration {
	d, p := float64(st.Decodes), float64(st.Prefills)
	row := 4.6
	if c.blas && d+p >= 32 {
		row = 2.2 + 40/(d+p)
	}
	ms := 3 + 6*d + p*row + (d+p)*1.1e-4*float64(span)
	return time.Duration(ms * (0.97 + 0.06*c.rng.Float64()) * float64(time.Millisecond))
}

func newSlowCPU(t *testing.T, blas bool) *clients {
	cfg := cpuConfig(0)
	cfg.MinPrefill = 1
	return newClientsOf(t, cfg, slowCPU{rand.New(rand.NewPCG(3, 6)), blas})
}

// TestPolicyTogether is clients on a CPU whose prompts and answers are equally long. (Before prompts waited for each other, with BLAS 4 and 8 of them
// got 30 and 28 tok/s, and their first tokens after 4.5 and 11.9 s.)
func TestPolicyTogether(t *testing.T) {
	for _, c := range []struct {
		clients int
		blas    bool
		least   float64       // tok/s
		ttft    time.Duration // median, at most
	}{
		{4, false, 28, 5 * time.Second},
		{8, false, 27, 12500 * time.Millisecond},
		{4, true, 45, 3 * time.Second},
		{8, true, 44, 6 * time.Second},
	} {
		rng := rand.New(rand.NewPCG(1, 23))
		l := newSlowCPU(t, c.blas)
		l.next = func(cl *client) bool {
			cl.watch = true
			cl.job = batch.Job{Prompt: random(rng, 250), MaxTokens: 48}
			return cl.requests < 6
		}
		for i := range c.clients {
			l.send(&client{n: i})
		}
		l.run()
		l.report()
		if got, ttft := float64(l.out)/l.now.Seconds(), quantile(l.ttft, .5); got < c.least || ttft > c.ttft {
			t.Errorf("%d clients, blas %v: %.0f tok/s and %v, want %.0f and %v", c.clients, c.blas, got, ttft, c.least, c.ttft)
		}
	}
}

// taught is a CPU with BLAS whose costs are known, and which has seen answers of 30 tokens.
func taught(t *testing.T) *clients {
	l := newSlowCPU(t, true)
	rng := rand.New(rand.NewPCG(1, 24))
	l.next = func(c *client) bool {
		c.job = batch.Job{Prompt: random(rng, 100+rng.IntN(300)), MaxTokens: 30}
		return c.requests < 20
	}
	for i := range 3 {
		l.send(&client{n: i})
	}
	l.run()
	l.next = func(c *client) bool { return c.requests == 0 }
	l.ttft = nil
	return l
}

// work is the next step that is not a wait.
func (l *clients) work() *batch.Step {
	st := l.step()
	for st.Idle() {
		st = l.step()
	}
	return st
}

// answer has n clients with short prompts ask for so many tokens, until all of them decode.
func (l *clients) answer(rng *rand.Rand, n, tokens int) {
	for i := range n {
		l.send(&client{n: i, job: batch.Job{Prompt: random(rng, 100), MaxTokens: tokens}})
	}
	for len(l.ttft) < n {
		l.step()
	}
}

// A prompt that is cached does not wait for a long one that came with it, although that ends within the three idle targets.
func TestCachedPromptIsNotHeldForLong(t *testing.T) {
	l := taught(t)
	rng := rand.New(rand.NewPCG(1, 25))
	cached := random(rng, 400)
	l.send(&client{job: batch.Job{Prompt: cached, MaxTokens: 2}})
	l.run()
	sent := l.now
	l.send(&client{n: 1, job: batch.Job{Prompt: random(rng, 2000), MaxTokens: 40}})
	l.send(&client{n: 2, job: batch.Job{Prompt: cached, MaxTokens: 40}})
	for len(l.ttft) < 2 {
		l.step()
	}
	if took := l.now - sent; took > 2*time.Second { // one step that was begun for the long one
		t.Errorf("first token after %v", took)
	}
}

// Answers that are much longer than others were do not keep a prompt waiting for more than twice what it takes beside them.
func TestPromptDoesNotWaitForLong(t *testing.T) {
	l := taught(t)
	rng := rand.New(rand.NewPCG(1, 26))
	l.answer(rng, 3, 3000)
	sent := l.now
	l.send(&client{n: 3, job: batch.Job{Prompt: random(rng, 600), MaxTokens: 10}})
	for len(l.ttft) < 4 {
		l.step()
	}
	if took := l.now - sent; took > 7*time.Second { // 3.5 beside three answers
		t.Errorf("first token after %v", took)
	}
}

// Who has a higher class than those who decode does not wait for them.
func TestHigherClassDoesNotWait(t *testing.T) {
	for _, c := range []struct {
		class engine.Priority
		waits bool
	}{{0, true}, {1, false}} {
		l := taught(t)
		rng := rand.New(rand.NewPCG(1, 27))
		l.answer(rng, 4, 25)
		l.send(&client{n: 5, job: batch.Job{Prompt: random(rng, 600), MaxTokens: 10, Priority: c.class}})
		if st := l.step(); st.Decodes == 0 || (st.Prefills == 0) != c.waits {
			t.Errorf("class %d: a step of %d decode and %d prompt rows", c.class, st.Decodes, st.Prefills)
		}
	}
}

// Cached prompts of a lower class do not begin to decode before a prompt of a higher one is computed.
func TestHigherClassBeforeCached(t *testing.T) {
	l := taught(t)
	rng := rand.New(rand.NewPCG(1, 31))
	cached := [2][]engine.Token{random(rng, 300), random(rng, 300)}
	for i, p := range cached {
		l.send(&client{n: i, job: batch.Job{Prompt: p, MaxTokens: 2}})
		l.run()
	}
	for i, p := range cached {
		l.send(&client{n: i, job: batch.Job{Prompt: p, MaxTokens: 200}})
	}
	urgent := &client{n: 2, job: batch.Job{Prompt: random(rng, 900), MaxTokens: 20, Priority: 1}}
	l.send(urgent)
	for urgent.last == 0 {
		l.step()
	}
	if took := urgent.last - urgent.sent; took > 3*time.Second { // 2.4 in large steps, 7.2 beside the two answers
		t.Errorf("first token after %v", took)
	}
}

// When the prompt goes away for which others are kept, they go on in the next step.
func TestReadyPromptsGoOnWithoutTheLast(t *testing.T) {
	l := taught(t)
	rng := rand.New(rand.NewPCG(1, 28))
	for i, n := range []int{400, 410, 500} {
		l.send(&client{n: i, job: batch.Job{Prompt: random(rng, n), MaxTokens: 40}})
	}
	last := l.seq
	l.work()
	st := l.step()
	if len(st.Samples) > 0 || st.Prefills == 0 {
		t.Fatalf("the second step has %d prompt rows and %d samples: nothing was kept", st.Prefills, len(st.Samples))
	}
	l.s.Cancel(l.now, last)
	if st = l.s.Plan(l.now); len(st.Samples) != 2 {
		t.Errorf("%d first tokens behind the cancel, want 2", len(st.Samples))
	}
}

// Prompts that want a single token are not kept from it: nobody decodes who could be in the way of the others.
func TestSingleTokensAreNotKept(t *testing.T) {
	l := taught(t)
	rng := rand.New(rand.NewPCG(1, 30))
	for i := range 8 {
		l.send(&client{n: i, job: batch.Job{Prompt: random(rng, 400), MaxTokens: 1}})
	}
	if st := l.work(); len(st.Samples) == 0 {
		t.Errorf("no first token in a step of %d prompt rows", st.Prefills)
	}
}

// Who continues a prompt that is kept from its last row is computed with the others meanwhile.
func TestFollowerOfKeptPrompt(t *testing.T) {
	l := taught(t)
	rng := rand.New(rand.NewPCG(1, 25))
	kept := random(rng, 400)
	l.send(&client{n: 0, job: batch.Job{Prompt: kept, MaxTokens: 40}})
	l.send(&client{n: 1, job: batch.Job{Prompt: random(rng, 900), MaxTokens: 40}})
	l.send(&client{n: 2, job: batch.Job{Prompt: append(kept[:400:400], random(rng, 200)...), MaxTokens: 40}})
	for {
		if st := l.step(); len(st.Samples) > 0 {
			if len(st.Samples) != 3 {
				t.Errorf("%d first tokens together, want 3", len(st.Samples))
			}
			return
		}
	}
}

// A short prompt does not wait for answers for which a long one waits, nor does a choice go on later whose client has tokens.
func TestQuickPromptDoesNotWait(t *testing.T) {
	for _, resume := range []bool{false, true} {
		l := taught(t)
		rng := rand.New(rand.NewPCG(1, 30))
		l.answer(rng, 4, 25)
		for range 3 { // what four answers take is known then
			l.step()
		}
		l.send(&client{n: 5, job: batch.Job{Prompt: random(rng, 600), MaxTokens: 10}})
		if resume {
			l.send(&client{n: 6, job: batch.Job{Prompt: random(rng, 300), MaxTokens: 10, Resume: [][]engine.Token{{1, 2}}}})
		} else {
			l.send(&client{n: 6, job: batch.Job{Prompt: random(rng, 3), MaxTokens: 10}})
		}
		st := l.step()
		if resume && st.Prefills == 0 || !resume && st.Prefills != 3 {
			t.Errorf("resumed %v: %d prompt rows in a step of %d decode rows", resume, st.Prefills, st.Decodes)
		}
	}
}

// A prompt waits some milliseconds for others that come just behind it, and then not for those that come later.
func TestPromptWaitsForCompany(t *testing.T) {
	l := taught(t)
	rng := rand.New(rand.NewPCG(1, 31))
	l.now += time.Second
	sent := l.now
	l.send(&client{n: 1, job: batch.Job{Prompt: random(rng, 250), MaxTokens: 40}})
	if st := l.step(); !st.Idle() || st.Wait != 10*time.Millisecond {
		t.Fatalf("%d rows, wait %v", len(st.Rows), st.Wait)
	}
	l.now -= 5 * time.Millisecond // another one comes meanwhile
	l.send(&client{n: 2, job: batch.Job{Prompt: random(rng, 260), MaxTokens: 40}})
	st := l.step()
	for ; st.Idle() && l.now-sent < time.Second; st = l.step() { // one more behind each wait
		l.send(&client{n: 3, job: batch.Job{Prompt: random(rng, 300), MaxTokens: 40}})
	}
	if len(l.live) < 4 || len(l.live) > 6 || st.Prefills == 0 {
		t.Errorf("%d prompts began, %d rows", len(l.live), st.Prefills)
	}
	l.run()
	short := l.now
	l.send(&client{n: 9, job: batch.Job{Prompt: random(rng, 20), MaxTokens: 2}})
	if st := l.step(); st.Prefills < 16 {
		t.Errorf("%d prompt rows, wait %v: a short prompt waited: %v", st.Prefills, st.Wait, l.now-short)
	}
}
