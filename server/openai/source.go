package openai

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"

	"hearth/engine"
)

// source is where the events of one HTTP request come from: one engine stream, or several whose choices are numbered
// through. It belongs to one goroutine.
type source interface {
	next(ctx context.Context) (engine.Event, error)
	close()
}

func subID(id string, i int) string { return id + "-" + strconv.Itoa(i) }

// newSource queues all requests. When one is refused the others are cancelled.
func newSource(ctx context.Context, model engine.Model, requests []engine.Request) (source, error) {
	if len(requests) == 1 {
		s, err := model.Generate(ctx, requests[0])
		if err != nil {
			return nil, err
		}
		return single{s}, nil
	}
	return newMerged(ctx, model, requests)
}

type single struct{ stream engine.Stream }

func (s single) next(ctx context.Context) (engine.Event, error) { return s.stream.Next(ctx) }
func (s single) close()                                         { s.stream.Close() }

// merged interleaves the events of several streams as they come. Each stream has a goroutine that owns it; close ends
// them all and waits.
type merged struct {
	events  chan mergedEvent
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	live    int
	usage   engine.Usage
	counted bool // the last event, with the sum of all usages, has been delivered
}

type mergedEvent struct {
	event engine.Event
	err   error // io.EOF: this stream is done
}

func newMerged(ctx context.Context, model engine.Model, requests []engine.Request) (*merged, error) {
	ctx, cancel := context.WithCancel(ctx)
	m := &merged{events: make(chan mergedEvent, len(requests)), cancel: cancel, live: len(requests)}
	streams := make([]engine.Stream, 0, len(requests))
	for _, r := range requests {
		s, err := model.Generate(ctx, r)
		if err != nil {
			for _, s := range streams {
				s.Close()
			}
			cancel()
			return nil, err
		}
		streams = append(streams, s)
	}
	for i, s := range streams {
		offset := i * requests[i].Choices()
		m.wg.Go(func() { m.pump(ctx, s, offset) })
	}
	return m, nil
}

func (m *merged) pump(ctx context.Context, s engine.Stream, offset int) {
	defer s.Close()
	for {
		ev, err := s.Next(ctx)
		ev.Choice += offset
		select {
		case m.events <- mergedEvent{ev, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (m *merged) next(ctx context.Context) (engine.Event, error) {
	for m.live > 0 {
		var got mergedEvent
		select {
		case got = <-m.events:
		case <-ctx.Done():
			return engine.Event{}, ctx.Err()
		}
		switch {
		case errors.Is(got.err, io.EOF):
			m.live--
			continue
		case got.err != nil:
			return engine.Event{}, got.err
		}
		if u := got.event.Usage; u != nil {
			m.add(u)
			got.event.Usage = nil
		}
		return got.event, nil
	}
	if !m.counted {
		m.counted = true
		return engine.Event{Usage: &m.usage}, nil
	}
	return engine.Event{}, io.EOF
}

// add sums tokens and keeps the longest times, since the streams run side by side.
func (m *merged) add(u *engine.Usage) {
	m.usage.PromptTokens += u.PromptTokens
	m.usage.CachedTokens += u.CachedTokens
	m.usage.CompletionTokens += u.CompletionTokens
	m.usage.Preemptions += u.Preemptions
	m.usage.Queue = max(m.usage.Queue, u.Queue)
	m.usage.Prefill = max(m.usage.Prefill, u.Prefill)
	m.usage.Decode = max(m.usage.Decode, u.Decode)
	m.usage.Seed = u.Seed
}

func (m *merged) close() {
	m.cancel()
	m.wg.Wait()
}
