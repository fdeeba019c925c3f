package batch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/batch/kvsim"
)

const vocab = 50

// world drives a scheduler against the simulator and checks everything that must hold in every step.
type world struct {
	t    testing.TB
	cfg  batch.Config
	s    *batch.Scheduler
	sim  *kvsim.Sim
	now  time.Duration
	step time.Duration // how long every decode takes; 0: a function of its rows
	// took, when set, is how long a decode takes.
	took func(*batch.Step) time.Duration
	jobs map[batch.JobID]*wantJob
	done map[batch.JobID]batch.Event
	// code, when set, replaces the decode's outcome.
	code func(*batch.Step) batch.Code
	eos  engine.Token // finishes a choice; negative: none
	idle bool
	wish *batch.Layout // of the last EventRelayout
	// drains says that a change of layout may take everybody's place.
	drains bool
	// lose, when set, says whether a save fails.
	lose func() bool
	lost []int32 // host slots of saves that failed in this step
	// parts counts loads of other than a sequence's first cells.
	parts int
}

// wantJob is the truth about a job: what each choice must have produced.
type wantJob struct {
	job      batch.Job
	got      [][]engine.Token
	finished map[int32]engine.FinishReason
	running  map[int32]bool
	held     bool
	cached   int32
}

func newWorld(t testing.TB, cfg batch.Config) *world {
	s, err := batch.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	simCfg := kvsim.ConfigOf(cfg)
	simCfg.Vocab = vocab
	return &world{
		t: t, cfg: cfg, s: s, sim: kvsim.New(simCfg), eos: -1,
		jobs: map[batch.JobID]*wantJob{}, done: map[batch.JobID]batch.Event{},
	}
}

func (w *world) submit(j batch.Job) error {
	if err := w.s.Submit(w.now, j); err != nil {
		return err
	}
	n := max(j.Choices, 1)
	wj := &wantJob{job: j, got: make([][]engine.Token, n), finished: map[int32]engine.FinishReason{}, running: map[int32]bool{}}
	for i, r := range j.Resume {
		wj.got[i] = append(wj.got[i], r...)
	}
	w.jobs[j.ID] = wj
	return nil
}

// turn is one Plan and Commit. It reports whether there was anything to do.
func (w *world) turn() bool {
	w.t.Helper()
	st := w.s.Plan(w.now)
	w.events(st.Events)
	w.idle = st.Idle() && st.Wait == 0
	if st.Idle() {
		w.now += st.Wait
		return st.Wait > 0
	}
	w.apply(st.Ops)
	w.checkStep(st)
	code := batch.CodeOK
	if len(st.Rows) > 0 {
		if w.code != nil {
			code = w.code(st)
		}
		if code == batch.CodeOK {
			var err error
			code, err = w.sim.Decode(st.Rows)
			w.must(err)
			if code != batch.CodeOK {
				w.t.Fatalf("step %d: decode returned %d\n%s", st.Number, code, describe(st))
			}
			if st.Evaluations != w.sim.Evaluations() {
				w.t.Fatalf("step %d: planned %d evaluations, were %d\n%s", st.Number, st.Evaluations, w.sim.Evaluations(), describe(st))
			}
		}
	}
	var sampled []batch.Sampled
	if code == batch.CodeOK {
		for _, op := range st.After {
			w.must(w.sim.Apply(op))
		}
		for _, sm := range st.Samples {
			sampled = append(sampled, w.sample(st, sm))
		}
	}
	d := w.step
	if d == 0 {
		d = time.Duration(2000+40*len(st.Rows)) * time.Microsecond
	}
	if w.took != nil && len(st.Rows) > 0 {
		d = w.took(st)
	}
	w.now += d
	w.events(w.s.Commit(w.now, batch.Result{Code: code, Duration: d, Sampled: sampled, Lost: w.lost}))
	return true
}

// apply makes operations before a decode; some saves fail.
func (w *world) apply(ops []batch.Op) {
	w.t.Helper()
	w.lost = w.lost[:0]
	for _, op := range ops {
		if op.Kind == batch.OpSave && w.lose != nil && w.lose() {
			w.lost = append(w.lost, op.Host)
			continue
		}
		w.must(w.sim.Apply(op))
		if op.Kind == batch.OpLoad && w.cfg.Host.Range > 0 {
			if n := w.sim.Runs(op.Seq); n != 1 {
				w.t.Fatalf("%+v: into %d runs of cells", op, n)
			}
			if op.P0 > 0 {
				w.parts++
			}
		}
	}
	if st := w.s.Stats(); len(w.lost) == 0 && (st.HostTokens != w.sim.Saved() || st.HostBytes > st.HostLimit) {
		w.t.Fatalf("%d tokens of %d bytes in host memory, budget %d; the simulator has %d", st.HostTokens, st.HostBytes, st.HostLimit, w.sim.Saved())
	}
}

