package worker

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/enginepb"
)

// ErrBackend says that the backend failed in a way it does not recover from: the process must be replaced.
var ErrBackend = errors.New("the backend failed")

// maxRefused is how many steps in a row llama.cpp may refuse (a bug in planning) before the worker gives up.
const maxRefused = 3

// message is what the inbox holds. Exactly one of its parts is set, except for failed, which has id and session.
type message struct {
	kind    messageKind
	job     *job
	session *session
	wire    uint64
}

type messageKind uint8

const (
	msgAnnounce messageKind = iota // a request is being prepared
	msgSubmit                      // it is ready
	msgFailed                      // it never will be; its session has the failure
	msgCancel
	msgSent // a held session's frame was sent
	msgGone // a session ended
)

// loop is the step loop. run owns everything that is not said to be shared.
type loop struct {
	model Model
	sched *batch.Scheduler
	log   *slog.Logger
	notes io.Writer // where admissions are told before they are computed
	note  []byte
	begun time.Time
	// context is the most tokens of one sequence.
	context int

	mu    sync.Mutex // guards inbox and ended
	inbox []message
	ended bool          // run is over
	wake  chan struct{} // holds one token when the inbox is not empty
	stop  chan struct{} // closed to end run
	ids   atomic.Uint64

	// Shared with Health: when the running step began (ns since begun, 0: none), what was predicted, the newest state.
	stepBegan, stepPredicted atomic.Int64
	waits                    time.Duration // until the next plan, as the last one wants
	stats                    atomic.Pointer[engine.Stats]

	drained  []message
	jobs     map[batch.JobID]*job
	byWire   map[wireKey]*job // nil while it is being prepared
	gone     map[wireKey]bool // cancelled while it is being prepared
	sessions map[*session]int // jobs of each, prepared or not
	news     []*session       // with something in cur
	step     uint64
	gen      uint64 // counts flushes; starts at 1 so that a zero evIn is never current
	picks    []Pick
	picked   []*choice
	sampled  []batch.Sampled
	lost     []int32
	scratch  []byte
	refused  int
	phases   phases
	prefills prefillPhases
	reused   uint64
	layouts  map[batch.Layout]layoutState // empty unless the model can change its layout
	wish     batch.Layout
	wished   bool
	outliers [2]int        // slow steps in a row, of those without prompt rows and of those with some
	settled  time.Duration // until then, what steps take says nothing about others
	later    *warmer
	here     *layoutState  // of the context, until both layouts were compared; nil: they were, or there is one
	quiet    time.Duration // warmWait, but for tests
	tries    int           // to compare the layouts, that a message ended
}

type wireKey struct {
	s  *session
	id uint64
}

func newLoop(m Model, cfg batch.Config, notes io.Writer, log *slog.Logger) (*loop, error) {
	sched, err := batch.New(cfg)
	if err != nil {
		return nil, err
	}
	l := &loop{
		model: m, sched: sched, notes: notes, log: log, begun: time.Now(), context: cfg.Context, wake: make(chan struct{}, 1),
		stop: make(chan struct{}), jobs: make(map[batch.JobID]*job), byWire: make(map[wireKey]*job),
		gone: make(map[wireKey]bool), sessions: make(map[*session]int), gen: 1, quiet: warmWait,
	}
	l.publish()
	return l, nil
}

// post puts a message into the inbox. Any goroutine; never blocks.
func (l *loop) post(m message) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		if m.job != nil {
			m.job.close()
		}
		return
	}
	l.inbox = append(l.inbox, m)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// now is the scheduler's clock.
func (l *loop) now() time.Duration { return time.Since(l.begun) }

// run makes steps until stop is closed (nil) or the backend fails (ErrBackend). It blocks while there is nothing to do.
func (l *loop) run() error {
	// OpenMP keeps a team of threads for each OS thread that calls into it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer l.closeAll()
	for {
		select {
		case <-l.stop:
			return nil
		default:
		}
		l.drain()
		l.flush() // refusals do not wait for a step
		idle, err := l.oneStep()
		// At once: what is told while the next step is computed waits for its graph to be built, one step's longer than another's.
		l.flush()
		if err != nil {
			return err
		}
		if !idle {
			continue
		}
		if l.waits > 0 {
			l.waitForCompany()
			continue
		}
		if err := l.rest(); err != nil {
			return err
		}
	}
}

