package batch_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// Loops of cause and effect that once held a price, or a load, for ever.

// returning has conversations of n tokens that were moved out come back in one step, beside a decoder, and returns how many of their
// tokens were cached and the last one's time to first token.
func returning(t *testing.T, conversations, n int) (cached int, last time.Duration) {
	rng := rand.New(rand.NewPCG(1, 22))
	l := newClientsOf(t, cpuConfig(1000000), cpu{})
	talks := make([][]engine.Token, conversations)
	for i := range talks {
		talks[i] = random(rng, n)
	}
	first := func(c *client) bool {
		c.watch = true
		switch i := c.requests; {
		case i < conversations: // computed
			c.job = batch.Job{Prompt: talks[i], MaxTokens: 2}
		case i < conversations+4: // pushes them out
			c.job = batch.Job{Prompt: random(rng, 3800), MaxTokens: 2}
		case i == conversations+4: // the decoder
			c.job = batch.Job{Prompt: random(rng, 30), MaxTokens: 300}
		default:
			return false
		}
		return true
	}
	l.next = first
	c, back, before := &client{}, false, 0
	l.send(c)
	for len(l.live) > 0 {
		l.step()
		if back || c.requests <= conversations+4 || c.last == 0 {
			continue
		}
		back, before = true, l.cache
		for i := range talks {
			l.next = func(c *client) bool {
				c.job = batch.Job{Prompt: append(slices.Clone(talks[i]), random(rng, 20)...), MaxTokens: 2}
				return c.requests == 0
			}
			l.send(&client{})
		}
		l.next = func(o *client) bool { return o == c && first(o) }
	}
	return l.cache - before, slices.Max(l.ttft[len(l.ttft)-conversations:])
}

// What does not fit into a step beside other moves waits for the next one, and is not computed again.
func TestConversationsReturnTogether(t *testing.T) {
	for _, k := range []int{1, 3, 6} {
		if cached, last := returning(t, k, 1000); cached != k*1000 || last > time.Second {
			t.Errorf("%d conversations: %d of %d tokens were cached, the last first token came after %v", k, cached, k*1000, last)
		}
	}
	if cached, last := returning(t, 1, 4000); cached != 4000 || last > 500*time.Millisecond {
		t.Errorf("a load of 40 ms instead of 10 s: %d tokens were cached, first token after %v", cached, last)
	}
}

// Moves that were slow for a while, as on a machine that was short of memory, are tried again.
func TestSlowMovesAreForgotten(t *testing.T) {
	for _, slow := range []int{6, 24} {
		rng := rand.New(rand.NewPCG(1, 21))
		l := newClientsOf(t, cpuConfig(100000), cpu{rand.New(rand.NewPCG(3, 4))})
		usual, saves := l.cfg.Host.Save, uint64(0)
		l.next = func(c *client) bool {
			l.cfg.Host.Save = usual
			if c.requests >= 20 && c.requests < 20+slow {
				l.cfg.Host.Save = 60 * usual
			}
			if c.requests == 160 {
				saves = l.s.Stats().HostSaves
			}
			c.job = batch.Job{Prompt: random(rng, 570), MaxTokens: 128}
			return c.requests < 260
		}
		l.send(&client{})
		l.run()
		if n := l.s.Stats().HostSaves - saves; n < 90 {
			t.Errorf("slow for %d requests: %d saves in the last 100 requests", slow, n)
		}
	}
}

// flat is a machine whose steps take as long for a row behind a long context as for any other.
type flat struct{}

func (flat) time(st *batch.Step, _ int) time.Duration {
	return time.Duration(8*st.Decodes+2*st.Prefills) * time.Millisecond
}

// A prefix that goes for a decode row's cell is moved within the limit of that step, not of the prompt's before it.
func TestRoomForDecodesIsMadeInTime(t *testing.T) {
	l := newClientsOf(t, cpuConfig(100000), flat{})
	rng := rand.New(rand.NewPCG(1, 2))
	l.next = func(c *client) bool {
		c.job = batch.Job{Prompt: random(rng, 7000), MaxTokens: 1}
		if c.requests == 1 { // fills the pool
			c.job = batch.Job{Prompt: random(rng, 1192), MaxTokens: 40}
		}
		return c.requests < 2
	}
	l.send(&client{})
	l.run()
	if l.stall > 25*time.Millisecond {
		t.Errorf("moves took %v in a step with decode rows", l.stall)
	}
}

// layoutMachine is one whose unified cells cost 1.2 us and whose tokens in streams cost 0.8 us.
type layoutMachine struct{ streams *bool }

func (m layoutMachine) time(st *batch.Step, span int) time.Duration {
	d, tokens := 5*time.Millisecond+time.Duration(st.Prefills)*50*time.Microsecond, 0
	for i, r := range st.Rows {
		if r.Kind == batch.RowDecode || i == len(st.Rows)-1 || st.Rows[i+1].Seq != r.Seq {
			tokens += int(r.Pos) + 1
		}
	}
	if *m.streams {
		return d + time.Duration(tokens)*800*time.Nanosecond
	}
	return d + time.Duration(span)*1200*time.Nanosecond
}