// sample draws the model's token for a sample and compares it with what the job's own tokens lead to.
func (w *world) sample(st *batch.Step, sm batch.Sample) batch.Sampled {
	w.t.Helper()
	wj := w.jobs[sm.Job]
	if st.Rows[sm.Row].Output != sm.Output {
		w.t.Fatalf("sample says output %d, its row %d", sm.Output, st.Rows[sm.Row].Output)
	}
	if wj == nil || wj.finished[sm.Choice] != "" {
		w.t.Fatalf("sample for job %d choice %d, which is not there", sm.Job, sm.Choice)
	}
	if int(sm.Index) != len(wj.got[sm.Choice]) {
		w.t.Fatalf("job %d choice %d: index %d, has %d tokens", sm.Job, sm.Choice, sm.Index, len(wj.got[sm.Choice]))
	}
	all := append(append([]engine.Token{}, wj.job.Prompt...), wj.got[sm.Choice]...)
	got, want := w.sim.Next(int(sm.Row)), kvsim.Answer(all, vocab)
	if got != want {
		w.t.Fatalf("step %d job %d choice %d index %d: the cache is not prompt and output: answers %d, want %d\nsees  %v\nwants %v\n%s",
			st.Number, sm.Job, sm.Choice, sm.Index, got, want, w.sim.Tokens(st.Rows[sm.Row].Seq), all, describe(st))
	}
	if wj.job.Choices > 1 {
		got = (got + sm.Choice*7) % vocab // choices draw differently
	}
	wj.got[sm.Choice] = append(wj.got[sm.Choice], got)
	out := batch.Sampled{Token: got}
	if got == w.eos {
		out.Finish = engine.FinishStop
	}
	return out
}

// checkStep holds a step against the context's limits and the mirror against the simulator.
func (w *world) checkStep(st *batch.Step) {
	w.t.Helper()
	outputs, kinds := 0, map[batch.RowKind]int{}
	mixed := false
	prefills := map[int32]bool{}
	for i, r := range st.Rows {
		if r.Kind == batch.RowPrefill {
			prefills[r.Seq] = true
		}
		kinds[r.Kind]++
		if r.Output >= 0 {
			outputs++
		}
		mixed = mixed || (i > 0 && r.Kind != st.Rows[0].Kind)
	}
	if kinds[batch.RowDecode] != st.Decodes || kinds[batch.RowPrefill] != st.Prefills || kinds[batch.RowPad] != st.Pads || outputs != st.Outputs {
		w.t.Fatalf("step %d: wrong counts\n%s", st.Number, describe(st))
	}
	if len(st.Rows) > w.cfg.Chunk || (w.cfg.Outputs > 0 && outputs > w.cfg.Outputs) {
		w.t.Fatalf("step %d: %d rows, %d outputs", st.Number, len(st.Rows), outputs)
	}
	if w.cfg.Recurrent && mixed && st.Prefills > len(prefills) {
		w.t.Fatalf("step %d: prefill and decode rows mixed in a recurrent model\n%s", st.Number, describe(st))
	}
	if stats := w.s.Stats(); !w.cfg.NoAttention && stats.CellsUsed != w.sim.Used() {
		w.t.Fatalf("step %d: mirror has %d cells, simulator %d\n%s", st.Number, stats.CellsUsed, w.sim.Used(), describe(st))
	}
}

func (w *world) events(evs []batch.Event) {
	w.t.Helper()
	for _, ev := range evs {
		wj := w.jobs[ev.Job]
		switch ev.Kind {
		case batch.EventAdmitted:
			wj.cached += ev.Cached
			wj.running[ev.Choice] = true
		case batch.EventPreempted:
			w.preempted(wj, ev)
		case batch.EventFinished:
			w.finished(wj, ev)
		case batch.EventDone:
			if len(wj.finished) != len(wj.got) {
				w.t.Fatalf("job %d done with %d of %d choices finished", ev.Job, len(wj.finished), len(wj.got))
			}
			if u := ev.Usage; u.Cached >= u.Prompt || u.Prompt != len(wj.job.Prompt) {
				w.t.Fatalf("job %d: usage %+v", ev.Job, u)
			}
			w.done[ev.Job] = ev
			delete(w.jobs, ev.Job)
		case batch.EventRelayout:
			w.wish = &ev.Layout
		case batch.EventMismatch:
			if w.code == nil {
				w.t.Fatal("mismatch")
			}
		}
	}
}

