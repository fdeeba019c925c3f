package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"hearth/engine"
)

// Pool keeps models resident. Make one with New; Close it to stop every worker.
type Pool struct {
	cfg     Config
	log     *slog.Logger
	resolve Resolver
	launch  launcher
	poison  poison

	mu      sync.Mutex
	models  map[string]*resident // by the plan's Spec.Name
	aliases map[string]string    // asked name -> Spec.Name, of resident models
	changed chan struct{}        // closed and replaced when a model changes state or falls idle
	closed  bool
	wg      sync.WaitGroup
}

// resident is a model in the table, with who uses it. Pool.mu guards it.
type resident struct {
	*model
	needs     []Need
	refs      int
	keepAlive time.Duration
	lastUsed  time.Time
	expires   time.Time // zero: while in use, or never
	timer     *time.Timer
	stopping  bool
	ended     time.Time     // when the run loop ended
	booked    chan struct{} // closed when the table shows the end too
}

// New makes an empty pool.
func New(cfg Config, r Resolver) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := newPool(cfg, r, nil)
	p.launch = newProcesses(&p.cfg, p.log)
	return p, nil
}

func newPool(cfg Config, r Resolver, l launcher) *Pool {
	cfg = cfg.withDefaults()
	return &Pool{
		cfg: cfg, log: cfg.Logger, resolve: r, launch: l, models: make(map[string]*resident),
		aliases: make(map[string]string), changed: make(chan struct{}),
	}
}

// Acquire returns the model of that name, loading it if need be, and a function that gives it back. It waits until the
// model is ready; others that ask meanwhile wait for the same load. Errors are *engine.Error: what the Resolver said,
// why the load failed, or KindUnavailable with RetryAfter after Config.AcquireTimeout; ctx's own error when it ends.
func (p *Pool) Acquire(ctx context.Context, name string) (engine.Model, func(), error) {
	deadline := time.Now().Add(p.cfg.AcquireTimeout)
	for {
		r, err := p.enter(ctx, name, deadline)
		if err != nil {
			return nil, nil, err
		}
		_, err = r.wait(ctx, time.Until(deadline))
		if err == nil {
			return r.model, sync.OnceFunc(func() { p.release(r) }), nil
		}
		p.release(r)
		if r.evicted() && ctx.Err() == nil && time.Now().Before(deadline) {
			continue // it was being unloaded as we came; the next round loads it anew
		}
		return nil, nil, err
	}
}

// evicted says whether the model is on its way out without having failed.
func (r *resident) evicted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == StateStopping
}

// enter takes a reference on the model's entry, creating it (and making room) when it is not there.
func (p *Pool) enter(ctx context.Context, name string, deadline time.Time) (*resident, error) {
	var plan *Plan
	for {
		p.mu.Lock()
		r, wait, err := p.tryEnter(name, plan)
		changed := p.changed
		p.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case r != nil:
			return r, nil
		case !wait: // not resident: find out what it is
			got, err := p.resolve.Resolve(ctx, name)
			if err != nil {
				return nil, err
			}
			if err := got.Spec.Validate(); err != nil {
				return nil, err
			}
			plan = &got
			continue
		}
		t := time.NewTimer(time.Until(deadline))
		select {
		case <-changed:
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		case <-t.C:
			return nil, &engine.Error{
				Kind: engine.KindUnavailable, RetryAfter: 10 * time.Second,
				Message: fmt.Sprintf("no room to load model %q: every loaded model is in use", name),
			}
		}
	}
}