// waitForCompany waits for as long as the planner wants before it plans again, whatever comes meanwhile.
func (l *loop) waitForCompany() {
	t := time.NewTimer(l.waits)
	defer t.Stop()
	select {
	case <-l.stop:
	case <-t.C:
	}
}

// drain takes what came since the last step.
func (l *loop) drain() {
	l.mu.Lock()
	l.drained, l.inbox = l.inbox, l.drained[:0]
	l.mu.Unlock()
	for i := range l.drained {
		l.handle(&l.drained[i])
		l.drained[i] = message{}
	}
}

func (l *loop) handle(m *message) {
	key := wireKey{m.session, m.wire}
	switch m.kind {
	case msgAnnounce:
		l.byWire[key] = nil
		l.sessions[m.session]++
	case msgFailed:
		l.unbook(key)
	case msgSubmit:
		if l.gone[key] {
			l.fail(m.job, &engine.Error{Kind: engine.KindCancelled, Message: "the request was cancelled"})
			m.job.close()
			l.unbook(key)
			return
		}
		l.submit(m.job, key)
	case msgCancel:
		switch j, known := l.byWire[key]; {
		case !known: // it finished a moment ago
		case j == nil:
			l.gone[key] = true
		default:
			l.sched.Cancel(l.now(), j.id)
		}
	case msgSent:
		l.hold(m.session, false)
	case msgGone:
		for key, j := range l.byWire {
			if key.s != m.session {
				continue
			}
			if j == nil {
				l.gone[key] = true
			} else {
				l.sched.Cancel(l.now(), j.id)
			}
		}
	}
}

// unbook forgets a request.
func (l *loop) unbook(key wireKey) {
	delete(l.byWire, key)
	delete(l.gone, key)
	if l.sessions[key.s]--; l.sessions[key.s] == 0 {
		delete(l.sessions, key.s)
	}
}

func (l *loop) submit(j *job, key wireKey) {
	if err := l.sched.Submit(l.now(), j.batchJob()); err != nil {
		l.fail(j, err)
		j.close()
		l.unbook(key)
		return
	}
	l.jobs[j.id] = j
	l.byWire[key] = j
	if j.session.held {
		l.sched.Hold(j.id, true)
	}
	for i := range j.choices {
		if c := &j.choices[i]; c.done != "" {
			l.sched.Finish(l.now(), j.id, i, c.done)
		}
	}
}

// hold pauses or resumes the jobs of a session.
func (l *loop) hold(s *session, held bool) {
	if s.held == held {
		return
	}
	s.held = held
	if held {
		l.log.Warn("the front end does not read, its requests are paused", "requests", l.sessions[s])
	}
	for key, j := range l.byWire {
		if key.s == s && j != nil {
			l.sched.Hold(j.id, held)
		}
	}
}

