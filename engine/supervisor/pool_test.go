package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hearth/engine"
	"hearth/engine/enginepb"
)

// memory is a launcher without processes: workers live in the test, which decides when loads end and what they say.
type memory struct {
	mu       sync.Mutex
	load     time.Duration // how long a load takes
	fail     error
	launched []string // plan labels, in order
	live     map[*memWorker]bool
	last     *memWorker
}

func (l *memory) launch(ctx context.Context, plan *Plan, on hooks) (worker, error) {
	l.mu.Lock()
	l.launched = append(l.launched, plan.Label)
	wait, fail := l.load, l.fail
	l.mu.Unlock()
	on.started(1)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if fail != nil {
		return nil, fail
	}
	w := &memWorker{l: l, name: plan.Spec.Name, on: on, gone: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live == nil {
		l.live = map[*memWorker]bool{}
	}
	l.live[w], l.last = true, w
	return w, nil
}

func (l *memory) close() {}

func (l *memory) worker() *memWorker {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *memory) names() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for w := range l.live {
		out = append(out, w.name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

type memWorker struct {
	l    *memory
	name string
	on   hooks
	gone chan struct{}

	mu        sync.Mutex
	how       exit
	submitted []engine.Request
	ids       []uint64
	cancelled []uint64
}

func (w *memWorker) info() engine.Info { return engine.Info{Name: w.name} }
func (w *memWorker) pid() int          { return 1 }
func (w *memWorker) submit(id uint64, r *engine.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.submitted, w.ids = append(w.submitted, *r), append(w.ids, id)
	return nil
}

func (w *memWorker) cancel(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancelled = append(w.cancelled, id)
}

func (w *memWorker) tokenize(context.Context, engine.Prompt) ([]engine.Token, error) {
	return []engine.Token{1}, nil
}
func (w *memWorker) detokenize(context.Context, []engine.Token) ([]byte, error) { return nil, nil }
func (w *memWorker) embed(context.Context, engine.EmbedRequest) (engine.EmbedResult, error) {
	return engine.EmbedResult{}, nil
}
func (w *memWorker) health(context.Context) (health, error) { return health{}, nil }
func (w *memWorker) done() <-chan struct{}                  { return w.gone }
func (w *memWorker) end() exit                              { return w.how }
func (w *memWorker) kill(why string)                        { w.die(exit{code: -1, killed: why}) }
func (w *memWorker) stop(time.Duration)                     { w.die(exit{}) }

func (w *memWorker) die(how exit) {
	w.l.mu.Lock()
	was := w.l.live[w]
	delete(w.l.live, w)
	w.l.mu.Unlock()
	if was {
		w.how = how
		close(w.gone)
	}
}

// say delivers one event of the worker's newest request.
func (w *memWorker) say(ev engine.Event) {
	w.mu.Lock()
	id := w.ids[len(w.ids)-1]
	w.mu.Unlock()
	w.on.frame(&enginepb.WorkerFrame{Events: []*enginepb.Event{enginepb.FromEvent(id, &ev)}})
}

// anyModel resolves every name but "unknown"; "x/y" is an alias of "y".
type anyModel struct{ needs map[string]uint64 }

func (a anyModel) Resolve(_ context.Context, name string) (Plan, error) {
	if name == "unknown" {
		return Plan{}, &engine.Error{Kind: engine.KindNotFound, Message: "unknown"}
	}
	_, base, ok := strings.Cut(name, "/")
	if !ok {
		base = name
	}
	p := Plan{Label: "first", Spec: engine.LoadSpec{Name: base, Path: "f"}}
	p.Fallbacks = []Plan{{Label: "second", Spec: p.Spec}}
	if n := a.needs[base]; n > 0 {
		p.Needs = []Need{{Device: "gpu", Bytes: n}}
	}
	return p, nil
}

// inBubble runs fn with a pool over memory under a fake clock, and closes the pool.
func inBubble(t *testing.T, cfg Config, r Resolver, fn func(t *testing.T, p *Pool, l *memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &memory{}
		p := newPool(cfg, r, l)
		fn(t, p, l)
		p.Close()
		if n := l.names(); n != "" {
			t.Errorf("workers left after Close: %s", n)
		}
	})
}

func use(t *testing.T, p *Pool, name string) (engine.Model, func()) {
	t.Helper()
	m, release, err := p.Acquire(t.Context(), name)
	if err != nil {
		t.Fatalf("acquire %s: %v", name, err)
	}
	return m, release
}

func TestIdleModelExpires(t *testing.T) {
	inBubble(t, Config{KeepAlive: time.Minute}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		_, release := use(t, p, "a")
		advance(2 * time.Minute)
		synctest.Wait()
		if l.names() != "a" {
			t.Fatal("a model in use was unloaded")
		}
		release()
		release() // a second call must not count
		if e := p.Status()[0].Expires; !e.Equal(time.Now().Add(time.Minute)) {
			t.Errorf("expires %v", e)
		}
		advance(59 * time.Second)
		_, release = use(t, p, "x/a") // an alias keeps it, too
		release()
		advance(59 * time.Second)
		synctest.Wait()
		if l.names() != "a" || len(l.launched) != 1 {
			t.Fatalf("live %q, launched %q", l.names(), l.launched)
		}
		advance(2 * time.Second)
		synctest.Wait()
		if l.names() != "" || len(p.Status()) != 0 {
			t.Errorf("still there: %q", l.names())
		}
		_, release = use(t, p, "a")
		if !p.KeepAlive("a", -1) || p.KeepAlive("b", 1) {
			t.Error("KeepAlive mistook which model is resident")
		}
		release()
		advance(24 * time.Hour)
		synctest.Wait()
		if l.names() != "a" {
			t.Error("a model kept for good was unloaded")
		}
		p.KeepAlive("a", 0)
		synctest.Wait()
		if l.names() != "" {
			t.Error("keep-alive zero does not unload")
		}
	})
}

func TestLeastRecentlyUsedIdleModelMakesRoom(t *testing.T) {
	inBubble(t, Config{MaxResident: 2, KeepAlive: -1}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		_, ra := use(t, p, "a")
		_, rb := use(t, p, "b")
		advance(time.Second)
		ra()
		advance(time.Second)
		rb()
		_, rc := use(t, p, "c")
		if l.names() != "b c" {
			t.Errorf("live %q, want b c", l.names())
		}
		// b idle, c in use: d takes b's place, then e must wait for somebody to let go.
		_, rd := use(t, p, "d")
		if l.names() != "c d" {
			t.Errorf("live %q, want c d", l.names())
		}
		got := make(chan error, 1)
		go func() {
			_, re, err := p.Acquire(t.Context(), "e")
			if err == nil {
				re()
			}
			got <- err
		}()
		synctest.Wait()
		select {
		case err := <-got:
			t.Fatalf("e did not wait: %v", err)
		default:
		}
		rc()
		if err := <-got; err != nil || l.names() != "d e" {
			t.Errorf("%v, live %q", err, l.names())
		}
		rd()
	})
}

