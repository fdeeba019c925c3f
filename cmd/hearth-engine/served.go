package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"hearth/engine"
	"hearth/engine/enginepb"
	"hearth/engine/worker"
)

// served measures the same loads as the raw loops through the worker: scheduler, sampler, text and one frame a step over
// a unix socket. It uses the very context of the raw loops, which must be idle meanwhile.
type served struct {
	client enginepb.WorkerClient
	stream enginepb.Worker_ServeClient
	next   uint64
	close  func()
	// ready is how long self-test and warm-up took, features what the self-test found.
	ready    time.Duration
	features []engine.Feature
}

// reopened hands the worker a model that is loaded already, and keeps it open when the worker ends.
type reopened struct{ worker.Model }

func (r reopened) Open(context.Context, engine.LoadSpec, func(string, float64)) (worker.Model, error) {
	return r, nil
}

func (reopened) Close() {}

// startServed puts a worker around m, in this process.
func startServed(ctx context.Context, m worker.Model, log *slog.Logger) (*served, error) {
	dir, err := os.MkdirTemp("", "hearth-bench-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	svc := worker.NewService(reopened{m}, io.Discard, log)
	g := worker.Register(svc)
	go func() { _ = g.Serve(l) }() // ends with Stop
	s := &served{close: func() {
		svc.Close()
		g.Stop()
		_ = os.RemoveAll(dir)
	}}
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "s"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.close()
		return nil, err
	}
	stop := s.close
	s.close = func() { _ = conn.Close(); stop() }
	c := enginepb.NewWorkerClient(conn)
	s.client = c
	began := time.Now()
	load, err := c.Load(ctx, &enginepb.LoadSpec{Name: "bench", Path: "open"})
	for err == nil {
		var ev *enginepb.LoadEvent
		if ev, err = load.Recv(); err == nil && ev.GetInfo() != nil {
			s.ready, s.features = time.Since(began), enginepb.ToInfo(ev.GetInfo()).Features
			s.stream, err = c.Serve(ctx)
			break
		}
	}
	if err != nil {
		s.close()
		return nil, enginepb.FromStatusError(err)
	}
	return s, nil
}

// settle waits until the worker rests: behind its last answer it still frees what that held, in the context that the raw loop uses next.
func (s *served) settle(ctx context.Context) error {
	for last := uint64(0); ; {
		h, err := s.client.Health(ctx, &enginepb.HealthRequest{})
		if err != nil {
			return enginepb.FromStatusError(err)
		}
		n := h.GetStats().GetSteps()
		if h.GetStats().GetRunning() == 0 && h.GetStepAgeNs() == 0 && n == last {
			return nil
		}
		last = n
		select {
		case <-time.After(settlePoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// settlePoll is for how long the worker must have planned nothing; planning what is left takes microseconds.
const settlePoll = 20 * time.Millisecond

// decode measures n clients whose prompts have length tokens each. What counts is the time between the first and the
// last of b.steps frames in which every client got a token; then all are cancelled.
func (s *served) decode(b *bencher, n, length int) (benchRun, error) {
	out := benchRun{Kind: "served", Batch: n, Context: length}
	for i := range n {
		s.next++
		prompt := make([]engine.Token, length)
		for k := range prompt {
			prompt[k] = b.token(k + i)
		}
		seed := uint64(i)
		req := engine.Request{
			ID: fmt.Sprint(s.next), Prompt: engine.Prompt{Segments: []engine.Segment{{Tokens: prompt}}}, MaxTokens: -1,
			IgnoreEOS: true, Sampling: engine.Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, Seed: &seed},
		}
		frame := &enginepb.ClientFrame{Id: s.next, Body: &enginepb.ClientFrame_Submit{Submit: enginepb.FromRequest(&req)}}
		if err := s.stream.Send(frame); err != nil {
			return out, err
		}
	}
	var first, last time.Time
	var gaps []time.Duration
	for left := n; left > 0; {
		f, err := s.stream.Recv()
		if err != nil {
			return out, enginepb.FromStatusError(err)
		}
		if len(f.Failures) > 0 {
			return out, enginepb.ToError(f.Failures[0].GetError())
		}
		tokens := 0
		for _, ev := range f.Events {
			tokens += len(ev.GetTokens())
			if ev.GetUsage() != nil {
				left--
			}
		}
		if tokens < n || out.Steps == b.steps { // somebody still prefills, or it is over
			continue
		}
		now := time.Now()
		if first.IsZero() {
			first = now
		} else {
			gaps = append(gaps, now.Sub(last))
			out.Tokens += tokens
			out.Steps++
		}
		if out.Steps == b.steps {
			for i := range uint64(n) {
				id := s.next - i
				if err := s.stream.Send(&enginepb.ClientFrame{Id: id, Body: &enginepb.ClientFrame_Cancel{Cancel: true}}); err != nil {
					return out, err
				}
			}
		}
		last = now
	}
	if len(gaps) == 0 {
		return out, fmt.Errorf("%d clients were never served together", n)
	}
	out.finish(gaps)
	return out, nil
}

// prefill measures one prompt of n tokens: from its submission to its first token, which includes one more step than
// the raw loop has nothing of (the queue, the plan, the sampler, the wire).
func (s *served) prefill(b *bencher, n int) (benchRun, error) {
	out := benchRun{Kind: "served_prefill", Batch: 1, Tokens: n}
	s.next++
	prompt := make([]engine.Token, n)
	for k := range prompt {
		prompt[k] = b.token(k)
	}
	req := engine.Request{ID: fmt.Sprint(s.next), Prompt: engine.Prompt{Segments: []engine.Segment{{Tokens: prompt}}}, MaxTokens: 1, IgnoreEOS: true}
	began := time.Now()
	err := s.stream.Send(&enginepb.ClientFrame{Id: s.next, Body: &enginepb.ClientFrame_Submit{Submit: enginepb.FromRequest(&req)}})
	if err != nil {
		return out, err
	}
	before := uint64(0)
	for {
		f, err := s.stream.Recv()
		if err != nil {
			return out, enginepb.FromStatusError(err)
		}
		if len(f.Failures) > 0 {
			return out, enginepb.ToError(f.Failures[0].GetError())
		}
		if before == 0 {
			before = f.Stats.GetSteps()
		}
		for _, ev := range f.Events {
			if ev.GetUsage() != nil {
				out.Steps = int(f.Stats.GetSteps()-before) + 1
				out.finish([]time.Duration{time.Since(began)})
				out.StepMS /= float64(out.Steps)
				return out, nil
			}
		}
	}
}