// oneStep plans and computes one step; idle says that there was nothing to do.
func (l *loop) oneStep() (idle bool, err error) {
	start := l.now()
	step := l.sched.Plan(start)
	l.step++
	l.report(step.Events)
	l.tell()
	l.waits = step.Wait
	if step.Idle() {
		l.publish()
		if l.paused() {
			return false, l.relayout()
		}
		return true, nil
	}
	res := batch.Result{Sampled: l.sampled[:0], Lost: l.lost[:0]}
	if err := l.apply(step.Ops, &res); err != nil {
		return false, err
	}
	l.lost = res.Lost
	planned := l.now()
	if len(step.Rows) > 0 {
		began := l.now()
		l.stepPredicted.Store(int64(step.Predicted))
		l.stepBegan.Store(int64(began))
		res.Code, err = l.model.Decode(step.Rows)
		if err == nil {
			res.Code, err = l.model.Sync()
		}
		res.Duration = l.now() - began
		l.stepBegan.Store(0)
		if err := l.judge(res.Code, err); err != nil {
			return false, err
		}
		if l.outlier(step, res.Duration) {
			res.Duration = 0
		}
	}
	if res.Code == batch.CodeOK {
		if err := l.apply(step.After, &res); err != nil {
			return false, err
		}
		if res.Sampled, err = l.sample(step, res.Sampled); err != nil {
			return false, err
		}
	}
	l.sampled = res.Sampled
	sampled := l.now()
	rows := step.Decodes
	decodeOnly := rows > 0 && step.Prefills == 0 && res.Duration > 0
	if step.Prefills > 0 && res.Duration > 0 {
		l.prefills.note(l, step, res.Duration)
	}
	l.report(l.sched.Commit(sampled, res))
	l.publish()
	if decodeOnly {
		l.phases.note(l, rows, planned-start, res.Duration, sampled-planned-res.Duration, l.now()-sampled)
	}
	if len(step.Rows) > 0 {
		l.wished = l.wished && l.sched.Stats().Running == 0
	} else if l.paused() {
		return false, l.relayout()
	}
	return false, nil
}

// paused reports whether the scheduler made a pause for another layout: then requests wait for it. A wish that came because nobody asks for
// anything is for a quiet moment (rest): between two waves of requests a change would make the second one wait.
func (l *loop) paused() bool { return l.wished && l.sched.Stats().Jobs > 0 }

// slowStep is the least duration of a step, or of a move to or from host memory, that is worth a line in the log, slowFactor how far
// above its prediction a step is then.
const (
	slowStep   = 250 * time.Millisecond
	slowFactor = 5
	// maxOutliers is how many steps in a row may be put down to chance.
	maxOutliers = 2
	// outlierSettle is for how long after one steps teach nothing: a GPU that waited for a compilation lowered its clocks meanwhile. (Eight rows
	// took 65 to 46 ms for 0.3 s, and 14 from then on: with those in it, cells seemed to cost nothing, and unrelated prefixes stayed.)
	outlierSettle = 500 * time.Millisecond
)

// outlier says whether a step took so long that the cost model should not learn from it: it compiled a pipeline that the
// warm-up missed, or the machine was busy with something else. (Learnt, one such step of 2 s kept prefills at their
// minimum for 500 steps.) Several in a row are the truth.
func (l *loop) outlier(step *batch.Step, took time.Duration) bool {
	in := &l.outliers[min(step.Prefills, 1)] // where the two take turns, one of them may be slow for good
	if took < slowStep || step.Predicted <= 0 || took < slowFactor*step.Predicted {
		*in = 0
		return l.now() < l.settled
	}
	l.log.Warn("slow step", "took", took, "predicted", step.Predicted, "decodes", step.Decodes, "prefill", step.Prefills,
		"pads", step.Pads, "evaluations", step.Evaluations, "cells", l.stats.Load().CellsUsed)
	if *in++; *in > maxOutliers {
		l.settled = 0
		return false
	}
	l.settled = l.now() + outlierSettle
	return true
}

// judge decides what a decode's code means for the worker; the scheduler decides what it means for the requests.
func (l *loop) judge(code batch.Code, err error) error {
	switch {
	case code == batch.CodeOK:
		l.refused = 0
		return nil
	case code <= batch.CodeFatal:
		return fmt.Errorf("%w: decode: %w", ErrBackend, err)
	case code == batch.CodeInvalid:
		l.refused++
		l.log.Error("llama.cpp refused a step", "err", err, "in_a_row", l.refused)
		if l.refused >= maxRefused {
			return fmt.Errorf("%w: %d steps in a row were refused: %w", ErrBackend, l.refused, err)
		}
	}
	return nil
}