func TestNoRoomIsUnavailableAfterTheTimeout(t *testing.T) {
	cfg := Config{MaxResident: 1, AcquireTimeout: time.Minute}
	inBubble(t, cfg, anyModel{}, func(t *testing.T, p *Pool, _ *memory) {
		_, release := use(t, p, "a")
		defer release()
		began := time.Now()
		_, _, err := p.Acquire(t.Context(), "b")
		e, ok := errors.AsType[*engine.Error](err)
		if !ok || e.Kind != engine.KindUnavailable || e.RetryAfter == 0 || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := p.Acquire(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ctx's end came back as %v", err)
		}
		if _, _, err := p.Acquire(t.Context(), "unknown"); engine.KindOf(err) != engine.KindNotFound {
			t.Errorf("unknown: %v", err)
		}
	})
}

func TestMemoryMakesRoom(t *testing.T) {
	cfg := Config{MaxResident: 9, KeepAlive: -1, Capacity: func(string) (uint64, bool) { return 10, true }}
	r := anyModel{needs: map[string]uint64{"a": 4, "b": 5, "c": 6, "big": 99}}
	inBubble(t, cfg, r, func(t *testing.T, p *Pool, l *memory) {
		for _, name := range []string{"a", "b", "cpu"} {
			_, release := use(t, p, name)
			release()
			advance(time.Second)
		}
		_, release := use(t, p, "c") // 4+5+6 > 10, 5+6 > 10: a goes, then b
		release()
		if l.names() != "c cpu" {
			t.Errorf("live %q, want c cpu", l.names())
		}
		_, release = use(t, p, "big") // more than the card has: alone, and at its own risk
		release()
		if l.names() != "big" {
			t.Errorf("live %q, want big", l.names())
		}
	})
}