func (w *world) finished(wj *wantJob, ev batch.Event) {
	w.t.Helper()
	if wj.finished[ev.Choice] != "" {
		w.t.Fatalf("job %d choice %d finished twice", ev.Job, ev.Choice)
	}
	wj.finished[ev.Choice] = ev.Reason
	delete(wj.running, ev.Choice)
	n := len(wj.got[ev.Choice])
	full := len(wj.job.Prompt)+n >= w.cfg.Context || (wj.job.MaxTokens >= 0 && n >= wj.job.MaxTokens)
	if ev.Reason == engine.FinishLength && !full {
		w.t.Fatalf("job %d choice %d: finished for length with %d of %d tokens", ev.Job, ev.Choice, n, wj.job.MaxTokens)
	}
	if ev.Reason == "" || (full && ev.Reason != engine.FinishLength && ev.Reason != engine.FinishStop && ev.Reason != engine.FinishCancelled) {
		w.t.Fatalf("job %d choice %d: finished for %q", ev.Job, ev.Choice, ev.Reason)
	}
}

// preempted checks that the first running choice never loses its place, except to a higher class that waits.
func (w *world) preempted(wj *wantJob, ev batch.Event) {
	w.t.Helper()
	delete(wj.running, ev.Choice)
	if wj.held || w.drains {
		return
	}
	for id, o := range w.jobs {
		before := o.job.Priority > wj.job.Priority || (o.job.Priority == wj.job.Priority && id < ev.Job && len(o.running) > 0)
		for c := range o.running {
			before = before || (o == wj && c < ev.Choice)
		}
		if before {
			return
		}
	}
	w.t.Fatalf("job %d choice %d was preempted and nobody goes before it", ev.Job, ev.Choice)
}

// hold is Scheduler.Hold.
func (w *world) hold(id batch.JobID, held bool) {
	w.s.Hold(id, held)
	w.jobs[id].held = held
}

// run turns until nothing is left to do.
func (w *world) run(limit int) {
	w.t.Helper()
	for i := 0; ; i++ {
		if !w.turn() {
			break
		}
		if i == limit {
			w.t.Fatalf("%d steps and still %d jobs: %+v", limit, len(w.jobs), w.s.Stats())
		}
	}
	if len(w.jobs) > 0 {
		w.t.Fatalf("idle with %d jobs: %+v", len(w.jobs), w.s.Stats())
	}
	st := w.s.Stats()
	if st.Running != 0 || st.Waiting != 0 || st.Jobs != 0 || st.CellsUsed != st.CellsCached {
		w.t.Fatalf("at the end: %+v", st)
	}
	if !w.cfg.NoAttention && st.CellsUsed != w.sim.Used() {
		w.t.Fatalf("at the end: mirror %d cells, simulator %d", st.CellsUsed, w.sim.Used())
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func describe(st *batch.Step) string {
	out := fmt.Sprintf("step %d ops %v after %v\n", st.Number, st.Ops, st.After)
	for _, r := range st.Rows {
		out += fmt.Sprintf("  seq %d pos %d token %d output %d kind %d\n", r.Seq, r.Pos, r.Token, r.Output, r.Kind)
	}
	return out
}

// prompts makes prompts that share prefixes: a few trunks, branches and exact repeats.
type prompts struct {
	rng  *rand.Rand
	made [][]engine.Token
}

func (p *prompts) next(most int) []engine.Token {
	var out []engine.Token
	if len(p.made) > 0 && p.rng.IntN(4) > 0 {
		old := p.made[p.rng.IntN(len(p.made))]
		out = append(out, old[:1+p.rng.IntN(len(old))]...)
		if p.rng.IntN(5) == 0 {
			out = append([]engine.Token{}, old...)
		}
	}
	if out == nil || p.rng.IntN(6) > 0 {
		for range 1 + p.rng.IntN(most) {
			out = append(out, engine.Token(p.rng.IntN(vocab)))
		}
	}
	out = out[:min(len(out), most)]
	p.made = append(p.made, out)
	return out
}
