package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"hearth/engine"
)

func ignoreTerm() { signal.Ignore(syscall.SIGTERM) }

// fakes is a Resolver of fake workers: model name -> options of its plans.
type fakes struct {
	t     *testing.T
	plans map[string][][]string
}

func (f *fakes) Resolve(_ context.Context, name string) (Plan, error) {
	opts, ok := f.plans[name]
	if !ok {
		return Plan{}, &engine.Error{Kind: engine.KindNotFound, Message: "no model " + name}
	}
	var plans []Plan
	for i, o := range opts {
		plans = append(plans, fakePlan(f.t, name, fmt.Sprintf("plan%d", i), o...))
	}
	p := plans[0]
	p.Fallbacks = plans[1:]
	return p, nil
}

func fakePlan(t *testing.T, name, label string, opts ...string) Plan {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Plan{
		Label: label, Spec: engine.LoadSpec{Name: name, Path: "/dev/null", Backend: "cpu"},
		Launch: func(args ...string) Command {
			return Command{Path: self, Argv: append(append([]string{self, "fakeworker"}, opts...), args...)}
		},
	}
}

// quick makes waits short enough for tests; each is still far longer than what it bounds on a loaded machine.
func quick(t *testing.T) Config {
	return Config{
		RuntimeDir: t.TempDir(), Env: []string{"PATH=/usr/bin:/bin"}, HealthEvery: 20 * time.Millisecond, Watchdog: 20 * time.Second,
		StopGrace: 2 * time.Second, StartTimeout: 20 * time.Second, AcquireTimeout: 60 * time.Second,
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func newTestPool(t *testing.T, cfg Config, plans map[string][][]string) *Pool {
	t.Helper()
	p, err := New(cfg, &fakes{t: t, plans: plans})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		if left, _ := os.ReadDir(cfg.RuntimeDir); len(left) != 0 {
			t.Errorf("%d socket folders were left behind", len(left))
		}
	})
	return p
}

func acquire(t *testing.T, p *Pool, name string) engine.Model {
	t.Helper()
	m, release, err := p.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return m
}

func ask(prompt string, n, tokens int) engine.Request {
	return engine.Request{ID: prompt, Prompt: engine.TextPrompt(prompt), N: n, MaxTokens: tokens}
}

// read drains a stream: text and tokens per choice, the usage, and how it ended.
func read(ctx context.Context, s engine.Stream, choices int) (text []string, tokens [][]engine.Token, u *engine.Usage, err error) {
	text, tokens = make([]string, choices), make([][]engine.Token, choices)
	for {
		ev, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return text, tokens, u, nil
		}
		if err != nil {
			return text, tokens, u, err
		}
		text[ev.Choice] += ev.Text
		tokens[ev.Choice] = append(tokens[ev.Choice], ev.Tokens...)
		if ev.Usage != nil {
			u = ev.Usage
		}
	}
}

// await returns the status of the pool's only model once ok holds.
func await(t *testing.T, p *Pool, ok func(Status) bool) Status {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		st := p.Status()[0]
		if ok(st) {
			return st
		}
		select {
		case <-changed:
		case <-limit.C:
			t.Fatalf("after a minute the status is %+v", st)
		}
	}
}

func wantText(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d ", i)
	}
	return b.String()
}

func TestGenerateOverAProcess(t *testing.T) {
	p := newTestPool(t, quick(t), map[string][][]string{"m": {{}}})
	m := acquire(t, p, "m")
	if i := m.Info(); i.Name != "m" || i.Context != 1024 || i.Device.Name != "Fake0" {
		t.Errorf("info %+v", i)
	}
	s, err := m.Generate(t.Context(), ask("hello", 2, 50))
	if err != nil {
		t.Fatal(err)
	}
	text, tokens, u, err := read(t.Context(), s, 2)
	if err != nil || text[0] != wantText(50) || text[1] != wantText(50) || tokens[1][49] != 249 || u == nil || u.CompletionTokens != 100 {
		t.Errorf("got %q %v %v %v", text, tokens, u, err)
	}
	toks, err := m.Tokenize(t.Context(), engine.TextPrompt("four"))
	if err != nil || !slices.Equal(toks, []engine.Token{4, 1}) {
		t.Errorf("tokenize: %v %v", toks, err)
	}
	if b, err := m.Detokenize(t.Context(), []engine.Token{7}); err != nil || string(b) != "[7]" {
		t.Errorf("detokenize: %q %v", b, err)
	}
	if _, err := m.Tokenize(t.Context(), engine.TextPrompt("bad")); engine.KindOf(err) != engine.KindInvalid {
		t.Errorf("a typed error came back as %v", err)
	}
	st := p.Status()
	if len(st) != 1 || st[0].State != StateReady || st[0].PID == 0 || st[0].Plan != "plan0" || st[0].InUse != 1 {
		t.Errorf("status %+v", st)
	}
}

