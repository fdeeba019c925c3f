package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"hearth/engine"
	"hearth/engine/enginepb"
)

// model is one resident model: its plans, its worker of the moment, and the requests that run on it. It implements
// engine.Model.
type model struct {
	name    string
	cfg     *Config
	log     *slog.Logger
	launch  launcher
	poison  *poison
	plans   []Plan
	onState func() // told after each change of state, without locks held

	ctx    context.Context // ends when the model is to stop
	cancel context.CancelFunc

	mu       sync.Mutex
	state    State
	since    time.Time
	changed  chan struct{} // closed and replaced at each change of state
	w        worker        // only in StateReady
	pid      int
	stage    string
	progress float64
	info     engine.Info
	stats    engine.Stats
	plan     int // index into plans
	why      string
	restarts int
	faults   int // of all plans
	onPlan   int // faults of the current plan
	falls    int
	row      int           // crashes in a row
	err      *engine.Error // why it failed
	lastErr  string
	stderr   string
	requests map[uint64]*request
	leaving  map[uint64]*request // closed ones, whose costs the worker has yet to tell
	nextID   uint64
}

func newModel(cfg *Config, log *slog.Logger, l launcher, p *poison, plan *Plan, onState func()) *model {
	ctx, cancel := context.WithCancel(context.Background())
	return &model{
		name: plan.Spec.Name, cfg: cfg, log: log.With("model", plan.Spec.Name), launch: l, poison: p, plans: plan.all(),
		onState: onState, ctx: ctx, cancel: cancel, state: StateLoading, since: time.Now(),
		changed: make(chan struct{}), requests: make(map[uint64]*request), leaving: make(map[uint64]*request),
	}
}

// setState changes the state under m.mu and wakes who waits for it. The caller calls m.onState after unlocking.
func (m *model) setState(s State) {
	if m.state != s {
		m.since = time.Now()
	}
	m.state = s
	close(m.changed)
	m.changed = make(chan struct{})
}

// wait blocks until the model has a worker and returns it; it fails when the model failed or stops, after limit, or
// when ctx ends.
func (m *model) wait(ctx context.Context, limit time.Duration) (worker, error) {
	var expired <-chan time.Time
	for {
		m.mu.Lock()
		w, state, changed, err, stage := m.w, m.state, m.changed, m.err, m.stage
		m.mu.Unlock()
		switch {
		case w != nil:
			return w, nil
		case state == StateFailed:
			return nil, err
		case state == StateStopping:
			return nil, errStopped(m.name)
		}
		if expired == nil {
			t := time.NewTimer(limit)
			defer t.Stop()
			expired = t.C
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-expired:
			return nil, &engine.Error{
				Kind: engine.KindUnavailable, RetryAfter: 5 * time.Second,
				Message: fmt.Sprintf("model %q is still %s", m.name, state), Cause: fmt.Errorf("waited %s, stage %q", limit, stage),
			}
		}
	}
}

func errStopped(name string) *engine.Error {
	return &engine.Error{
		Kind: engine.KindUnavailable, Message: fmt.Sprintf("model %q was unloaded", name), RetryAfter: time.Second,
	}
}

// Info implements engine.Model.
func (m *model) Info() engine.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.info
}

// Stats implements engine.Model.
func (m *model) Stats() engine.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Generate implements engine.Model.
func (m *model) Generate(ctx context.Context, req engine.Request) (engine.Stream, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	given := req.Sampling.Seed != nil
	if !given {
		// Fixed here and not by the worker, so that a replay draws the same tokens.
		seed := randomSeed()
		req.Sampling.Seed = &seed
	}
	if !m.poison.empty() && m.poison.has(digestOf(&req, given)) {
		return nil, errPoisoned()
	}
	for {
		w, err := m.wait(ctx, m.cfg.RestartWait)
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		if m.w != w { // it died between wait and here
			m.mu.Unlock()
			continue
		}
		m.nextID++
		q := newRequest(m.nextID, m, req, given)
		m.requests[q.id] = q
		m.mu.Unlock()
		if err := w.submit(q.id, &q.req); err != nil {
			// The connection is gone; the run loop will replay q with the next worker.
			m.log.Debug("submit failed", "request", req.ID, "err", err)
		}
		return q, nil
	}
}

// randomSeed has 53 bits, so that a client that sends it again, out of a reply's timings, can: JSON's numbers are exact
// that far everywhere, and the API's seed is an int64.
func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand documents that it crashes instead)
	return binary.LittleEndian.Uint64(b[:]) >> 11
}

// Tokenize implements engine.Model.
func (m *model) Tokenize(ctx context.Context, p engine.Prompt) ([]engine.Token, error) {
	return call(ctx, m, func(w worker) ([]engine.Token, error) { return w.tokenize(ctx, p) })
}

// Detokenize implements engine.Model.
func (m *model) Detokenize(ctx context.Context, tokens []engine.Token) ([]byte, error) {
	return call(ctx, m, func(w worker) ([]byte, error) { return w.detokenize(ctx, tokens) })
}

