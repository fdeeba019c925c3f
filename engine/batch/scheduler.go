package batch

import (
	"errors"
	"slices"
	"time"

	"hearth/engine"
	"hearth/engine/prefix"
)

// ErrBusy is returned by Relayout while choices run.
var ErrBusy = errors.New("batch: choices are running")

// Scheduler plans steps for one llama context. Make one with New; it belongs to one goroutine.
//
// Invariants between calls: an id is running (runs[id] != nil), or holds a cached prefix (tree.Holds and no run), or
// is empty (mem.lens 0). Pinned ids are the running ones. Operations in ops are in the mirror already.
// In the tree alone there are further ids, from len(runs) on: what host memory holds.
type Scheduler struct {
	cfg   Config
	mem   *memory
	tree  *prefix.Tree
	cost  costModel
	split splitter
	now   time.Duration

	jobs     map[JobID]*job
	tenants  map[string]*tenant
	waiting  []*run
	runs     []*run // by id; nil: nobody runs there
	running  int
	arrivals uint64

	step         Step
	planned      bool // between Plan and Commit
	dead         bool // after a fatal code
	ops          []Op // since the last Plan
	pending      []Event
	events       []Event   // of the last Commit
	decodes      []*run    // with a decode row in the step that is planned, by id
	prefills     []*run    // with prefill rows in it, in order of service; while planning all that could have some
	sampled      []*run    // parallel to step.Samples
	forks        []*run    // choices that begin in the step that is planned, from another one's prompt
	load         load      // of the step that is planned
	loads        load      // scratch
	candidates   []packing // scratch
	packs        []packing // scratch
	paces        []packing // scratch
	above        []int32   // scratch
	victims      []int32   // scratch
	usable, idle prefix.Usable
	hosted       prefix.Usable

	lastPrefill bool          // the last step had prefill rows alone
	afterPrompt bool          // the last one that was computed had prefill rows
	fed         bool          // prefill rows alone since the last step with decode rows
	holding     bool          // prompts of the step that is planned are kept from their first tokens
	sinceGrant  int           // decode-only steps since prefill rows were last granted
	preempted   bool          // in the step that is planned
	copied      int           // sequences, in the step that is planned
	forked      int           // sequences, behind the step before: the library copies when it computes the next one
	copyFirst   time.Duration // what a copy took at load; 0: nobody knows
	copySeen    time.Duration // when its price was learnt or went back last
	caution     uint          // halvings of the chunk after mismatches
	mismatches  int           // in a row
	scratch     []Row
	output      float64   // running 80th percentile of output lengths, tokens
	rent        []float64 // by id: seconds per token that a cached prefix has cost since it was last of use
	reuse       float64   // running share of cached prefixes that were reused before they went
	ghosts      [ghosts]ghost
	ghostAt     int
	stats       Stats
	host        host

	auto     bool // propose layouts
	costs    LayoutCosts
	atLoad   LayoutCosts // costs as they were measured
	sharing  Sharing
	proposed uint64 // sharing.Steps at the last proposal
	better   int    // decode steps in which the other layout looked much better, less four times those since in which it did not
	givenUp  int    // pauses for another layout since the last change

	draining   bool // nothing is admitted, so that the layout can be changed
	drainUntil time.Duration

	slip     slip                  // how much longer than predicted the time between tokens is
	turn     float64               // running mean of what a decode-only step behind prompt rows takes longer, in seconds
	turns    int                   // how many more of them may be learnt from
	behind   bool                  // the prompts of the step that is planned are behind a long context
	promised bool                  // others wait for tokens meanwhile
	perStep  float64               // of that, what a step with prompt rows causes that is planned
	usual    [len(buckets)]usually // by the number of rows

	isRunning func(id int) bool
}

// New returns a scheduler for an empty context. The error wraps ErrConfig.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Scheduler{jobs: map[JobID]*job{}, tenants: map[string]*tenant{}, output: 128, reuse: reuseStart}
	s.usable, s.idle, s.hosted = s.usablePrefix, s.usableIdle, s.usableHost
	s.isRunning = func(id int) bool { return !s.inHost(id) && s.runs[id] != nil }
	s.reset(cfg.withDefaults())
	return s, nil
}

