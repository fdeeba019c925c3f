package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/enginepb"
)

// rig is a running loop with one session, and what came out of it.
type rig struct {
	t    *testing.T
	m    *fakeModel
	l    *loop
	s    *session
	ran  chan error
	next uint64

	mu    sync.Mutex
	news  *sync.Cond
	got   map[uint64]*outcome
	stats engine.Stats
	stop  chan struct{}
}

// outcome is everything that a request's events said.
type outcome struct {
	text    map[int64]string
	tokens  map[int64][]engine.Token
	finish  map[int64]string
	stopped map[int64]string
	err     *enginepb.Error
	failed  *enginepb.Error
	usage   *enginepb.Usage
	events  int
	after   bool // an event came behind Usage
	prefill []int64
	lps     []*enginepb.TokenLogprob
}

func newRig(t *testing.T, m *fakeModel) *rig {
	t.Helper()
	l, err := newLoop(m, m.cfg, io.Discard, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	return newRigOf(t, m, l)
}

// newRigOf starts a loop that the test has made.
func newRigOf(t *testing.T, m *fakeModel, l *loop) *rig {
	t.Helper()
	r := &rig{t: t, m: m, l: l, s: newSession(), ran: make(chan error, 1), got: map[uint64]*outcome{}, stop: make(chan struct{})}
	r.news = sync.NewCond(&r.mu)
	var collecting sync.WaitGroup
	collecting.Go(r.collect)
	go func() { r.ran <- l.run() }()
	t.Cleanup(func() {
		select {
		case <-l.stop:
		default:
			close(l.stop)
		}
		if err := <-r.ran; err != nil && !errors.Is(err, ErrBackend) {
			t.Error(err)
		}
		close(r.stop)
		collecting.Wait()
		if n := m.openRows(); n != 0 {
			t.Errorf("%d samplers are still open", n)
		}
	})
	return r
}

// collect plays the sender.
func (r *rig) collect() {
	for {
		select {
		case <-r.s.wake:
		case <-r.stop:
			return
		}
		f := r.s.take()
		if f == nil {
			continue
		}
		r.mu.Lock()
		for _, ev := range f.Events {
			r.add(ev)
		}
		for _, fl := range f.Failures {
			r.outcome(fl.Id).failed = fl.Error
		}
		if f.Stats != nil {
			r.stats = enginepb.ToStats(f.Stats)
		}
		r.news.Broadcast()
		r.mu.Unlock()
		r.s.recycle(f)
	}
}

func (r *rig) outcome(id uint64) *outcome {
	o := r.got[id]
	if o == nil {
		o = &outcome{
			text: map[int64]string{}, tokens: map[int64][]engine.Token{}, finish: map[int64]string{}, stopped: map[int64]string{},
		}
		r.got[id] = o
	}
	return o
}

func (r *rig) add(ev *enginepb.Event) {
	o := r.outcome(ev.Id)
	o.after = o.after || o.usage != nil
	o.events++
	o.text[ev.Choice] += ev.Text
	o.tokens[ev.Choice] = append(o.tokens[ev.Choice], ev.Tokens...)
	o.lps = append(o.lps, ev.Logprobs...)
	if ev.Finish != "" {
		if o.finish[ev.Choice] != "" {
			r.t.Errorf("choice %d of request %d finished twice", ev.Choice, ev.Id)
		}
		o.finish[ev.Choice], o.stopped[ev.Choice] = ev.Finish, ev.StopString
	}
	if ev.Err != nil {
		o.err = ev.Err
	}
	if ev.Prefill != nil {
		o.prefill = append(o.prefill, ev.Prefill.Done)
	}
	if ev.Usage != nil {
		o.usage = ev.Usage
	}
}

// submit sends a request the way Service does and returns its id.
func (r *rig) submit(req engine.Request) uint64 {
	r.next++
	id := r.next
	r.l.post(message{kind: msgAnnounce, session: r.s, wire: id})
	j, err := prepare(r.m, req, r.l.context)
	if err != nil {
		r.s.fail(id, err)
		r.l.post(message{kind: msgFailed, session: r.s, wire: id})
		return id
	}
	j.id, j.wire, j.session = batch.JobID(r.l.ids.Add(1)), id, r.s
	r.l.post(message{kind: msgSubmit, session: r.s, wire: id, job: j})
	return id
}

// wait blocks until the condition holds of a request.
func (r *rig) wait(id uint64, cond func(o *outcome) bool) *outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !cond(r.outcome(id)) {
		r.news.Wait()
	}
	return r.got[id]
}

