package api

import (
	"net/http"
	"sync"
	"time"
)

// EventStream writes server-sent events. The header goes out with the first event or ping; until then Started is
// false and the handler may still answer with an error of its own. While nothing is written it sends a comment every
// PingInterval, so that proxies and clients do not give up during a long prefill.
//
// Its methods may be called by one goroutine; pings come from a timer and are serialised with them. Close must be
// called before the handler returns.
type EventStream struct {
	w    http.ResponseWriter
	ctl  *http.ResponseController
	opts StreamOptions

	mu        sync.Mutex
	started   bool
	closed    bool
	err       error // of the first failed write
	lastWrite time.Time
	deadline  time.Time // the write deadline that is set on the connection
	timer     *time.Timer
}

// StreamOptions bounds an EventStream.
type StreamOptions struct {
	// PingInterval is how long the stream may be silent; 0: no pings.
	PingInterval time.Duration
	// WriteTimeout is how long one write may block on a client that does not read; 0: for ever.
	WriteTimeout time.Duration
}

// NewEventStream prepares a stream and starts its ping timer. Nothing is written yet.
func NewEventStream(w http.ResponseWriter, opts StreamOptions) *EventStream {
	s := &EventStream{w: w, ctl: http.NewResponseController(w), opts: opts, lastWrite: time.Now()}
	if opts.PingInterval > 0 {
		s.mu.Lock()
		s.timer = time.AfterFunc(opts.PingInterval, s.ping)
		s.mu.Unlock()
	}
	return s
}

// Started reports whether the header has been sent.
func (s *EventStream) Started() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

// Write sends the bytes of one or more complete events ("data: ...\n\n") and flushes them. After a failed write, which
// means that the client is gone, it returns the same error again.
func (s *EventStream) Write(events []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(events)
}

// Fail ends the stream with err: as a plain HTTP error when nothing was sent yet, otherwise as a last data event
// without an event line, which is what every official client understands. The caller then returns.
func (s *EventStream) Fail(err error) {
	e := Classify(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil || e.Status == StatusClientClosed {
		return
	}
	if !s.started {
		s.started = true
		WriteError(s.w, e)
		return
	}
	b := append([]byte("data: "), e.AppendBody(nil)...)
	_ = s.write(append(b, "\n\n"...)) // kept in s.err
}

// Close stops the pings. It waits for one that is being written.
func (s *EventStream) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if !s.deadline.IsZero() {
		_ = s.ctl.SetWriteDeadline(time.Time{}) // net/http leaves it on a connection that serves more requests
	}
}

func (s *EventStream) write(b []byte) error {
	if s.err != nil {
		return s.err
	}
	now := time.Now()
	if !s.started {
		s.started = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.w.WriteHeader(http.StatusOK)
	}
	// Moving the deadline costs more than a write; it is moved when half of it has passed.
	if s.opts.WriteTimeout > 0 && s.deadline.Sub(now) < s.opts.WriteTimeout/2 {
		s.deadline = now.Add(s.opts.WriteTimeout)
		_ = s.ctl.SetWriteDeadline(s.deadline) // recorders in tests have none
	}
	if _, s.err = s.w.Write(b); s.err != nil {
		return s.err
	}
	s.lastWrite = now
	s.err = s.ctl.Flush()
	return s.err
}

func (s *EventStream) ping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	silent := time.Since(s.lastWrite)
	if silent >= s.opts.PingInterval {
		_ = s.write([]byte(": ping\n\n")) // kept in s.err
		silent = 0
	}
	s.timer.Reset(s.opts.PingInterval - silent)
}