func TestStreamContinuesAfterCrash(t *testing.T) {
	for _, how := range []string{"abort", "kill", "fault"} {
		t.Run(how, func(t *testing.T) {
			lives := filepath.Join(t.TempDir(), "lives")
			p := newTestPool(t, quick(t), map[string][][]string{"m": {{"lives=" + lives, "crash=25@1", "how=" + how}}})
			m := acquire(t, p, "m")
			s, err := m.Generate(t.Context(), ask("hello", 2, 40))
			if err != nil {
				t.Fatal(err)
			}
			text, tokens, u, err := read(t.Context(), s, 2)
			if err != nil {
				t.Fatal(err)
			}
			for c := range 2 {
				if text[c] != wantText(40) {
					t.Errorf("choice %d: text %q", c, text[c])
				}
				for i, tok := range tokens[c] {
					if tok != engine.Token(100*(c+1)+i) {
						t.Fatalf("choice %d: token %d is %d", c, i, tok)
					}
				}
			}
			if u == nil || u.CompletionTokens != 80 {
				t.Errorf("usage %+v", u)
			}
			st := p.Status()[0]
			if st.Restarts != 1 || !strings.Contains(st.Stderr, "Memory access fault") || st.LastError == "" {
				t.Errorf("status %+v", st)
			}
			if want := map[string]int{"abort": 1, "kill": 0, "fault": 1}[how]; st.Faults != want {
				t.Errorf("%d faults, want %d (%s)", st.Faults, want, st.LastError)
			}
		})
	}
}