// A price that was measured too low at load is corrected in service, and outlives the layout that it was seen in: the layouts do not
// alternate.
func TestLayoutsDoNotAlternate(t *testing.T) {
	for _, atLoad := range []float64{1.2e-6, 0.4e-6} {
		streams := false
		unified := batch.Config{Cells: 65536, Context: 8192, Sequences: 8, Parking: 8, Chunk: 512, Outputs: 16}
		other := batch.Config{Layout: batch.LayoutStreams, Context: 8192, Sequences: 8, Chunk: 512, Outputs: 16, CopyTime: time.Millisecond}
		l := newClientsOf(t, unified, layoutMachine{&streams})
		l.s.AutoLayout(batch.LayoutCosts{Base: 0.005, UnifiedCell: atLoad, StreamsCell: 0.8e-6, Evaluation: 1e-3})
		rng := rand.New(rand.NewPCG(5, 6))
		talks := map[int][]engine.Token{}
		l.next = func(c *client) bool {
			talk := talks[c.n]
			if len(talk) == 0 || len(talk) > 3000 {
				talk = random(rng, 1000)
			}
			talk = append(slices.Clone(talk), random(rng, 50)...)
			talks[c.n] = talk
			c.job = batch.Job{Prompt: talk, MaxTokens: 150 + 7*c.n}
			return c.requests < 60
		}
		for i := range 8 {
			l.send(&client{n: i})
		}
		changes := 0
		for len(l.live) > 0 {
			if l.step(); l.wish == nil {
				continue
			}
			changes++
			if streams = *l.wish == batch.LayoutStreams; streams {
				l.cfg = other
			} else {
				l.cfg = unified
			}
			l.wish = nil
			if err := l.s.Relayout(l.cfg); err != nil {
				t.Fatal(err)
			}
		}
		if changes != 1 {
			t.Errorf("with %g s a unified cell at load there were %d changes, %d preemptions", atLoad, changes, l.s.Stats().Preemptions)
		}
	}
}

// slowed is a machine that does something else, too, for a while.
type slowed struct {
	machine
	factor *float64
}

func (m slowed) time(st *batch.Step, span int) time.Duration {
	return time.Duration(*m.factor * float64(m.machine.time(st, span)))
}

// spell is how many tokens a second n clients in streams get at last, for long prompts, when the machine was slower for some requests before.
func spell(t *testing.T, n int, factor float64) float64 {
	rng, now := rand.New(rand.NewPCG(1, 2)), 1.0
	l := newClients(t, layouts[1])
	l.gpu = slowed{busy{gpu{streams: true}, rng}, &now}
	left := n * 40
	l.next = func(c *client) bool {
		left--
		c.job = batch.Job{Prompt: random(rng, 3000), MaxTokens: 128}
		return left >= 0
	}
	for range n {
		l.send(&client{})
	}
	began, out := time.Duration(0), 0
	for len(l.live) > 0 {
		if now = 1; left > n*34 && left < n*36 {
			now = factor
		}
		if left < n*16 && began == 0 {
			began, out = l.now, l.out
		}
		l.step()
	}
	return float64(l.out-out) / (l.now - began).Seconds()
}

// Chunks that were slow for some seconds, while the machine had other work, are made again.
func TestSlowSpellIsForgotten(t *testing.T) {
	for n, factor := range map[int]float64{4: 3, 8: 2} {
		if with, without := spell(t, n, factor), spell(t, n, 1); with < 0.9*without {
			t.Errorf("%d clients: %.0f tok/s, without the spell %.0f", n, with, without)
		}
	}
}

// A choice whose sampler fails has produced nothing in that step.
func TestFailedSampleIsNoToken(t *testing.T) {
	s, err := batch.New(batch.Config{Cells: 256, Context: 256, Sequences: 2, Chunk: 64})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Submit(0, batch.Job{ID: 1, Prompt: []engine.Token{1, 2, 3}, MaxTokens: 9, Choices: 2}); err != nil {
		t.Fatal(err)
	}
	var done *batch.Usage
	answers := []batch.Sampled{{Token: 7}, {Finish: engine.FinishError}, {Token: 8, Finish: engine.FinishStop}}
	for n := 0; n < 4 && done == nil; n++ {
		st := s.Plan(0)
		sampled := answers[:len(st.Samples)]
		answers = answers[len(st.Samples):]
		for _, ev := range s.Commit(0, batch.Result{Sampled: sampled}) {
			if ev.Kind == batch.EventDone {
				done = &ev.Usage
			}
		}
	}
	if done == nil || done.Completion != 2 {
		t.Errorf("usage %+v, want 2 tokens", done)
	}
	if st := s.Stats(); st.CompletionTokens != 2 || st.Running != 0 {
		t.Errorf("stats %+v", st)
	}
}
