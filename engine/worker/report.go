package worker

import (
	"strconv"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/enginepb"
)

// report turns the scheduler's events into the sessions' frames.
func (l *loop) report(events []batch.Event) {
	for i := range events {
		e := &events[i]
		j := l.jobs[e.Job]
		if j == nil && e.Kind != batch.EventMismatch && e.Kind != batch.EventRelayout {
			continue
		}
		switch e.Kind {
		case batch.EventAdmitted:
			if len(l.note) == 0 {
				l.note = append(l.note, enginepb.AdmittedPrefix...)
			} else {
				l.note = append(l.note, ' ')
			}
			l.note = strconv.AppendUint(l.note, j.wire, 10)
		case batch.EventPrefill:
			j.filled = max(j.filled, int(e.Done))
			if j.req.Progress {
				l.event(j, 0).Prefill = &enginepb.Prefill{Cached: int64(e.Cached), Done: int64(e.Done), Total: int64(e.Total)}
			}
		case batch.EventFinished:
			l.finished(j, int(e.Choice), e.Reason)
		case batch.EventDone:
			l.done(j, &e.Usage, e.Reason)
		case batch.EventPreempted:
			l.log.Debug("preempted", "request", j.req.ID, "choice", e.Choice)
		case batch.EventMismatch:
			l.log.Error("llama.cpp found no cells where the accounting had some; the prefix cache was dropped")
		case batch.EventRelayout:
			l.wish, l.wished = e.Layout, true
		}
	}
}

// tell writes down which requests the coming step computes for the first time.
func (l *loop) tell() {
	if len(l.note) == 0 {
		return
	}
	if _, err := l.notes.Write(append(l.note, '\n')); err != nil {
		l.log.Debug("write admissions", "err", err) // the supervisor is gone; the end of its connection says so as well
	}
	l.note = l.note[:0]
}

// finished ends a choice: held-back text goes out, unless a stop string or the caller ended it.
func (l *loop) finished(j *job, n int, reason engine.FinishReason) {
	c := &j.choices[n]
	if c.finished {
		return
	}
	c.finished = true
	ev := l.event(j, n)
	ev.Finish = string(reason)
	ev.StopString = c.stopHit
	if reason == engine.FinishError && ev.Err == nil {
		ev.Err = enginepb.FromError(&engine.Error{Kind: engine.KindInternal, Message: "the engine could not continue this choice"})
	}
	if c.stopHit == "" && reason != engine.FinishCancelled {
		l.scratch = c.text.flush(l.scratch[:0])
		ev.Text += string(l.scratch)
	}
}

// done ends a job: its usage rides on its last event.
func (l *loop) done(j *job, u *batch.Usage, reason engine.FinishReason) {
	prompt := u.Prompt
	if u.Completion+j.resumed == 0 && (reason == engine.FinishCancelled || reason == engine.FinishError) {
		prompt = min(prompt, max(j.filled, u.Cached)) // it may have ended in the queue
	}
	ev := j.last
	if ev == nil || j.lastIn != l.gen {
		ev = l.event(j, 0)
	}
	ev.Usage = &enginepb.Usage{
		PromptTokens: int64(prompt), CachedTokens: int64(u.Cached), CompletionTokens: int64(u.Completion + j.resumed),
		QueueNs: int64(u.Queue), PrefillNs: int64(u.Prefill), DecodeNs: int64(u.Decode), Preemptions: int64(u.Preemptions),
		Seed: j.seed,
	}
	j.close()
	delete(l.jobs, j.id)
	l.unbook(wireKey{j.session, j.wire})
}

// event is the event of a choice in the frame being filled, made on first use.
func (l *loop) event(j *job, n int) *enginepb.Event {
	c := &j.choices[n]
	if c.evIn == l.gen && c.ev != nil {
		return c.ev
	}
	f := l.frame(j.session)
	ev := &enginepb.Event{Id: j.wire, Choice: int64(n)}
	f.Events = append(f.Events, ev)
	c.ev, c.evIn = ev, l.gen
	j.last, j.lastIn = ev, l.gen
	return ev
}

// frame is the session's frame being filled.
func (l *loop) frame(s *session) *enginepb.WorkerFrame {
	if !s.in {
		s.in = true
		l.news = append(l.news, s)
	}
	return s.cur
}

// fail ends a job that the scheduler does not have.
func (l *loop) fail(j *job, err error) {
	f := l.frame(j.session)
	f.Failures = append(f.Failures, &enginepb.Failure{Id: j.wire, Error: enginepb.FromError(err)})
}

// flush hands the frames of the sessions with news to their senders.
func (l *loop) flush() {
	if len(l.news) == 0 {
		return
	}
	l.gen++ // the events handed over now are the senders'
	st := enginepb.FromStats(l.stats.Load())
	for i, s := range l.news {
		s.in = false
		s.cur.Stats = st
		if s.hand() > holdEvents {
			l.hold(s, true)
		}
		l.news[i] = nil
	}
	l.news = l.news[:0]
}

// publish makes the scheduler's counters visible to Health and to the next frames.
func (l *loop) publish() {
	s := l.sched.Stats()
	if l.step%32 == 0 { // a crossing into C, not worth one per step
		l.reused = l.model.GraphsReused()
	}
	l.stats.Store(&engine.Stats{
		Running: s.Running, Waiting: s.Waiting, CellsUsed: s.CellsUsed, CellsTotal: s.CellsTotal, CellsCached: s.CellsCached,
		Steps: s.Steps, PromptTokens: s.PromptTokens, CachedTokens: s.CachedTokens, CompletionTokens: s.CompletionTokens,
		Preemptions: s.Preemptions, Evictions: s.Evictions, Mismatches: s.Mismatches, GraphsReused: l.reused, LastStep: s.LastStep,
		DecodeRows: s.LastDecodes, PrefillRows: s.LastPrefills,
		HostPrefixes: s.HostPrefixes, HostTokens: s.HostTokens, HostBytes: s.HostBytes, HostLimit: s.HostLimit,
		HostSaves: s.HostSaves, HostLoads: s.HostLoads, KVLayout: s.Layout.String(),
	})
}
