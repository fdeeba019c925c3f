package supervisor

import (
	"context"
	"io"
	"sync"

	"hearth/engine"
)

// Bounds of a request's buffer of unread events. Events beyond looseEvents are merged into their predecessor of the
// same choice, so a slow reader costs memory for its text, not for its events; beyond maxUnread bytes it is cut off.
const (
	looseEvents = 16
	maxUnread   = 4 << 20
)

// request is one running request: the journal that a replay needs, and the buffer between the worker's frames and the
// reader. It implements engine.Stream.
type request struct {
	id   uint64
	req  engine.Request // never changes; its seed is set
	hash func() digest
	m    *model

	mu       sync.Mutex
	sent     [][]engine.Token // journal: tokens received per choice
	finished []bool           // per choice
	admitted bool             // the worker that has it now works on it
	crashes  int              // of workers that worked on it
	unread   []engine.Event
	head     int // first unread event
	bytes    int // estimated size of unread
	ended    bool
	spent    bool          // Spent was called
	err      error         // after the unread events; nil: io.EOF
	wake     chan struct{} // holds one token when there is something to read
}

func newRequest(id uint64, m *model, r engine.Request, seedGiven bool) *request {
	n := r.Choices()
	q := &request{
		id: id, req: r, m: m, sent: make([][]engine.Token, n), finished: make([]bool, n),
		wake: make(chan struct{}, 1),
	}
	q.hash = sync.OnceValue(func() digest { return digestOf(&q.req, seedGiven) })
	copy(q.sent, r.Resume)
	return q
}

// Next implements engine.Stream.
func (q *request) Next(ctx context.Context) (engine.Event, error) {
	for {
		if ev, err, ok := q.pop(); ok {
			return ev, err
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			q.Close()
			return engine.Event{}, ctx.Err()
		}
	}
}

// Close implements engine.Stream.
func (q *request) Close() { q.fail(errClosed()) }

func errClosed() *engine.Error {
	return &engine.Error{Kind: engine.KindCancelled, Message: "the request was cancelled"}
}

// fail ends the request with err, once, and takes it from the worker.
func (q *request) fail(err error) {
	if q.finish(err) {
		q.m.forget(q, true)
	}
}

// finish marks the end; false when it had ended before.
func (q *request) finish(err error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return false
	}
	q.ended, q.err = true, err
	q.signal()
	return true
}

// signal wakes the reader. Callers hold q.mu.
func (q *request) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop returns the next event or the end of the stream; false: nothing yet.
func (q *request) pop() (engine.Event, error, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head < len(q.unread) {
		ev := q.unread[q.head]
		q.unread[q.head] = engine.Event{}
		if q.head++; q.head == len(q.unread) {
			q.unread, q.head = q.unread[:0], 0
		}
		q.bytes -= weight(&ev)
		return ev, nil, true
	}
	switch {
	case !q.ended:
		return engine.Event{}, nil, false
	case q.err != nil:
		return engine.Event{}, q.err, true
	default:
		return engine.Event{}, io.EOF, true
	}
}

// push journals an event of the worker and buffers it for the reader. It reports whether the request is over: finished,
// or cut off because the reader is too far behind.
func (q *request) push(ev engine.Event) (over, cutOff bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || ev.Choice < 0 || ev.Choice >= len(q.sent) {
		return q.ended, false
	}
	q.admitted = true
	if q.finished[ev.Choice] && ev.Usage == nil && ev.Prefill == nil {
		return false, false // a replay finishing a choice that the reader has seen finish
	}
	if q.finished[ev.Choice] {
		ev.Finish, ev.StopString, ev.Text, ev.Tokens, ev.Logprobs = "", "", "", nil, nil
	}
	q.sent[ev.Choice] = append(q.sent[ev.Choice], ev.Tokens...)
	if ev.Finish != "" {
		q.finished[ev.Choice] = true
	}
	q.buffer(ev)
	if ev.Usage != nil {
		q.ended = true
	}
	if q.bytes > maxUnread && !q.ended {
		q.ended = true
		q.err = &engine.Error{Kind: engine.KindCancelled, Message: "the client reads too slowly"}
		cutOff = true
	}
	q.signal()
	return q.ended, cutOff
}

// buffer appends ev, or merges it into the last unread event of its choice when the reader lags. Callers hold q.mu.
func (q *request) buffer(ev engine.Event) {
	if len(q.unread)-q.head >= looseEvents && ev.Prefill == nil {
		for i := len(q.unread) - 1; i >= q.head; i-- {
			last := &q.unread[i]
			if last.Choice != ev.Choice || last.Prefill != nil {
				continue
			}
			before := weight(last)
			last.Text += ev.Text
			last.Tokens = append(last.Tokens, ev.Tokens...)
			last.Logprobs = append(last.Logprobs, ev.Logprobs...)
			if ev.Finish != "" {
				last.Finish, last.StopString, last.Err = ev.Finish, ev.StopString, ev.Err
			}
			q.bytes += weight(last) - before
			if ev.Usage == nil {
				return
			}
			// Usage belongs on the very last event, which this one may not be.
			ev = engine.Event{Choice: ev.Choice, Usage: ev.Usage}
			break
		}
	}
	q.unread = append(q.unread, ev)
	q.bytes += weight(&ev)
}

// weight estimates the memory of an event in bytes.
func weight(ev *engine.Event) int {
	n := 64 + len(ev.Text) + 4*len(ev.Tokens)
	for i := range ev.Logprobs {
		n += 48 + 64*len(ev.Logprobs[i].Top)
	}
	return n
}

// crashed notes that the worker which had the request is gone, and reports whether it was there for two crashes.
func (q *request) crashed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.admitted {
		q.crashes++
		q.admitted = false
	}
	return q.crashes >= 2
}

// spend tells the request's owner what it cost, once.
func (q *request) spend(u engine.Usage) {
	q.mu.Lock()
	told := q.spent
	q.spent = true
	q.mu.Unlock()
	if !told && q.req.Spent != nil {
		q.req.Spent(u)
	}
}

// settle is spend for a request whose worker is gone: what is known are the tokens that came.
func (q *request) settle() {
	q.mu.Lock()
	n := 0
	for _, tokens := range q.sent {
		n += len(tokens)
	}
	q.mu.Unlock()
	if n > 0 {
		q.spend(engine.Usage{CompletionTokens: n})
	}
}

// suspect notes whether the worker works on the request at this moment.
func (q *request) suspect(yes bool) {
	q.mu.Lock()
	q.admitted = yes
	q.mu.Unlock()
}

// replay is the request as the next worker must run it: what was sent already counts as output.
func (q *request) replay() engine.Request {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.req
	r.Resume = nil
	for i := range q.sent {
		if len(q.sent[i]) > 0 {
			r.Resume = make([][]engine.Token, len(q.sent))
			for j := range q.sent {
				r.Resume[j] = append([]engine.Token(nil), q.sent[j]...)
			}
			break
		}
	}
	return r
}