// tryEnter is one attempt of enter. It returns an entry with a reference taken; or wait, when the caller must wait for
// p.changed; or neither, when it needs the plan. Callers hold p.mu.
func (p *Pool) tryEnter(name string, plan *Plan) (*resident, bool, error) {
	if p.closed {
		return nil, false, errClosing()
	}
	key, known := p.aliases[name]
	if plan != nil {
		key, known = cmp.Or(plan.Spec.Name, name), true
		plan.Spec.Name = key
	}
	if !known {
		return nil, false, nil
	}
	if r := p.models[key]; r != nil {
		switch {
		case r.stopping:
			return nil, true, nil
		case !r.ended.IsZero(): // failed: refused for a while after crashes, loaded anew otherwise
			if left := p.cfg.FailedFor - time.Since(r.ended); r.crashedOut() && left > 0 {
				e := *r.failure()
				e.RetryAfter = left
				return nil, false, &e
			}
			p.drop(r)
			if plan == nil {
				return nil, false, nil
			}
		default:
			p.take(r, name)
			return r, false, nil
		}
	}
	if plan == nil {
		return nil, false, nil
	}
	if ok, victim := p.room(plan); !ok {
		if victim != nil {
			p.log.Info("unloading a model to make room", "model", victim.name, "for", key)
			p.evict(victim)
		}
		return nil, true, nil
	}
	r := &resident{needs: plan.Needs, keepAlive: p.cfg.KeepAlive, booked: make(chan struct{})}
	r.model = newModel(&p.cfg, p.log, p.launch, &p.poison, plan, p.notify)
	p.models[key] = r
	p.take(r, name)
	p.wg.Go(func() {
		r.run()
		p.ended(r)
		close(r.booked)
	})
	return r, false, nil
}

func errClosing() *engine.Error {
	return &engine.Error{Kind: engine.KindUnavailable, Message: "the server is shutting down", RetryAfter: 5 * time.Second}
}

// take adds a user. Callers hold p.mu.
func (p *Pool) take(r *resident, name string) {
	p.aliases[name] = r.name
	r.refs++
	r.expires = time.Time{}
	if r.timer != nil {
		r.timer.Stop()
	}
}

// release removes a user; the last one starts the clock of KeepAlive.
func (p *Pool) release(r *resident) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.refs--
	r.lastUsed = time.Now()
	if r.refs > 0 || r.stopping || !r.ended.IsZero() {
		return
	}
	p.broadcast() // somebody may wait for an idle model to unload
	p.arm(r)
}

// arm starts the expiry timer of an idle model. Callers hold p.mu.
func (p *Pool) arm(r *resident) {
	if r.keepAlive < 0 {
		r.expires = time.Time{}
		return
	}
	r.expires = time.Now().Add(r.keepAlive)
	r.timer = time.AfterFunc(r.keepAlive, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.refs == 0 && !r.stopping && r.ended.IsZero() && !r.expires.IsZero() && !time.Now().Before(r.expires) {
			p.log.Info("unloading an idle model", "model", r.name, "after", r.keepAlive)
			p.evict(r)
		}
	})
}

// KeepAlive sets how long a resident model stays loaded once nobody uses it, instead of Config.KeepAlive; negative: for
// good, zero: not at all. It reports whether the model is resident.
func (p *Pool) KeepAlive(name string, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.find(name)
	if r == nil {
		return false
	}
	r.keepAlive = d
	if r.refs == 0 && !r.stopping && r.ended.IsZero() {
		if r.timer != nil {
			r.timer.Stop()
		}
		p.arm(r)
	}
	return true
}

// room says whether plan's model fits beside the resident ones, and which idle one to unload when it does not; nil when
// it will fit once those have left that are on their way out, or when every other one is in use. Callers hold p.mu.
func (p *Pool) room(plan *Plan) (bool, *resident) {
	if p.fits(plan, p.held(true), p.live(true)) {
		return true, nil
	}
	if p.fits(plan, p.held(false), p.live(false)) {
		return false, nil
	}
	var victim *resident
	for _, r := range p.models {
		if r.ended.IsZero() && r.refs == 0 && !r.stopping && (victim == nil || r.lastUsed.Before(victim.lastUsed)) {
			victim = r
		}
	}
	return false, victim
}