func TestLoadTimeoutKeepsTheLoad(t *testing.T) {
	inBubble(t, Config{AcquireTimeout: time.Minute}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		l.load = 90 * time.Second
		if _, _, err := p.Acquire(t.Context(), "a"); engine.KindOf(err) != engine.KindUnavailable {
			t.Fatalf("got %v", err)
		}
		_, release := use(t, p, "a")
		release()
		if len(l.launched) != 1 {
			t.Errorf("the load was started %d times", len(l.launched))
		}
	})
}

func TestCrashesBackOffFallBackAndGiveUp(t *testing.T) {
	cfg := Config{MaxCrashes: 4, FaultsBeforeFallback: 2}
	inBubble(t, cfg, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		m, release := use(t, p, "a")
		defer release()
		crash := func(e exit) time.Duration {
			began := time.Now()
			w := l.worker()
			w.die(e)
			synctest.Wait()
			for l.worker() == w && p.Status()[0].State != StateFailed {
				advance(10 * time.Millisecond)
				synctest.Wait()
			}
			return time.Since(began)
		}
		fault := exit{code: enginepb.ExitBackendFault}
		if d := crash(fault); d != 0 {
			t.Errorf("first restart after %s", d)
		}
		if crash(fault); !slices.Equal(l.launched, []string{"first", "first", "second"}) {
			t.Fatalf("launched %q", l.launched)
		}
		st := p.Status()[0]
		if st.Fallbacks != 1 || st.Plan != "second" || st.Faults != 2 {
			t.Errorf("status %+v", st)
		}
		outside := exit{code: -1, signal: 9}
		var got []time.Duration
		for range 3 {
			got = append(got, crash(outside))
		}
		if want := []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond}; !slices.Equal(got, want) {
			t.Errorf("pauses %v, want %v", got, want)
		}
		advance(time.Hour) // healthy for long: the row starts again
		if d := crash(outside); d != 0 {
			t.Errorf("after a healthy hour the restart took %s", d)
		}
		for range 3 {
			crash(outside)
		}
		if st := p.Status()[0]; st.State != StateFailed {
			t.Fatalf("state %s", st.State)
		}
		if _, err := m.Generate(t.Context(), ask("x", 1, 1)); engine.KindOf(err) != engine.KindUnavailable {
			t.Errorf("generate on a failed model: %v", err)
		}
		_, _, err := p.Acquire(t.Context(), "a")
		if e, ok := errors.AsType[*engine.Error](err); !ok || e.Kind != engine.KindUnavailable || e.RetryAfter <= 0 {
			t.Errorf("acquire of a failed model: %v", err)
		}
		advance(31 * time.Second)
		_, again := use(t, p, "a")
		again()
	})
}

func TestNewRequestsWaitForARestartUpToABound(t *testing.T) {
	inBubble(t, Config{RestartWait: 10 * time.Second}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		m, release := use(t, p, "a")
		defer release()
		l.mu.Lock()
		l.load = 15 * time.Second
		l.mu.Unlock()
		l.worker().die(exit{code: -1, signal: 9})
		synctest.Wait()
		began := time.Now()
		_, err := m.Generate(t.Context(), ask("x", 1, 1))
		if e, ok := errors.AsType[*engine.Error](err); !ok || e.Kind != engine.KindUnavailable || e.RetryAfter == 0 {
			t.Errorf("got %v", err)
		}
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("waited %s", d)
		}
		s, err := m.Generate(t.Context(), ask("x", 1, 1))
		if err != nil || time.Since(began) != 15*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		s.Close()
		if w := l.worker(); len(w.cancelled) != 1 {
			t.Error("the worker was not told of the cancel")
		}
	})
}