// reset starts over with an empty context.
func (s *Scheduler) reset(cfg Config) {
	ids := cfg.Sequences + cfg.Parking
	s.cfg, s.mem = cfg, newMemory(&cfg)
	s.split = newSplitter(&cfg)
	s.cost = newCostModel(s.split.equal, !cfg.NoPad)
	s.runs, s.rent = make([]*run, ids), make([]float64, ids)
	s.step = Step{Number: s.step.Number, Rows: make([]Row, 0, cfg.Chunk), Samples: make([]Sample, 0, cfg.Outputs)}
	s.ops = s.ops[:0]
	s.resetHost()
	s.tree = prefix.NewTree(ids + len(s.host.entries))
	s.sharing, s.proposed, s.better, s.givenUp, s.draining = Sharing{}, 0, 0, 0, false
	s.slip, s.turn, s.turns, s.afterPrompt = newSlip(), 0, turnTrust, false
	s.usual = [len(buckets)]usually{}
	s.copyFirst, s.copySeen = cfg.CopyTime, s.now
	s.caution, s.mismatches = 0, 0 // the chunk may be smaller, and a halved one must hold a row
}

// Relayout forgets everything in the KV cache after the caller created a new, empty context with cfg; queued jobs
// stay. It returns an error wrapping ErrConfig when cfg cannot be, and ErrBusy when a choice is running.
func (s *Scheduler) Relayout(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if s.running > 0 || s.planned {
		return ErrBusy
	}
	s.reset(cfg.withDefaults())
	s.forgetMatches()
	return nil
}

// forgetMatches makes waiting runs look for their prefixes again: those that they found are gone.
func (s *Scheduler) forgetMatches() {
	for _, r := range s.waiting {
		r.match, r.matched, r.skip = prefix.Match{ID: -1, Leader: -1}, 0, 0
	}
}

// Clear forgets every cached prefix, after which the caller clears the context's memory. Queued jobs and what was learned about
// costs stay. It returns ErrBusy when a choice is running.
func (s *Scheduler) Clear() error {
	if s.running > 0 || s.planned {
		return ErrBusy
	}
	s.ops = s.ops[:0]
	save, load := s.host.save, s.host.load
	s.resetHost()
	s.host.save, s.host.load = save, load
	s.mem, s.tree = newMemory(&s.cfg), prefix.NewTree(len(s.runs)+len(s.host.entries))
	clear(s.rent)
	s.forgetMatches()
	return nil
}

// Submit queues a job. The error is an *engine.Error: KindContextLength for a prompt that leaves no room for output,
// KindOverloaded for a full queue (RetryAfter is an estimate), KindInvalid for a job that cannot be.
func (s *Scheduler) Submit(now time.Duration, in Job) error {
	s.check()
	n := max(in.Choices, 1)
	switch {
	case len(in.Prompt) == 0:
		return engine.Invalid("prompt", "must hold at least one token")
	case len(in.Prompt) >= s.cfg.Context:
		return engine.ContextLength(len(in.Prompt), s.cfg.Context)
	case len(in.Resume) > n:
		return engine.Invalid("resume", "lists more choices than n")
	case s.jobs[in.ID] != nil:
		return engine.Invalid("id", "is taken by a job that has not finished")
	case s.dead:
		return &engine.Error{Kind: engine.KindUnavailable, Message: "the engine failed and is about to restart", RetryAfter: time.Second}
	case len(s.waiting) >= s.cfg.QueueLimit:
		return &engine.Error{Kind: engine.KindOverloaded, Message: "the queue of this model is full", RetryAfter: s.queueWait()}
	}
	s.arrivals++
	j := &job{Job: in, order: s.arrivals, runs: make([]run, n), live: n, submitted: now, tenant: s.tenantOf(in.Tenant)}
	j.tenant.jobs++
	j.usage.Prompt = len(in.Prompt)
	j.key = prefix.Key{Namespace: in.Namespace}
	if s.cfg.TenantCache {
		j.key.Tenant = in.Tenant
	}
	if !in.Cache {
		j.key.Private = j.order
	}
	s.jobs[in.ID] = j
	for i := range j.runs {
		r := &j.runs[i]
		*r = run{job: j, choice: int32(i), id: -1, match: prefix.Match{ID: -1, Leader: -1}}
		var resume []engine.Token
		if i < len(in.Resume) {
			resume = in.Resume[i]
		}
		room := s.cfg.Context - len(in.Prompt)
		if in.MaxTokens >= 0 {
			room = min(room, in.MaxTokens)
		}
		// Enough for most answers, so that a step does not allocate; append grows it for the others.
		r.gen = append(make([]engine.Token, 0, max(len(resume), min(room, 1024))), resume...)
		r.resume = len(resume)
		if r.left(s.cfg.Context) == 0 && (len(resume) > 0 || i > 0) { // one choice without output fills the cache

			s.pending = s.end(now, r, engine.FinishLength, s.pending)
			continue
		}
		s.waiting = append(s.waiting, r)
	}
	return nil
}