// fits says whether plan's model fits beside live models that hold memory.
func (p *Pool) fits(plan *Plan, held map[string]uint64, live int) bool {
	if live >= p.cfg.MaxResident {
		return false
	}
	if p.cfg.Capacity == nil || live == 0 { // alone it may try, whatever the estimate says
		return true
	}
	for _, n := range plan.Needs {
		if limit, known := p.cfg.Capacity(n.Device); known && held[n.Device]+n.Bytes > limit {
			return false
		}
	}
	return true
}

// live counts models with a worker, with those that are being unloaded or without. Callers hold p.mu.
func (p *Pool) live(stopping bool) int {
	n := 0
	for _, r := range p.models {
		if r.ended.IsZero() && (stopping || !r.stopping) {
			n++
		}
	}
	return n
}

// evict starts to unload a model. Callers hold p.mu.
func (p *Pool) evict(r *resident) {
	r.stopping = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.cancel()
}

// ended books the end of a model's run loop: a stopped one leaves the table, a failed one stays to be looked at.
func (p *Pool) ended(r *resident) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.ended = time.Now()
	r.cancel()
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.stopping || r.failure() == nil {
		p.drop(r)
	}
	p.broadcast()
}

// drop takes a model out of the table. Callers hold p.mu.
func (p *Pool) drop(r *resident) {
	if p.models[r.name] == r {
		delete(p.models, r.name)
	}
	for alias, name := range p.aliases {
		if name == r.name {
			delete(p.aliases, alias)
		}
	}
}

// failure is why the model failed, nil if it did not.
func (r *resident) failure() *engine.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != StateFailed {
		return nil
	}
	return r.err
}

// crashedOut says whether it failed by crashing after it had been ready, not by a load that did not work.
func (r *resident) crashedOut() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.restarts > 0
}

func (p *Pool) notify() {
	p.mu.Lock()
	p.broadcast()
	p.mu.Unlock()
}

// broadcast wakes everyone who waits for room. Callers hold p.mu.
func (p *Pool) broadcast() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// find looks a model up by any name it was asked for. Callers hold p.mu.
func (p *Pool) find(name string) *resident {
	if r := p.models[name]; r != nil {
		return r
	}
	return p.models[p.aliases[name]]
}

// Status describes every resident, loading and failed model, by name.
func (p *Pool) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Status, 0, len(p.models))
	for _, r := range p.models {
		s := r.status()
		s.InUse, s.Expires = r.refs, r.expires
		if r.stopping {
			s.State = StateStopping
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Fallback says why the named model does not run by its first plan; empty when it does, or is not resident.
func (p *Pool) Fallback(name string) string {
	p.mu.Lock()
	r := p.find(name)
	p.mu.Unlock()
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// Held is the memory that resident models are planned to take on a device, in bytes: the sum of their Needs.
func (p *Pool) Held(device string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held(true)[device]
}

// held sums the Needs of live models by device, with those that are being unloaded or without. Callers hold p.mu.
func (p *Pool) held(stopping bool) map[string]uint64 {
	used := make(map[string]uint64)
	for _, r := range p.models {
		if !r.ended.IsZero() || r.stopping && !stopping {
			continue
		}
		for _, n := range r.needs {
			used[n.Device] += n.Bytes
		}
	}
	return used
}

// Stop unloads a model, also one in use: its requests end with KindUnavailable. It returns when the worker is gone and
// Status does not list the model any more.
// The error is of KindNotFound when no such model is resident.
func (p *Pool) Stop(name string) error {
	p.mu.Lock()
	r := p.find(name)
	if r == nil {
		p.mu.Unlock()
		return &engine.Error{Kind: engine.KindNotFound, Message: fmt.Sprintf("model %q is not loaded", name)}
	}
	if r.ended.IsZero() {
		p.evict(r)
	} else {
		p.drop(r)
	}
	p.mu.Unlock()
	<-r.booked
	return nil
}

// Close stops every worker and returns when all are gone. Acquire fails from now on.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for _, r := range p.models {
		if r.ended.IsZero() {
			p.evict(r)
		}
	}
	p.broadcast()
	p.mu.Unlock()
	p.wg.Wait()
	p.launch.close()
}