func (r *rig) result(id uint64) *outcome {
	return r.wait(id, func(o *outcome) bool { return o.usage != nil || o.failed != nil })
}

func prompt(n, first int) []engine.Token {
	out := []engine.Token{fakeBOS}
	for i := 1; i < n; i++ {
		out = append(out, engine.Token(fakeText+(first+i*7)%(fakeSize-fakeText)))
	}
	return out
}

func request(p []engine.Token, max int) engine.Request {
	return engine.Request{Prompt: engine.Prompt{Segments: []engine.Segment{{Tokens: p}}}, MaxTokens: max, CachePrompt: true}
}

func TestGreedyAnswersAreTheModels(t *testing.T) {
	for _, async := range []bool{false, true} {
		m := newFakeModel(smallConfig())
		m.async = async
		r := newRig(t, m)
		p := prompt(100, 3)
		for range 2 { // the second time from the prefix cache
			o := r.result(r.submit(request(p, 20)))
			want := truth(p, 20)
			if !slices.Equal(o.tokens[0], want) || o.text[0] != textOf(want) || o.finish[0] != "length" || o.after {
				t.Fatalf("tokens %v\nwant   %v\ntext %q finish %q", o.tokens[0], want, o.text[0], o.finish[0])
			}
			if u := o.usage; u.PromptTokens != 100 || u.CompletionTokens != 20 {
				t.Errorf("usage %v", u)
			}
		}
		o := r.result(r.submit(request(p, 1)))
		if o.usage.CachedTokens < 90 {
			t.Errorf("%d cached tokens", o.usage.CachedTokens)
		}
	}
}

func TestManyRequestsAtOnce(t *testing.T) {
	m := newFakeModel(smallConfig())
	r := newRig(t, m)
	rng := rand.New(rand.NewPCG(5, 6))
	type sent struct {
		id     uint64
		p      []engine.Token
		n, max int
		cancel bool
	}
	var all []sent
	for i := range 120 {
		p := prompt(2+rng.IntN(120), rng.IntN(4))
		s := sent{p: p, n: 1 + rng.IntN(3), max: 1 + rng.IntN(60), cancel: i%5 == 4}
		req := request(p, s.max)
		req.N = s.n
		s.id = r.submit(req)
		if s.cancel {
			r.l.post(message{kind: msgCancel, session: r.s, wire: s.id})
		}
		all = append(all, s)
	}
	for _, s := range all {
		if s.cancel {
			continue
		}
		o := r.result(s.id)
		if o.failed != nil {
			t.Fatalf("request %d failed: %v", s.id, o.failed)
		}
		for c := range s.n {
			if want := truth(s.p, s.max); !slices.Equal(o.tokens[int64(c)], want) {
				t.Fatalf("request %d choice %d: %v, want %v", s.id, c, o.tokens[int64(c)], want)
			}
		}
		if int(o.usage.CompletionTokens) != s.n*s.max || o.after {
			t.Errorf("usage %v, after %v", o.usage, o.after)
		}
	}
	r.drained()
}

// drained checks that the loop holds nothing but cached prefixes.
func (r *rig) drained() {
	r.t.Helper()
	last := r.submit(request(prompt(2, 1), 1))
	r.result(last)
	close(r.l.stop)
	err := <-r.ran
	r.ran <- err
	if n := len(r.l.jobs) + len(r.l.byWire) + len(r.l.gone) + len(r.l.sessions); n != 0 {
		r.t.Errorf("%d entries are left in the loop's tables", n)
	}
	if s := r.l.sched.Stats(); s.Running+s.Waiting != 0 || s.CellsUsed != s.CellsCached {
		r.t.Errorf("the scheduler still holds %+v", s)
	}
}

func TestCancelFreesCellsWithinOneStep(t *testing.T) {
	m := newFakeModel(smallConfig())
	step := make(chan struct{})
	m.decode = func([]batch.Row) { step <- struct{}{} }
	r := newRig(t, m)
	req := request(prompt(100, 1), -1)
	req.CachePrompt = false
	id := r.submit(req)
	for range 5 {
		<-step
	}
	// The loop is between two decodes or waits at the next one: at most that one step still has the request.
	r.l.post(message{kind: msgCancel, session: r.s, wire: id})
	select {
	case <-step:
	case <-r.done(id):
	}
	o := r.result(id)
	if o.finish[0] != "cancelled" {
		t.Errorf("finish %q", o.finish[0])
	}
	if n := m.sim.Used(); n != 0 {
		t.Errorf("%d cells are still in use", n)
	}
}