// Embed implements engine.Model.
func (m *model) Embed(ctx context.Context, req engine.EmbedRequest) (engine.EmbedResult, error) {
	return call(ctx, m, func(w worker) (engine.EmbedResult, error) { return w.embed(ctx, req) })
}

// call runs fn on the worker, and once more on the next one when the worker died meanwhile: these calls have no side
// effects.
func call[T any](ctx context.Context, m *model, fn func(worker) (T, error)) (T, error) {
	for try := 0; ; try++ {
		var zero T
		w, err := m.wait(ctx, m.cfg.RestartWait)
		if err != nil {
			return zero, err
		}
		v, err := fn(w)
		if err == nil {
			return v, nil
		}
		if ctx.Err() != nil {
			return zero, context.Cause(ctx)
		}
		if engine.KindOf(err) != engine.KindUnavailable || try > 0 {
			return zero, err
		}
		// The connection breaks a moment before the process is reaped.
		select {
		case <-w.done():
			m.left(w)
		case <-ctx.Done():
			return zero, context.Cause(ctx)
		}
	}
}

// left blocks nobody: it takes a dead worker out of the model before the run loop gets to it, so that wait does not
// hand it out again.
func (m *model) left(w worker) {
	m.mu.Lock()
	if m.w == w {
		m.w = nil
		m.setState(StateRestarting)
	}
	m.mu.Unlock()
}

// forget takes a request off the books; tell says that the worker must drop it too.
func (m *model) forget(q *request, tell bool) {
	m.mu.Lock()
	_, have := m.requests[q.id]
	delete(m.requests, q.id)
	w := m.w
	leaves := have && tell && w != nil
	if leaves {
		m.leaving[q.id] = q
	}
	m.mu.Unlock()
	switch {
	case leaves:
		w.cancel(q.id)
	case have:
		q.settle()
	}
}

// settle books the requests that the worker, which is gone, was to drop.
func (m *model) settle() {
	m.mu.Lock()
	left := slices.Collect(maps.Values(m.leaving))
	clear(m.leaving)
	m.mu.Unlock()
	for _, q := range left {
		q.settle()
	}
}

// note books what the worker says of requests: that it works on them from now on, or that they only wait again.
func (m *model) note(ids []uint64, working bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if q := m.requests[id]; q != nil {
			q.suspect(working)
		}
	}
}

// deliver takes one frame of the worker apart. It runs on the connection's receiving goroutine.
func (m *model) deliver(f *enginepb.WorkerFrame) {
	var cut []*request
	m.mu.Lock()
	if f.Stats != nil {
		m.stats = enginepb.ToStats(f.Stats)
	}
	for _, e := range f.Events {
		ev := enginepb.ToEvent(e)
		q := m.requests[e.GetId()]
		if q == nil { // cancelled a moment ago: only what it cost is of interest
			if gone := m.leaving[e.GetId()]; gone != nil && ev.Usage != nil {
				delete(m.leaving, e.GetId())
				gone.spend(*ev.Usage)
			}
			continue
		}
		if ev.Usage != nil {
			q.spend(*ev.Usage)
		}
		switch done, cutOff := q.push(ev); {
		case cutOff:
			cut = append(cut, q)
		case done:
			delete(m.requests, q.id)
		}
	}
	for _, fl := range f.Failures {
		delete(m.leaving, fl.GetId())
		if q := m.requests[fl.GetId()]; q != nil {
			delete(m.requests, q.id)
			q.finish(enginepb.ToError(fl.GetError()))
		}
	}
	m.mu.Unlock()
	for _, q := range cut {
		m.log.Warn("client reads too slowly, request cancelled", "request", q.req.ID)
		m.forget(q, true)
	}
}

// failAll ends every running request with err.
func (m *model) failAll(err error) {
	m.mu.Lock()
	qs := make([]*request, 0, len(m.requests))
	for _, q := range m.requests {
		qs = append(qs, q)
	}
	clear(m.requests)
	m.mu.Unlock()
	for _, q := range qs {
		q.finish(err)
		q.settle()
	}
}

// inFlight lists the running requests in the order they came.
func (m *model) inFlight() []*request {
	qs := make([]*request, 0, len(m.requests))
	for _, q := range m.requests {
		qs = append(qs, q)
	}
	slices.SortFunc(qs, func(a, b *request) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return qs
}

// status describes the model; the pool adds who uses it.
func (m *model) status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.plans[m.plan]
	return Status{
		Name: m.name, State: m.state, Since: m.since, PID: m.pid, Stage: m.stage, Progress: m.progress,
		Plan: p.Label, Fallback: m.why, Backend: p.Spec.Backend, Info: m.info, Stats: m.stats, Requests: len(m.requests),
		Restarts: m.restarts, Faults: m.faults, Fallbacks: m.falls, LastError: m.lastErr, Stderr: m.stderr,
	}
}

// clientError hides what a worker said about its death from clients, and keeps a typed error as it is.
func clientError(err error, message string) *engine.Error {
	if e, ok := errors.AsType[*engine.Error](err); ok {
		return e
	}
	return &engine.Error{Kind: engine.KindUnavailable, Message: message, RetryAfter: 10 * time.Second, Cause: err}
}