// apply makes the step's memory operations. What became of host memory is noted in res.
func (l *loop) apply(ops []batch.Op, res *batch.Result) error {
	for _, op := range ops {
		var err error
		began := l.now()
		switch op.Kind {
		case batch.OpRemove:
			err = l.model.Remove(op.Seq, op.P0, op.P1)
		case batch.OpCopy:
			err = l.model.Copy(op.Src, op.Seq, op.P0, op.P1)
		case batch.OpSave:
			if lost := l.model.Save(op.Seq, op.Host); lost != nil { // it is computed again when it is wanted
				l.log.Warn("a cached prefix could not be moved to host memory", "tokens", op.P1, "err", lost)
				res.Lost = append(res.Lost, op.Host)
			}
			res.Saving += l.moved(op, began)
		case batch.OpLoad:
			err = l.model.Load(op.Host, op.Seq, op.P0, op.P1)
			res.Loading += l.moved(op, began)
		case batch.OpForget:
			l.model.Forget(op.Host)
		}
		if err != nil {
			// The mirror and the memory differ from here on: only a fresh process is right again.
			return fmt.Errorf("%w: memory operation %+v: %w", ErrBackend, op, err)
		}
	}
	return nil
}

// moved is how long a move to or from host memory took.
func (l *loop) moved(op batch.Op, began time.Duration) time.Duration {
	took := l.now() - began
	if took > slowStep {
		l.log.Warn("slow move of a cached prefix", "took", took, "tokens", op.P1, "load", op.Kind == batch.OpLoad)
	}
	return took
}

// sample draws the step's tokens, turns them into events and answers the scheduler.
func (l *loop) sample(step *batch.Step, out []batch.Sampled) ([]batch.Sampled, error) {
	l.picks, l.picked = l.picks[:0], l.picked[:0]
	for i := range step.Samples {
		s := &step.Samples[i]
		c := &l.jobs[s.Job].choices[s.Choice]
		l.picks = append(l.picks, Pick{Output: int(s.Output), Row: c.row})
		l.picked = append(l.picked, c)
	}
	if len(l.picks) == 0 {
		return out, nil
	}
	if err := l.model.Sample(l.picks); err != nil {
		return out, fmt.Errorf("%w: sample: %w", ErrBackend, err)
	}
	for i := range step.Samples {
		s := &step.Samples[i]
		out = append(out, l.keep(l.jobs[s.Job], int(s.Choice), l.picked[i]))
	}
	clear(l.picks)
	clear(l.picked)
	return out, nil
}

// keep takes one drawn token into its choice.
func (l *loop) keep(j *job, n int, c *choice) batch.Sampled {
	if err := c.row.Err(); err != nil {
		ev := l.event(j, n)
		ev.Err = enginepb.FromError(err)
		return batch.Sampled{Finish: engine.FinishError}
	}
	t := c.row.Token()
	c.row.Accept(t)
	ev := l.event(j, n)
	ev.Tokens = append(ev.Tokens, t)
	if j.req.Logprobs {
		ev.Logprobs = append(ev.Logprobs, l.logprob(c.row, t))
	}
	var reason engine.FinishReason
	l.scratch, reason = c.feed(l.model, &j.req, t, l.scratch[:0])
	ev.Text += string(l.scratch)
	return batch.Sampled{Token: t, Finish: reason}
}

func (l *loop) logprob(r Row, t engine.Token) *enginepb.TokenLogprob {
	out := &enginepb.TokenLogprob{Token: t, Bytes: l.model.SpecialPiece(t), Logprob: r.Logprob()}
	toks, lps := r.Top()
	for i, t := range toks {
		out.Top = append(out.Top, &enginepb.TokenLogprob{Token: t, Bytes: l.model.SpecialPiece(t), Logprob: lps[i]})
	}
	return out
}

// closeAll frees the samplers of jobs that still run, and of those that came too late.
func (l *loop) closeAll() {
	l.mu.Lock()
	l.ended = true
	for _, m := range l.inbox {
		if m.job != nil {
			m.job.close()
		}
	}
	l.inbox = nil
	l.mu.Unlock()
	for _, j := range l.jobs {
		j.close()
	}
}