// done is closed when a request is over.
func (r *rig) done(id uint64) <-chan struct{} {
	c := make(chan struct{})
	go func() { r.result(id); close(c) }()
	return c
}

func TestHowChoicesEnd(t *testing.T) {
	p := prompt(10, 2)
	want := truth(p, 30)
	third := fmt.Sprintf("%d ", want[2])
	tests := []struct {
		name   string
		change func(r *engine.Request)
		tokens int
		text   string
		finish string
		hit    string
	}{
		{"length", func(*engine.Request) {}, 30, textOf(want), "length", ""},
		{"prefill only", func(r *engine.Request) { r.MaxTokens = 0 }, 0, "", "length", ""},
		{"stop string", func(r *engine.Request) { r.Stop = []string{third} }, 3, textOf(want[:2]), "stop", third},
		{"stop string over tokens", func(r *engine.Request) { r.Stop = []string{strings.TrimSpace(third) + " " + fmt.Sprint(want[3])} }, 4, textOf(want[:2]), "stop", strings.TrimSpace(third) + " " + fmt.Sprint(want[3])},
		{"stop token", func(r *engine.Request) { r.StopTokens = []engine.Token{want[4]} }, 5, textOf(want[:4]), "stop", ""},
		{"held text comes at the end", func(r *engine.Request) { r.Stop = []string{fmt.Sprintf("%d x", want[29])} }, 30, textOf(want), "length", ""},
		{"context full", func(r *engine.Request) { r.MaxTokens = -1 }, 246, textOf(truth(p, 246)), "length", ""},
		{"sampler error", func(r *engine.Request) { r.Sampling.Grammar = "dead" }, 2, textOf(want[:2]), "error", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, newFakeModel(smallConfig()))
			req := request(p, 30)
			tt.change(&req)
			o := r.result(r.submit(req))
			if len(o.tokens[0]) != tt.tokens || o.text[0] != tt.text || o.finish[0] != tt.finish || o.stopped[0] != tt.hit {
				t.Errorf("%d tokens, text %q, finish %q, stop %q; want %d, %q, %q, %q", len(o.tokens[0]), o.text[0], o.finish[0], o.stopped[0], tt.tokens, tt.text, tt.finish, tt.hit)
			}
			if (o.err != nil) != (tt.finish == "error") {
				t.Errorf("error %v", o.err)
			}
		})
	}
}

// A request that is cut anywhere and resumed gives the same text, without a word twice.
func TestResumeContinues(t *testing.T) {
	p := prompt(20, 4)
	r := newRig(t, newFakeModel(smallConfig()))
	for _, temp := range []float32{0, 1} {
		seed := uint64(77)
		req := request(p, 24)
		req.N, req.Sampling.Temperature, req.Sampling.Seed = 2, temp, &seed
		whole := r.result(r.submit(req))
		// A stop string in the middle of choice 0, so that held-back text is part of the cut.
		stop := fmt.Sprintf("%d %d ", whole.tokens[0][15], whole.tokens[0][16])
		req.Stop = []string{stop}
		ref := r.result(r.submit(req))
		for cut := 0; cut <= 17; cut++ {
			again := req
			again.Resume = [][]engine.Token{ref.tokens[0][:cut], ref.tokens[1][:min(cut+3, len(ref.tokens[1]))]}
			o := r.result(r.submit(again))
			for c := range int64(2) {
				sent := again.Resume[c]
				var ts textStream
				ts.init(req.Stop)
				var before []byte
				for _, tok := range sent {
					before, _ = ts.push(before, r.m.Piece(tok))
				}
				if got := string(before) + o.text[c]; got != ref.text[c] || o.finish[c] != ref.finish[c] {
					t.Fatalf("temp %g cut %d choice %d: %q %s, want %q %s", temp, cut, c, got, o.finish[c], ref.text[c], ref.finish[c])
				}
			}
			if o.usage.CompletionTokens != ref.usage.CompletionTokens {
				t.Errorf("cut %d: %d completion tokens, want %d", cut, o.usage.CompletionTokens, ref.usage.CompletionTokens)
			}
		}
	}
}