func TestACallThatMeetsTheClosingConnectionIsNotCancelled(t *testing.T) {
	closing := status.Error(codes.Canceled, "grpc: the client connection is closing")
	if kind := engine.KindOf(callError(t.Context(), closing)); kind != engine.KindUnavailable {
		t.Errorf("kind %q, want unavailable: the call is worth making again", kind)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if kind := engine.KindOf(callError(ctx, closing)); kind != engine.KindCancelled {
		t.Errorf("kind %q after the caller gave up, want cancelled", kind)
	}
}

func TestKilledFromOutsideIdle(t *testing.T) {
	lives := filepath.Join(t.TempDir(), "lives")
	p := newTestPool(t, quick(t), map[string][][]string{"m": {{"lives=" + lives}}})
	m := acquire(t, p, "m")
	if err := syscall.Kill(p.Status()[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Whether the call meets the dying worker, the gap, or the next one: it is answered by the second life.
	for {
		toks, err := m.Tokenize(t.Context(), engine.TextPrompt("four"))
		if err != nil {
			t.Fatal(err)
		}
		if toks[1] == 2 {
			return
		}
	}
}

func TestCallIsRepeatedOnTheNextWorker(t *testing.T) {
	lives := filepath.Join(t.TempDir(), "lives")
	p := newTestPool(t, quick(t), map[string][][]string{"m": {{"lives=" + lives, "tokcrash=1@1"}}})
	toks, err := acquire(t, p, "m").Tokenize(t.Context(), engine.TextPrompt("crash"))
	if err != nil || toks[1] != 2 {
		t.Errorf("got %v %v", toks, err)
	}
}

func TestPoisonedRequestIsFailedAndRefused(t *testing.T) {
	p := newTestPool(t, quick(t), map[string][][]string{"m": {{}}})
	m := acquire(t, p, "m")
	s, err := m.Generate(t.Context(), ask("crash", 1, 3))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := read(t.Context(), s, 1); engine.KindOf(err) != engine.KindInternal {
		t.Fatalf("got %v", err)
	}
	again := ask("crash", 1, 3)
	again.ID = "another id"
	if _, err := m.Generate(t.Context(), again); engine.KindOf(err) != engine.KindInternal {
		t.Errorf("the request was taken again: %v", err)
	}
	if s, err = m.Generate(t.Context(), ask("hello", 1, 3)); err != nil {
		t.Fatal(err)
	}
	if text, _, _, err := read(t.Context(), s, 1); err != nil || text[0] != wantText(3) {
		t.Errorf("the next request: %q %v", text, err)
	}
	if st := p.Status()[0]; st.Restarts != 2 {
		t.Errorf("%d restarts, want 2", st.Restarts)
	}
}

func TestFaultsMoveToTheFallback(t *testing.T) {
	p := newTestPool(t, quick(t), map[string][][]string{"m": {{"crash=3"}, {}}})
	m := acquire(t, p, "m")
	// Each life of plan0 dies at its third token, which is in the second or third request: none is there twice.
	for i := range 3 {
		s, err := m.Generate(t.Context(), ask(fmt.Sprint("r", i), 1, 2))
		if err != nil {
			t.Fatal(err)
		}
		if text, _, _, err := read(t.Context(), s, 1); err != nil || text[0] != wantText(2) {
			t.Fatalf("request %d: %q %v", i, text, err)
		}
	}
	// The third request may end before its worker does.
	st := await(t, p, func(st Status) bool { return st.Fallbacks > 0 })
	if st.Plan != "plan1" || st.Fallbacks != 1 || !strings.Contains(st.Fallback, "plan0") || !strings.Contains(st.Fallback, "faulted 2 times") {
		t.Errorf("status %+v", st)
	}
}

func TestLoadFailures(t *testing.T) {
	tests := []struct {
		name  string
		plans [][]string
		kind  engine.Kind // "" means that it loads
		plan  string
		says  string
	}{
		{"invalid file skips fallbacks", [][]string{{"load=invalid"}, {}}, engine.KindInvalid, "plan0", "no GGUF"},
		{"no memory falls back", [][]string{{"load=memory"}, {}}, "", "plan1", "out of device memory"},
		{"abort falls back", [][]string{{"load=abort"}, {}}, "", "plan1", "GGML_ASSERT(ptr) failed"},
		{"missing library falls back", [][]string{{"start=exit"}, {}}, "", "plan1", "libggml-hip.so"},
		{"garbage on stdout", [][]string{{"start=garbage"}}, engine.KindUnavailable, "plan0", "is it hearth-engine?"},
		{"silent", [][]string{{"start=silent"}}, engine.KindUnavailable, "plan0", "did not open its socket"},
		{"stalled", [][]string{{"load=stall"}}, engine.KindUnavailable, "plan0", "no progress"},
		{"last fallback fails too", [][]string{{"load=memory"}, {"load=abort"}}, engine.KindUnavailable, "plan1", "GGML_ASSERT"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := quick(t)
			if tt.name == "silent" {
				cfg.StartTimeout = 300 * time.Millisecond
			}
			if tt.name == "stalled" {
				cfg.LoadStall = 300 * time.Millisecond
			}
			p := newTestPool(t, cfg, map[string][][]string{"m": tt.plans})
			_, release, err := p.Acquire(t.Context(), "m")
			if release != nil {
				defer release()
			}
			if engine.KindOf(err) != tt.kind {
				t.Errorf("error %v, want kind %q", err, tt.kind)
			}
			st := p.Status()[0]
			if st.Plan != tt.plan || !strings.Contains(st.LastError+st.Fallback, tt.says) {
				t.Errorf("status %+v", st)
			}
			if tt.kind != "" && st.State != StateFailed {
				t.Errorf("state %s", st.State)
			}
		})
	}
	p := newTestPool(t, quick(t), nil)
	if _, _, err := p.Acquire(t.Context(), "nobody"); engine.KindOf(err) != engine.KindNotFound {
		t.Errorf("unknown model: %v", err)
	}
}

func TestWrongDeviceIsRefused(t *testing.T) {
	p, err := New(quick(t), resolverFunc(func(string) Plan {
		pl := fakePlan(t, "m", "plan0", "pci=0000:10:00.0")
		pl.Spec.WantPCI = "0000:03:00.0"
		return pl
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, _, err := p.Acquire(t.Context(), "m"); err == nil || !strings.Contains(err.Error(), "0000:10:00.0") {
		t.Errorf("got %v", err)
	}
}

type resolverFunc func(string) Plan

func (f resolverFunc) Resolve(_ context.Context, name string) (Plan, error) { return f(name), nil }

func TestWatchdogKillsAHungWorker(t *testing.T) {
	for _, mode := range []string{"hang=1@1", "mute=1@1"} {
		t.Run(mode, func(t *testing.T) {
			lives := filepath.Join(t.TempDir(), "lives")
			cfg := quick(t)
			cfg.Watchdog = 300 * time.Millisecond
			if mode == "mute=1@1" {
				cfg.Watchdog = time.Second // two unanswered checks are waited for
			}
			p := newTestPool(t, cfg, map[string][][]string{"m": {{"lives=" + lives, mode}}})
			m := acquire(t, p, "m")
			for {
				toks, err := m.Tokenize(t.Context(), engine.TextPrompt("four"))
				if err != nil {
					t.Fatal(err)
				}
				if toks[1] >= 2 { // a slow machine may lose more than one
					break
				}
			}
			if st := p.Status()[0]; st.Faults < 1 || !strings.Contains(st.LastError, "killed:") {
				t.Errorf("status %+v", st)
			}
		})
	}
}

func TestStopFreesEverything(t *testing.T) {
	for _, mode := range []string{"term=obey", "term=ignore"} {
		t.Run(mode, func(t *testing.T) {
			cfg := quick(t)
			cfg.StopGrace = 300 * time.Millisecond
			p := newTestPool(t, cfg, map[string][][]string{"m": {{mode}}})
			m := acquire(t, p, "m")
			pid := p.Status()[0].PID
			s, err := m.Generate(t.Context(), ask("long", 1, 1<<30))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := p.Stop("m"); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("process %d still answers: %v", pid, err)
			}
			if _, _, _, err := read(t.Context(), s, 1); engine.KindOf(err) != engine.KindUnavailable {
				t.Errorf("the stream ended with %v", err)
			}
			if len(p.Status()) != 0 || engine.KindOf(p.Stop("m")) != engine.KindNotFound {
				t.Error("the model is still listed")
			}
		})
	}
}

func TestCancelReachesTheWorker(t *testing.T) {
	p := newTestPool(t, quick(t), map[string][][]string{"m": {{}}})
	m := acquire(t, p, "m")
	ctx, cancel := context.WithCancel(t.Context())
	s, err := m.Generate(ctx, ask("long", 1, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	for err == nil {
		_, err = s.Next(ctx) // buffered events may come first
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.Close()
	if n := p.Status()[0].Requests; n != 0 {
		t.Errorf("%d requests are still booked", n)
	}
	// A refusal is the whole request's error.
	if s, err = m.Generate(t.Context(), ask("refuse", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); engine.KindOf(err) != engine.KindContextLength {
		t.Errorf("got %v", err)
	}
}

func TestConcurrentAcquireLoadsOnce(t *testing.T) {
	dir := t.TempDir()
	gate, lives := filepath.Join(dir, "gate"), filepath.Join(dir, "lives")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	p := newTestPool(t, quick(t), map[string][][]string{"m": {{"lives=" + lives, "gate=" + gate}}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			m, release, err := p.Acquire(t.Context(), "m")
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			if toks, err := m.Tokenize(t.Context(), engine.TextPrompt("x")); err != nil || toks[1] != 1 {
				t.Errorf("%v %v", toks, err)
			}
		})
	}
	g, err := os.OpenFile(gate, os.O_WRONLY, 0) // blocks until the worker loads
	if err != nil {
		t.Fatal(err)
	}
	if st := p.Status()[0]; st.State != StateLoading || st.PID == 0 {
		t.Errorf("status while loading: %+v", st)
	}
	_ = g.Close()
	wg.Wait()
	if b, _ := os.ReadFile(lives); len(b) != 1 {
		t.Errorf("%d workers were started", len(b))
	}
}

func TestWorkerEnvironment(t *testing.T) {
	base := []string{
		"PATH=/bin", "HOME=/h", "LC_ALL=C", "LD_LIBRARY_PATH=/evil", "HIP_VISIBLE_DEVICES=3", "CUDA_VISIBLE_DEVICES=1",
		"HSA_OVERRIDE_GFX_VERSION=11.0.0", "GGML_VK_VISIBLE_DEVICES=7", "ROCR_VISIBLE_DEVICES=9", "SECRET_TOKEN=x",
		"GPU_DEVICE_ORDINAL=1", "VK_ICD_FILENAMES=/x",
	}
	plan := Plan{Spec: engine.LoadSpec{Backend: "hip", GPULayers: -1}, Env: []string{"ROCR_VISIBLE_DEVICES=1"}}
	got := environment(base, &plan, &Command{Env: []string{"ROCBLAS_TENSILE_LIBPATH=/b"}})
	slices.Sort(got)
	want := []string{
		"GGML_NO_BACKTRACE=1", "GOTRACEBACK=single", "HOME=/h", "LC_ALL=C", "OMP_WAIT_POLICY=passive", "PATH=/bin",
		"ROCBLAS_TENSILE_LIBPATH=/b", "ROCR_VISIBLE_DEVICES=1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	plan = Plan{Spec: engine.LoadSpec{Backend: "cpu"}}
	if got := environment(append(base, "OMP_WAIT_POLICY=active"), &plan, &Command{}); !slices.Contains(got, "OMP_WAIT_POLICY=active") {
		t.Errorf("the user's wait policy is lost: %q", got)
	}
}