// TestSeedCanBeSentAgain: a reply says its seed, and JavaScript's numbers have 53 bits.
func TestSeedCanBeSentAgain(t *testing.T) {
	for range 100 {
		if seed := randomSeed(); seed >= 1<<53 {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestReplayCarriesJournalAndSeed(t *testing.T) {
	inBubble(t, Config{}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		m, release := use(t, p, "a")
		defer release()
		s, err := m.Generate(t.Context(), ask("x", 2, 9))
		if err != nil {
			t.Fatal(err)
		}
		w1 := l.worker()
		w1.say(engine.Event{Choice: 0, Tokens: []engine.Token{5, 6}, Text: "ab"})
		w1.say(engine.Event{Choice: 1, Tokens: []engine.Token{7}, Text: "c", Finish: engine.FinishStop})
		w1.die(exit{code: -1, signal: 9})
		synctest.Wait()
		w2 := l.worker()
		if w1 == w2 || len(w2.submitted) != 1 {
			t.Fatal("not replayed")
		}
		r := w2.submitted[0]
		if fmt.Sprint(r.Resume) != "[[5 6] [7]]" || *r.Sampling.Seed != *w1.submitted[0].Sampling.Seed {
			t.Errorf("resume %v, seeds %d %d", r.Resume, *r.Sampling.Seed, *w1.submitted[0].Sampling.Seed)
		}
		w2.say(engine.Event{Choice: 1, Finish: engine.FinishStop}) // the reader has seen this
		w2.say(engine.Event{Choice: 0, Tokens: []engine.Token{8}, Text: "d", Finish: engine.FinishLength})
		w2.say(engine.Event{Choice: 1, Usage: &engine.Usage{CompletionTokens: 4}})
		var finishes []engine.FinishReason
		var text string
		for {
			ev, err := s.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			text += ev.Text
			if ev.Finish != "" {
				finishes = append(finishes, ev.Finish)
			}
		}
		if text != "abcd" || !slices.Equal(finishes, []engine.FinishReason{engine.FinishStop, engine.FinishLength}) {
			t.Errorf("text %q, finishes %v", text, finishes)
		}
		if n := p.Status()[0].Requests; n != 0 {
			t.Errorf("%d requests are still booked", n)
		}
	})
}

func TestOnlyWhatAWorkerWorkedOnIsBlamed(t *testing.T) {
	inBubble(t, Config{}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		m, release := use(t, p, "a")
		defer release()
		generate := func(prompt string) engine.Stream {
			s, err := m.Generate(t.Context(), ask(prompt, 1, 9))
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		bad, waiting := generate("bad"), generate("waiting")
		for range 2 { // neither worker lives to send a frame
			l.worker().on.note([]uint64{1, 2}, true)
			l.worker().on.note([]uint64{2}, false)
			l.worker().die(exit{code: -1, signal: 6})
			advance(time.Second)
			synctest.Wait()
		}
		if _, err := bad.Next(t.Context()); engine.KindOf(err) != engine.KindInternal {
			t.Errorf("the request that both workers died of ended with %v", err)
		}
		w := l.worker()
		if len(w.ids) != 1 || w.ids[0] != 2 {
			t.Fatalf("the third worker got the requests %v, want [2]", w.ids)
		}
		w.say(engine.Event{Tokens: []engine.Token{5}, Text: "x", Finish: engine.FinishStop, Usage: &engine.Usage{}})
		if ev, err := waiting.Next(t.Context()); err != nil || ev.Text != "x" {
			t.Errorf("the request that only waited: %+v, %v", ev, err)
		}
		if st := p.Status()[0]; st.Restarts != 2 {
			t.Errorf("%d restarts, want 2", st.Restarts)
		}
	})
}

func TestSlowReaderCostsTextNotEvents(t *testing.T) {
	inBubble(t, Config{}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		m, release := use(t, p, "a")
		defer release()
		s, err := m.Generate(t.Context(), ask("x", 1, -1))
		if err != nil {
			t.Fatal(err)
		}
		w := l.worker()
		for range 1000 {
			w.say(engine.Event{Tokens: []engine.Token{1}, Text: "ab"})
		}
		w.say(engine.Event{Tokens: []engine.Token{2}, Text: "!", Finish: engine.FinishStop, Usage: &engine.Usage{CompletionTokens: 1001}})
		q := s.(*request)
		if n := len(q.unread); n != looseEvents+1 {
			t.Errorf("%d buffered events", n)
		}
		text, toks, u, err := read(t.Context(), s, 1)
		if err != nil || text[0] != strings.Repeat("ab", 1000)+"!" || len(toks[0]) != 1001 || u == nil {
			t.Errorf("%d bytes, %d tokens, %v, %v", len(text[0]), len(toks[0]), u, err)
		}
		if q.bytes != 0 {
			t.Errorf("the account of unread bytes ends at %d", q.bytes)
		}

		// A reader that never reads is cut off, and the worker told.
		if s, err = m.Generate(t.Context(), ask("y", 1, -1)); err != nil {
			t.Fatal(err)
		}
		for range 6 {
			w.say(engine.Event{Text: strings.Repeat("z", 1<<20)})
		}
		if _, _, _, err = read(t.Context(), s, 1); engine.KindOf(err) != engine.KindCancelled {
			t.Errorf("got %v", err)
		}
		if len(w.cancelled) != 1 {
			t.Error("the worker was not told")
		}
	})
}

func TestStopWhileLoading(t *testing.T) {
	inBubble(t, Config{}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		l.load = time.Hour
		got := make(chan error, 1)
		go func() {
			_, _, err := p.Acquire(t.Context(), "a")
			got <- err
		}()
		synctest.Wait()
		p.Close()
		if err := <-got; engine.KindOf(err) != engine.KindUnavailable {
			t.Errorf("got %v", err)
		}
		if _, _, err := p.Acquire(t.Context(), "a"); engine.KindOf(err) != engine.KindUnavailable {
			t.Errorf("acquire after Close: %v", err)
		}
	})
}