func TestChoicesDifferAndSeedsRepeat(t *testing.T) {
	r := newRig(t, newFakeModel(smallConfig()))
	seed := uint64(9)
	req := request(prompt(10, 1), 12)
	req.N, req.Sampling.Temperature, req.Sampling.Seed = 3, 1, &seed
	a, b := r.result(r.submit(req)), r.result(r.submit(req))
	if slices.Equal(a.tokens[0], a.tokens[1]) || slices.Equal(a.tokens[1], a.tokens[2]) {
		t.Error("choices are equal")
	}
	for c := range int64(3) {
		if !slices.Equal(a.tokens[c], b.tokens[c]) {
			t.Errorf("choice %d differs with the same seed", c)
		}
	}
	req.N = 1
	if one := r.result(r.submit(req)); !slices.Equal(one.tokens[0], a.tokens[0]) {
		t.Error("n changes the first choice")
	}
	if a.usage.Seed != 9 {
		t.Errorf("seed %d", a.usage.Seed)
	}
}

func TestLogprobsAndProgress(t *testing.T) {
	r := newRig(t, newFakeModel(smallConfig()))
	req := request(prompt(200, 1), 5)
	req.Logprobs, req.TopLogprobs, req.Progress = true, 2, true
	o := r.result(r.submit(req))
	if len(o.lps) != 5 || o.lps[0].Token != o.tokens[0][0] || len(o.lps[0].Top) != 2 || string(o.lps[0].Bytes) != fmt.Sprintf("%d ", o.tokens[0][0]) {
		t.Errorf("logprobs %v", o.lps)
	}
	if len(o.prefill) < 3 || o.prefill[len(o.prefill)-1] != 200 || !slices.IsSorted(o.prefill) {
		t.Errorf("progress %v", o.prefill)
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, newFakeModel(smallConfig()))
	tests := []struct {
		name   string
		change func(r *engine.Request)
		kind   engine.Kind
		field  string
	}{
		{"too long", func(r *engine.Request) { r.Prompt.Segments[0].Tokens = prompt(256, 1) }, engine.KindContextLength, "messages"},
		{"empty", func(r *engine.Request) { r.Prompt.Segments[0].Tokens = []engine.Token{} }, engine.KindInvalid, "prompt"},
		{"token", func(r *engine.Request) { r.Prompt.Segments[0].Tokens = []engine.Token{5000} }, engine.KindInvalid, "prompt"},
		{"text", func(r *engine.Request) { r.Prompt = engine.TextPrompt("what") }, engine.KindInvalid, "prompt"},
		{"grammar", func(r *engine.Request) { r.Sampling.Grammar = "bad" }, engine.KindInvalid, "grammar"},
		{"temperature", func(r *engine.Request) { r.Sampling.Temperature = -1 }, engine.KindInvalid, "temperature"},
		{"resume token", func(r *engine.Request) { r.Resume = [][]engine.Token{{-5}} }, engine.KindInvalid, "resume"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := request(prompt(5, 1), 3)
			tt.change(&req)
			o := r.result(r.submit(req))
			if o.failed == nil || engine.Kind(o.failed.Kind) != tt.kind || o.failed.Field != tt.field {
				t.Errorf("got %v", o.failed)
			}
		})
	}
	r.drained()
}

func TestNoSlotIsSurvived(t *testing.T) {
	m := newFakeModel(smallConfig())
	m.code = func(step int) batch.Code {
		if step%7 == 3 {
			return batch.CodeNoSlot
		}
		return batch.CodeOK
	}
	r := newRig(t, m)
	var ids []uint64
	for i := range 6 {
		ids = append(ids, r.submit(request(prompt(50, i), 20)))
	}
	for i, id := range ids {
		if o := r.result(id); !slices.Equal(o.tokens[0], truth(prompt(50, i), 20)) {
			t.Errorf("request %d: %v %v", i, o.tokens[0], o.failed)
		}
	}
}

func TestBackendFailureEndsTheLoop(t *testing.T) {
	m := newFakeModel(smallConfig())
	m.code = codeAfter(4, batch.CodeFatal)
	r := newRig(t, m)
	for i := range 8 {
		r.submit(request(prompt(20, i), 50))
	}
	err := <-r.ran
	r.ran <- err
	if !errors.Is(err, ErrBackend) {
		t.Errorf("the loop ended with %v", err)
	}
	r.submit(request(prompt(20, 9), 50)) // too late: nobody takes it, and its samplers are closed all the same
}

