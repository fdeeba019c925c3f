package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Run sends the workload and returns its report. It ends early, with the samples so far, when ctx ends.
func Run(ctx context.Context, c *Client, spec Spec) (Report, error) {
	if err := spec.Validate(); err != nil {
		return Report{}, err
	}
	start := time.Now()
	var samples []Sample
	switch {
	case spec.Workload == Mixed:
		samples = runMixed(ctx, c, &spec)
	case spec.Workload == Branching:
		samples = runGroups(ctx, c, &spec)
	case spec.Workload == Turns:
		samples = runTurns(ctx, c, &spec)
	case spec.Rate > 0:
		samples = runOpen(ctx, c, &spec)
	default:
		samples = runClosed(ctx, c, &spec)
	}
	return summarise(spec, samples, time.Since(start)), ctx.Err()
}

// collector gathers samples from many goroutines.
type collector struct {
	mu      sync.Mutex
	samples []Sample
}

func (k *collector) add(s Sample) {
	k.mu.Lock()
	k.samples = append(k.samples, s)
	k.mu.Unlock()
}

// runClosed keeps spec.Clients requests in flight until spec.Requests were sent.
func runClosed(ctx context.Context, c *Client, spec *Spec) []Sample {
	var k collector
	var next atomic.Int64
	var wg sync.WaitGroup
	for client := range min(spec.Clients, spec.Requests) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= spec.Requests {
					return
				}
				it := spec.item(i)
				it.APIKey = spec.key(client)
				k.add(c.Do(ctx, it))
			}
		})
	}
	wg.Wait()
	return k.samples
}

// runOpen starts requests at Poisson times, however many are still in flight.
func runOpen(ctx context.Context, c *Client, spec *Spec) []Sample {
	var k collector
	var wg sync.WaitGroup
	r := rand.New(rand.NewPCG(spec.Seed, 0x6f70656e))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range spec.Requests {
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		if ctx.Err() != nil {
			break
		}
		it := spec.item(i)
		it.APIKey = spec.key(i % spec.Clients)
		wg.Go(func() { k.add(c.Do(ctx, it)) })
		timer.Reset(time.Duration(r.ExpFloat64() / spec.Rate * float64(time.Second)))
	}
	wg.Wait()
	return k.samples
}

// runGroups sends Branching's groups: all branches of a trunk at the same time, Clients/Branches groups side by side.
func runGroups(ctx context.Context, c *Client, spec *Spec) []Sample {
	var k collector
	var next atomic.Int64
	var wg sync.WaitGroup
	groups := (spec.Requests + spec.Branches - 1) / spec.Branches
	for range max(1, spec.Clients/spec.Branches) {
		wg.Go(func() {
			for ctx.Err() == nil {
				g := int(next.Add(1)) - 1
				if g >= groups {
					return
				}
				var group sync.WaitGroup
				for b := range spec.Branches {
					group.Go(func() { k.add(c.Do(ctx, spec.item(g*spec.Branches+b))) })
				}
				group.Wait()
			}
		})
	}
	wg.Wait()
	return k.samples
}

// runTurns lets each client hold conversations, some of them in turns: every answer is sent back with the next question.
func runTurns(ctx context.Context, c *Client, spec *Spec) []Sample {
	var k collector
	var wg sync.WaitGroup
	keep := *c
	keep.KeepContent = true
	turns := max(1, spec.Turns)
	for client := range spec.Clients {
		wg.Go(func() {
			var open []*conversation
			next := client * turns // every client has its share of the conversations
			begin := func() *conversation {
				first := next
				if next += spec.Clients * turns; first >= spec.Requests {
					return nil
				}
				return &conversation{next: first, end: first + turns}
			}
			for range max(1, spec.Conversations) {
				open = append(open, begin())
			}
			for left := true; left; {
				left = false
				for i, talk := range open {
					if talk == nil || ctx.Err() != nil {
						continue
					}
					s := talk.turn(ctx, &keep, spec)
					k.add(s)
					left = true
					if s.Err != "" || talk.next == talk.end {
						open[i] = begin()
					}
				}
			}
		})
	}
	wg.Wait()
	return k.samples
}

// conversation is what was said, and which of the workload's items are the questions to come.
type conversation struct {
	next, end int
	history   []Message
}

// turn asks the next question.
func (t *conversation) turn(ctx context.Context, c *Client, spec *Spec) Sample {
	it := spec.item(t.next)
	t.next++
	t.history = append(t.history, it.Messages...)
	it.Messages = t.history
	s := c.Do(ctx, it)
	t.history = append(t.history[:len(t.history):len(t.history)], Message{Role: "assistant", Content: s.Content})
	s.Content = ""
	return s
}

// runMixed measures what long prompts do to running answers. Clients decoders run without pause; after each of them has
// finished one answer undisturbed, the long prompts are sent one by one, each a second behind the end of the last.
func runMixed(ctx context.Context, c *Client, spec *Spec) []Sample {
	var k collector
	var wg sync.WaitGroup
	stop := make(chan struct{})
	quiet := make(chan struct{}, spec.Clients)
	var next atomic.Int64
	for range spec.Clients {
		wg.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				it := spec.item(int(next.Add(1)) - 1)
				it.Class = "decoder"
				s := c.Do(ctx, it)
				k.add(s)
				if first {
					quiet <- struct{}{}
				}
				select {
				case <-stop:
					return
				default:
				}
				if s.Err != "" {
					return
				}
			}
		})
	}
	for range spec.Clients {
		<-quiet
	}
	for i := range spec.Injections {
		k.add(c.Do(ctx, spec.injection(i)))
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	close(stop)
	wg.Wait()
	return k.samples
}