// check catches calls between Plan and Commit, when the step's slices refer to runs.
func (s *Scheduler) check() {
	if s.planned {
		panic("batch: Submit, Cancel, Finish, Hold or Plan between Plan and Commit")
	}
}

// queueWait guesses when a place in the queue is free: the time of one prefill and one answer of a running request.
func (s *Scheduler) queueWait() time.Duration {
	d := time.Second
	if t := s.stats.LastStep; t > 0 {
		d = max(d, time.Duration(s.output)*t/time.Duration(max(1, s.running))*time.Duration(max(1, len(s.waiting)/8)))
	}
	return min(d, time.Minute)
}

// Cancel ends every choice of a job; the operations that free its cells are in the next Plan. The events (EventFinished
// with FinishCancelled, EventDone) come with the next Plan, too. It reports whether the job was there.
func (s *Scheduler) Cancel(now time.Duration, id JobID) bool {
	s.check()
	j := s.jobs[id]
	if j == nil {
		return false
	}
	for i := range j.runs {
		if r := &j.runs[i]; r.state != stateDone {
			s.pending = s.end(now, r, engine.FinishCancelled, s.pending)
		}
	}
	return true
}

// Finish ends one choice between steps, for a reason that came up outside of sampling (a deadline, a parser that has
// enough). Otherwise it is like Cancel.
func (s *Scheduler) Finish(now time.Duration, id JobID, choice int, reason engine.FinishReason) bool {
	s.check()
	j := s.jobs[id]
	if j == nil || choice < 0 || choice >= len(j.runs) || j.runs[choice].state == stateDone {
		return false
	}
	s.pending = s.end(now, &j.runs[choice], reason, s.pending)
	return true
}

// Hold stops a job from being computed (its client reads too slowly) until Hold(id, false). It keeps its cells.
func (s *Scheduler) Hold(id JobID, held bool) bool {
	s.check()
	j := s.jobs[id]
	if j == nil {
		return false
	}
	j.held = held
	return true
}

// end finishes a run, and its job with the last one. It appends the events to ev.
func (s *Scheduler) end(now time.Duration, r *run, reason engine.FinishReason, ev []Event) []Event {
	j := r.job
	switch r.state {
	case stateWaiting:
		if i := slices.Index(s.waiting, r); i >= 0 {
			s.waiting = slices.Delete(s.waiting, i, i+1)
		}
	case statePrefill, stateDecode:
		s.leave(now, r)
	}
	r.state = stateDone
	ev = append(ev, Event{Kind: EventFinished, Job: j.ID, Choice: r.choice, Reason: reason})
	if j.live--; j.live > 0 {
		return ev
	}
	if j.wasFirst {
		j.usage.Decode = now - j.first
	}
	j.tenant.jobs--
	if j.key.Private != 0 {
		s.dropPrivate(j)
	}
	delete(s.jobs, j.ID)
	return append(ev, Event{Kind: EventDone, Job: j.ID, Reason: reason, Usage: j.usage})
}

// Stats returns the state and the counters.
func (s *Scheduler) Stats() Stats {
	st := s.stats
	used, pinned, total := s.mem.count()
	st.Running, st.Waiting, st.Jobs = s.running, len(s.waiting), len(s.jobs)
	st.Layout = s.cfg.Layout
	st.CellsUsed, st.CellsCached, st.CellsTotal = used, used-pinned, total
	if total == 0 {
		st.CellsTotal = s.cfg.Cells
	}
	st.Steps = s.step.Number
	if s.mem.base != nil {
		st.Span = s.mem.base.Span()
	}
	st.HostPrefixes, st.HostTokens, st.HostBytes, st.HostLimit = s.host.used, s.host.tokens, s.host.bytes, s.cfg.Host.Bytes
	return st
}