// codeAfter says OK for n steps and code from then on.
func codeAfter(n int, code batch.Code) func(int) batch.Code {
	return func(step int) batch.Code {
		if step > n {
			return code
		}
		return batch.CodeOK
	}
}

func TestRefusedStepFailsItsRequestsOnly(t *testing.T) {
	m := newFakeModel(smallConfig())
	m.code = func(step int) batch.Code {
		if step == 5 {
			return batch.CodeInvalid
		}
		return batch.CodeOK
	}
	r := newRig(t, m)
	o := r.result(r.submit(request(prompt(20, 1), 50)))
	if o.finish[0] != "error" || o.err == nil || o.err.Kind != string(engine.KindInternal) {
		t.Errorf("finish %q, error %v", o.finish[0], o.err)
	}
	if o = r.result(r.submit(request(prompt(20, 1), 50))); !slices.Equal(o.tokens[0], truth(prompt(20, 1), 50)) {
		t.Errorf("the next request: %v", o.tokens[0])
	}
}

func TestSessionGoneCancelsItsRequests(t *testing.T) {
	r := newRig(t, newFakeModel(smallConfig()))
	id := r.submit(request(prompt(20, 1), -1))
	r.wait(id, func(o *outcome) bool { return len(o.tokens[0]) > 3 })
	r.l.post(message{kind: msgAnnounce, session: r.s, wire: 99}) // still being prepared
	r.l.post(message{kind: msgGone, session: r.s})
	r.l.post(message{kind: msgFailed, session: r.s, wire: 99})
	if o := r.result(id); o.finish[0] != "cancelled" && o.finish[0] != "length" {
		t.Errorf("finish %q", o.finish[0])
	}
	r.drained()
}

