package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hearth/engine"
)

// run is the model's life: load, watch, restart, until it is stopped or gives up. It owns the worker.
func (m *model) run() {
	for m.ctx.Err() == nil {
		w, err := m.start()
		if err != nil {
			if m.ctx.Err() != nil || !m.loadFailed(err) {
				break
			}
			continue
		}
		began := time.Now()
		m.ready(w)
		m.watch(w)
		if m.ctx.Err() != nil {
			break
		}
		pause, ok := m.crashed(w.end(), time.Since(began))
		if !ok {
			break
		}
		m.pause(pause)
	}
	m.mu.Lock()
	m.w, m.pid = nil, 0
	if m.state != StateFailed {
		m.setState(StateStopping)
	}
	m.mu.Unlock()
	m.failAll(errStopped(m.name)) // no-op after loadFailed and crashed, which say more
	m.settle()
	m.onState()
}

// pause waits before a restart.
func (m *model) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.ctx.Done():
	}
}

// start launches a worker by the current plan and waits for its load.
func (m *model) start() (worker, error) {
	m.mu.Lock()
	plan := &m.plans[m.plan]
	m.stage, m.progress = "start", 0
	m.mu.Unlock()
	began := time.Now()
	m.log.Info("loading model", "plan", plan.Label, "backend", plan.Spec.Backend, "path", plan.Spec.Path)
	w, err := m.launch.launch(m.ctx, plan, hooks{
		started: func(pid int) {
			m.mu.Lock()
			m.pid = pid
			m.mu.Unlock()
		},
		progress: func(stage string, fraction float64) {
			m.mu.Lock()
			m.stage, m.progress = stage, fraction
			m.mu.Unlock()
		},
		frame: m.deliver,
		note:  m.note,
	})
	if err != nil {
		return nil, err
	}
	info := w.info()
	m.log.Info("model ready", "plan", plan.Label, "device", info.Device.Name, "pci", info.Device.PCI,
		"context", info.Context, "cells", info.Cells, "window_cells", info.WindowCells, "took", time.Since(began).Round(time.Millisecond))
	for _, f := range info.Features {
		if !f.On {
			m.log.Warn("engine feature is off", "feature", f.Name, "reason", f.Reason)
		}
	}
	return w, nil
}

// ready publishes the worker and gives it the requests that its predecessor left.
func (m *model) ready(w worker) {
	m.mu.Lock()
	m.w, m.pid, m.info, m.stage, m.progress = w, w.pid(), w.info(), "ready", 1
	old := m.inFlight()
	m.setState(StateReady)
	m.mu.Unlock()
	m.onState()
	for _, q := range old {
		r := q.replay()
		m.log.Info("continuing request after a restart", "request", r.ID)
		if err := w.submit(q.id, &r); err != nil {
			m.log.Debug("submit failed", "request", r.ID, "err", err)
		}
		m.mu.Lock()
		_, wanted := m.requests[q.id]
		m.mu.Unlock()
		if !wanted { // closed while it was being handed over
			w.cancel(q.id)
		}
	}
}