func TestHungRule(t *testing.T) {
	for _, tt := range []struct {
		age, predicted time.Duration
		want           bool
	}{
		{time.Second, time.Millisecond, false}, // younger than the limit
		{31 * time.Second, time.Millisecond, true},
		{31 * time.Second, 4 * time.Second, false}, // less than ten times the prediction
		{41 * time.Second, 4 * time.Second, true},
		{time.Minute, 0, false}, // no prediction: pipelines may compile
		{6 * time.Minute, 0, true},
	} {
		if got := (health{stepAge: tt.age, predicted: tt.predicted}).hung(30 * time.Second); got != tt.want {
			t.Errorf("age %s, predicted %s: %v", tt.age, tt.predicted, got)
		}
	}
}

func TestLastWords(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"one\n\ntwo \n":        "two",
		"a\npanic: b\n\ngor\n": "panic: b",
		"ggml.c:1: GGML_ASSERT(x) failed\nSIGABRT: abort\nPC=0x1 m=0\n\ngoroutine 1 [running]:\nmain()\nrip 0\n": "ggml.c:1: GGML_ASSERT(x) failed",
	} {
		if got := lastWords(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	tl := &tail{log: slog.New(slog.DiscardHandler)}
	for range 5000 {
		fmt.Fprintf(tl, "%s\n", strings.Repeat("x", 99))
	}
	fmt.Fprint(tl, "end")
	if s := tl.String(); len(s) != tailBytes || !strings.HasSuffix(s, "x\nend") {
		t.Errorf("kept %d bytes ending %q", len(s), s[len(s)-10:])
	}
}

// advance moves the bubble's clock by d.
func advance(d time.Duration) { <-time.After(d) }

func TestStdoutLines(t *testing.T) {
	var got []uint64
	rest := &tail{log: slog.New(slog.DiscardHandler)}
	var working []bool
	s := newStdout(rest, func(ids []uint64, w bool) { got, working = append(got, ids...), append(working, w) })
	text := "hello\nadmitted 1 2\nqueued 18446744073709551615\nsome noise\nadmitted x\nadmit" // the last one never ends
	for i := range len(text) {                                                                // however the pipe cuts it
		fmt.Fprint(s, text[i:i+1])
	}
	if l := <-s.line; l != "hello" {
		t.Errorf("first line %q", l)
	}
	if !slices.Equal(got, []uint64{1, 2, 1<<64 - 1}) || !slices.Equal(working, []bool{true, false}) {
		t.Errorf("notes %v %v", got, working)
	}
	if rest.String() != "some noise\nadmitted x\n" {
		t.Errorf("the rest is %q", rest.String())
	}
	fmt.Fprint(s, strings.Repeat("z", 3*maxLine)) // a line without end is not kept
	if n := len(s.buf); n > maxLine {
		t.Errorf("%d bytes are kept", n)
	}
}