func TestSlowSessionIsHeldNotWaitedFor(t *testing.T) {
	m := newFakeModel(smallConfig())
	l, err := newLoop(m, m.cfg, io.Discard, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	slow := newSession()
	// Fill its queue: nobody sends.
	slow.queued = &enginepb.WorkerFrame{}
	for range holdEvents {
		slow.queued.Events = append(slow.queued.Events, &enginepb.Event{})
	}
	submit := func(s *session, wire uint64) {
		l.handle(&message{kind: msgAnnounce, session: s, wire: wire})
		j, err := prepare(m, request(prompt(10, int(wire)), 200), l.context)
		if err != nil {
			t.Fatal(err)
		}
		j.id, j.wire, j.session = batch.JobID(l.ids.Add(1)), wire, s
		l.handle(&message{kind: msgSubmit, session: s, wire: wire, job: j})
	}
	quick := newSession()
	submit(slow, 1)
	submit(quick, 2)
	for range 40 {
		if _, err := l.oneStep(); err != nil {
			t.Fatal(err)
		}
		l.flush()
		quick.take()
	}
	if !slow.held || quick.held {
		t.Fatalf("held: slow %v, quick %v", slow.held, quick.held)
	}
	n := len(slow.queued.Events)
	for range 20 {
		if _, err := l.oneStep(); err != nil {
			t.Fatal(err)
		}
		l.flush()
		quick.take()
	}
	if len(slow.queued.Events) != n {
		t.Error("a held session still makes events")
	}
	l.handle(&message{kind: msgSent, session: slow})
	slow.take()
	for range 3 {
		if _, err := l.oneStep(); err != nil {
			t.Fatal(err)
		}
		l.flush()
	}
	if f := slow.take(); f == nil || len(f.Events) == 0 {
		t.Error("it does not go on after the frame was sent")
	}
	l.closeAll()
}

func TestSelfTest(t *testing.T) {
	cfg := smallConfig()
	m := newFakeModel(cfg)
	features, _, err := selfTest(m, &cfg)
	if err != nil || len(features) != 4 || cfg.NoCopy || cfg.NoTrim || cfg.NoPad || cfg.Parking != 16 {
		t.Fatalf("%v %v %+v", features, err, cfg)
	}
	for _, f := range features {
		if !f.On {
			t.Errorf("%s is off: %s", f.Name, f.Reason)
		}
	}
	m.copyLost = true
	features, _, err = selfTest(m, &cfg)
	if err != nil || !cfg.NoCopy || features[0].On || features[0].Reason == "" {
		t.Errorf("a lost copy went unnoticed: %v %v", features, err)
	}
	// Without copies everything still comes out right.
	m.copyLost = false
	m.cfg = cfg
	r := newRig(t, m)
	p := prompt(60, 2)
	req := request(p, 10)
	req.N = 3
	for range 2 {
		o := r.result(r.submit(req))
		for c := range int64(3) {
			if !slices.Equal(o.tokens[c], truth(p, 10)) {
				t.Errorf("choice %d: %v", c, o.tokens[c])
			}
		}
	}
}

func TestWarmUpRunsEveryShape(t *testing.T) {
	m := newFakeModel(batch.Config{Cells: 4096, Context: 1024, Sequences: 8, Parking: 8, Chunk: 128, Outputs: 8})
	m.async = true
	var seen []string
	m.decode = func(rows []batch.Row) {
		d, p := 0, 0
		for _, r := range rows {
			if r.Kind == batch.RowDecode {
				d++
			} else {
				p++
			}
		}
		seen = append(seen, fmt.Sprint(d, "+", p))
	}
	var last float64
	costs, w, err := warmUp(t.Context(), m, m.cfg, time.Now().Add(time.Minute), 0, false, testLog(t), func(f float64) { last = f })
	if err != nil || last != 1 || m.sim.Used() != 0 || len(w.missed) > 0 {
		t.Fatalf("%v, progress %g", err, last)
	}
	for _, s := range batch.WarmupShapes(m.cfg) {
		if n := strings.Count(strings.Join(seen, " ")+" ", fmt.Sprint(s.Decode, "+", s.Prefill, " ")); n == 0 {
			t.Errorf("%+v was not run", s)
		}
	}
	spans := map[int]int{} // of a decode step: two for each
	for _, c := range costs {
		if c.shape.Prefill == 0 {
			spans[c.shape.Decode]++
		}
	}
	for d, n := range spans {
		if n != 2 {
			t.Errorf("%d decode rows were measured at %d spans", d, n)
		}
	}
}

// A window cache has room for the windows and one evaluation, so only one sequence is given a long context: prompts run behind it, too.
func TestWarmUpFitsWindows(t *testing.T) {
	for _, layout := range []batch.Layout{batch.LayoutUnified, batch.LayoutStreams} {
		for _, window := range []int{8, 64, 500} {
			cfg := batch.Config{Layout: layout, Cells: 8192, Context: 2048, Sequences: 4, Parking: 8, Chunk: 256, Outputs: 4, Window: window}
			if cfg.WindowCells = window + cfg.Chunk; layout == batch.LayoutUnified {
				cfg.WindowCells = 4*window + cfg.Chunk
			}
			m := newFakeModel(cfg) // kvsim refuses what llama.cpp would
			m.async = true
			costs, _, err := warmUp(t.Context(), m, m.cfg, time.Now().Add(time.Minute), 0, false, testLog(t), func(float64) {})
			if err != nil {
				t.Errorf("%s, window %d: %v", layout, window, err)
			}
			deep := 0
			for _, c := range costs {
				if c.span > cfg.Context/2 {
					deep++
				}
			}
			if deep < 3 {
				t.Errorf("%s, window %d: %d shapes behind a long context", layout, window, deep)
			}
		}
	}
}

// What start-up has no time for is run while the model is idle, and not while there is something in its memory.
func TestWarmUpEndsInTimeAndGoesOnLater(t *testing.T) {
	m := newFakeModel(batch.Config{Cells: 4096, Context: 1024, Sequences: 8, Parking: 8, Chunk: 128, Outputs: 8})
	m.async = true
	costs, w, err := warmUp(t.Context(), m, m.cfg, time.Now().Add(-time.Second), 0, false, testLog(t), func(float64) {})
	if err != nil || len(costs) < essential || len(costs) > 2*essential || len(w.missed) < len(batch.WarmupShapes(m.cfg)) {
		t.Fatalf("%d shapes after the end, %v", len(costs), err)
	}
	l, err := newLoop(m, m.cfg, io.Discard, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	l.later = w
	deep := 0
	for _, x := range w.missed {
		if x.deep {
			deep++
		}
	}
	if left := len(w.missed); deep == 0 || deep == left {
		t.Errorf("%d of %d shapes are deep", deep, left)
	}
	l.post(message{kind: msgSent, session: newSession()}) // something to do
	if more, err := l.warmLater(); err != nil || !more || len(w.missed) == 0 || m.sim.Used() != 0 {
		t.Fatalf("%v %v, %d left, %d cells in use", more, err, len(w.missed), m.sim.Used())
	}
	<-l.wake
	if more, err := l.warmLater(); err != nil || !more || len(w.missed) != 0 || m.sim.Used() != 0 || l.later != nil {
		t.Fatalf("%v %v, %d left, %d cells in use", more, err, len(w.missed), m.sim.Used())
	}
	l.later = w
	w.missed = []later{{shape: batch.Shape{Decode: 1}}}
	l.sessions[newSession()] = 1
	if more, err := l.warmLater(); more || err != nil || len(w.missed) != 1 {
		t.Errorf("a request waits, %v %v", more, err)
	}
}

// Where compilations take long, those behind a long context are left for later as well.
func TestWarmUpLeavesLongContextsForLater(t *testing.T) {
	for _, c := range []struct {
		compiled time.Duration
		deep     bool
	}{{4 * time.Second, true}, {8 * time.Second, false}} {
		m := newFakeModel(batch.Config{Cells: 4096, Context: 1024, Sequences: 8, Parking: 8, Chunk: 128, Outputs: 8})
		m.async = true
		costs, w, err := warmUp(t.Context(), m, m.cfg, time.Now(), c.compiled, false, testLog(t), func(float64) {})
		if err != nil {
			t.Fatal(err)
		}
		deep := 0
		for _, x := range costs {
			if x.span > x.shape.Rows() {
				deep++
			}
		}
		if (deep > 0) != c.deep || len(costs) < essential || len(w.missed) == 0 {
			t.Errorf("after a compilation of %v: %d shapes, %d behind a long context, %d missed", c.compiled, len(costs), deep, len(w.missed))
		}
	}
}

// The prefix that an answer left goes for a shape that is still to be warmed up, and answers stay right.
func TestWarmUpBetweenAnswers(t *testing.T) {
	m := newFakeModel(batch.Config{Cells: 4096, Context: 1024, Sequences: 8, Parking: 8, Chunk: 128, Outputs: 8})
	m.async = true
	l, err := newLoop(m, m.cfg, io.Discard, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	_, w, err := warmUp(t.Context(), m, m.cfg, time.Now().Add(-time.Second), 0, false, testLog(t), func(float64) {})
	if err != nil {
		t.Fatal(err)
	}
	l.later, l.quiet = w, 10*time.Millisecond
	t.Cleanup(func() { // behind newRigOf's, which ends the loop
		if len(w.missed) != 0 {
			t.Errorf("%d shapes were left in spite of idle time", len(w.missed))
		}
	})
	warm := make(chan struct{})
	l.log = slog.New(watchLog{l.log.Handler(), "all shapes are warmed up", func() { close(warm) }})
	r := newRigOf(t, m, l)
	p := prompt(60, 2)
	for range 2 {
		o := r.result(r.submit(request(p, 10)))
		if !slices.Equal(o.tokens[0], truth(p, 10)) {
			t.Errorf("%v", o.tokens[0])
		}
		<-warm
	}
}

// watchLog calls back when a message is logged.
type watchLog struct {
	slog.Handler
	message string
	seen    func()
}

func (w watchLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == w.message {
		w.seen()
	}
	return w.Handler.Handle(ctx, r)
}

func TestRehearsalFitsEveryConfig(t *testing.T) {
	for _, cfg := range []batch.Config{
		smallConfig(),
		{Cells: 256, Context: 256, Sequences: 32, Chunk: 32, Outputs: 32},
		{Cells: 256, Context: 256, Sequences: 1, Chunk: 64, Outputs: 1},
		{Layout: batch.LayoutStreams, Context: 64, Sequences: 4, Chunk: 64, Outputs: 4},
		{Cells: 1024, Context: 512, Sequences: 4, Chunk: 16, Outputs: 4, Recurrent: true},
		{Cells: 8192, Context: 4096, Sequences: 8, Parking: 8, Chunk: 512, Outputs: 8},
	} {
		m := newFakeModel(cfg) // kvsim refuses what llama.cpp would
		if err := rehearse(t.Context(), m, cfg, nil, time.Now().Add(time.Minute)); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