// watch returns when the worker is gone: by itself, because a step hung, or because the model is to stop.
func (m *model) watch(w worker) {
	tick := time.NewTicker(m.cfg.HealthEvery)
	defer tick.Stop()
	var silent time.Time // since when health checks fail
	for {
		select {
		case <-w.done():
			return
		case <-m.ctx.Done():
			m.mu.Lock()
			m.setState(StateStopping)
			m.w = nil
			m.mu.Unlock()
			m.onState()
			m.failAll(errStopped(m.name))
			w.stop(m.cfg.StopGrace)
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(m.ctx, min(5*time.Second, m.cfg.Watchdog))
		h, err := w.health(ctx)
		cancel()
		switch {
		case m.ctx.Err() != nil:
		case err != nil && silent.IsZero():
			silent = time.Now()
		case err != nil && time.Since(silent) > m.cfg.Watchdog:
			w.kill(fmt.Sprintf("no answer to health checks for %s", m.cfg.Watchdog))
		case err != nil:
		case h.hung(m.cfg.Watchdog):
			w.kill(fmt.Sprintf("a step ran for %s, %s were predicted", h.stepAge.Round(time.Second), h.predicted))
		default:
			silent = time.Time{}
			m.mu.Lock()
			m.stats = h.stats
			m.mu.Unlock()
		}
	}
}

// loadFailed decides what follows a failed load: the next plan, or, after a run that worked, another try; false: give up.
func (m *model) loadFailed(err error) bool {
	kind := engine.KindOf(err)
	m.mu.Lock()
	m.pid = 0
	m.lastErr = err.Error()
	var le *loadError
	if errors.As(err, &le) {
		m.stderr = le.stderr
	}
	restarting := m.state == StateRestarting
	// A broken file is broken on every backend; hiding that behind a slower one helps nobody.
	hopeless := kind == engine.KindInvalid || kind == engine.KindNotFound
	next := m.plan+1 < len(m.plans) && !hopeless
	m.row++
	retry := restarting && !hopeless && m.row < m.cfg.MaxCrashes
	pause := backoff(m.row)
	m.mu.Unlock()

	switch {
	case next:
		m.fallBack("it did not load: " + err.Error())
		return true
	case retry:
		m.log.Warn("model did not load again, trying once more", "err", err, "pause", pause)
		m.pause(pause)
		return true
	}
	m.log.Error("model did not load", "err", err)
	m.giveUp(clientError(err, fmt.Sprintf("model %q could not be loaded", m.name)))
	return false
}

// fallBack moves to the next plan, loudly. The caller has checked that there is one.
func (m *model) fallBack(reason string) {
	m.mu.Lock()
	from, to := m.plans[m.plan].Label, m.plans[m.plan+1].Label
	m.plan++
	m.falls++
	m.onPlan, m.row = 0, 0
	m.why = fmt.Sprintf("not %s: %s", from, reason)
	m.mu.Unlock()
	m.log.Warn("model falls back to another plan", "from", from, "to", to, "reason", reason)
	m.onState()
}

// giveUp ends the model in StateFailed; requests and waiters get err.
func (m *model) giveUp(err *engine.Error) {
	m.mu.Lock()
	m.w, m.pid, m.err = nil, 0, err
	m.setState(StateFailed)
	m.mu.Unlock()
	m.failAll(err)
	m.onState()
}

// crashed books a worker's death at the given age. It returns the pause before the next start; false: give up.
func (m *model) crashed(e exit, age time.Duration) (time.Duration, bool) {
	var doomed []*request
	m.mu.Lock()
	if age >= m.cfg.HealthyAfter {
		m.row = 0
	}
	m.row++
	m.restarts++
	m.w, m.pid = nil, 0
	m.lastErr, m.stderr = e.String(), e.stderr
	fault := e.fault()
	if fault {
		m.faults++
		m.onPlan++
	}
	for _, q := range m.inFlight() {
		if q.crashed() {
			doomed = append(doomed, q)
			delete(m.requests, q.id)
		}
	}
	waiting := len(m.requests)
	fall := m.onPlan >= m.cfg.FaultsBeforeFallback && m.plan+1 < len(m.plans)
	faults, row := m.onPlan, m.row
	over := row >= m.cfg.MaxCrashes && !fall
	if !over {
		m.setState(StateRestarting)
	}
	m.mu.Unlock()

	pause := backoff(row)
	m.log.Error("worker died", "cause", e.String(), "fault", fault, "in_a_row", row, "requests", waiting, "restart_in", pause)
	for _, q := range doomed {
		m.poison.add(q.hash())
		m.log.Error("request was there for two crashes, it is failed and refused from now on", "request", q.req.ID)
		q.finish(errPoisoned())
		q.settle()
	}
	m.settle()
	if over {
		m.giveUp(&engine.Error{
			Kind: engine.KindUnavailable, RetryAfter: m.cfg.FailedFor,
			Message: fmt.Sprintf("model %q crashed %d times in a row", m.name, row), Cause: errors.New(e.String()),
		})
		return 0, false
	}
	if fall {
		m.fallBack(fmt.Sprintf("it faulted %d times, last: %s", faults, e.String()))
		return 0, true
	}
	m.onState()
	return pause, true
}
