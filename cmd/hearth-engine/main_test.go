package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/bundle"
	"hearth/engine/supervisor"
	"hearth/internal/toygguf"
)

// The tests start their own binary again as the worker, through the bundle's loader, and drive it with the supervisor:
// everything between hearth and llama.cpp is the real thing.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		main()
	}
	os.Exit(m.Run())
}

const bundleDir = "../../build/engine/default"

func testBundle(t testing.TB) bundle.Bundle {
	t.Helper()
	b, err := bundle.Load(bundleDir)
	if err != nil {
		t.Fatalf("make engine builds the bundle: %v", err)
	}
	return b
}

// one is a Resolver of a single model.
type one struct{ plan supervisor.Plan }

func (o one) Resolve(context.Context, string) (supervisor.Plan, error) { return o.plan, nil }

// load starts a worker on a model file and returns the model and its pool.
func load(t testing.TB, spec engine.LoadSpec, env ...string) (engine.Model, *supervisor.Pool) {
	t.Helper()
	b := testBundle(t)
	if mesa, err := filepath.Abs("../../build/testmesa/lib"); err == nil {
		b = b.WithLibraryPath(mesa) // for the software Vulkan driver
	}
	if dirs := os.Getenv("HEARTH_TEST_LIBRARY_PATH"); dirs != "" { // where a machine keeps its own driver
		b = b.WithLibraryPath(strings.Split(dirs, ":")...)
	}
	spec.Name, spec.MMap = "m", true
	if spec.Backend == "" {
		spec.Backend = "cpu"
	}
	// What BLAS is worth on toys is chance, and it rounds differently: tests that mean it ask for it.
	spec.CPUBLAS = cmp.Or(spec.CPUBLAS, "off")
	// One thread: a team of spinning OpenMP threads crawls when other tests want the cores.
	spec.Threads = 1
	plan := supervisor.Plan{Label: spec.Backend, Spec: spec, Env: env, Launch: func(args ...string) supervisor.Command {
		return supervisor.Command(b.Command(os.Args[0], append(args, "--bundle", b.Dir)...))
	}}
	p, err := supervisor.New(supervisor.Config{
		RuntimeDir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}, one{plan})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	m, release, err := p.Acquire(t.Context(), "m")
	if err != nil {
		for _, s := range p.Status() {
			t.Log(s.Stderr)
		}
		t.Fatal(err)
	}
	t.Cleanup(release)
	return m, p
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func toy(t testing.TB, s toygguf.Spec) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "toy.gguf")
	if err := toygguf.Write(path, s); err != nil {
		t.Fatal(err)
	}
	return path
}

// answer is a request's whole outcome.
type answer struct {
	text   []string
	tokens [][]engine.Token
	finish []engine.FinishReason
	lps    []engine.TokenLogprob
	usage  engine.Usage
}

func ask(ctx context.Context, m engine.Model, r engine.Request) (answer, error) {
	n := r.Choices()
	a := answer{text: make([]string, n), tokens: make([][]engine.Token, n), finish: make([]engine.FinishReason, n)}
	s, err := m.Generate(ctx, r)
	if err != nil {
		return a, err
	}
	defer s.Close()
	for {
		ev, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		a.text[ev.Choice] += ev.Text
		a.tokens[ev.Choice] = append(a.tokens[ev.Choice], ev.Tokens...)
		a.lps = append(a.lps, ev.Logprobs...)
		if ev.Finish != "" {
			a.finish[ev.Choice] = ev.Finish
		}
		if ev.Err != nil {
			return a, ev.Err
		}
		if ev.Usage != nil {
			a.usage = *ev.Usage
		}
	}
}

func mustAsk(t testing.TB, m engine.Model, r engine.Request) answer {
	t.Helper()
	a, err := ask(t.Context(), m, r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// words is a prompt of n one-token words of a toy vocabulary.
func words(n, salt int) engine.Prompt {
	var b strings.Builder
	for i := range n {
		b.WriteString(" " + toygguf.Word((i*7+salt*131+i*i)%500))
	}
	return engine.TextPrompt(strings.TrimSpace(b.String()))
}

func greedy(p engine.Prompt, max int) engine.Request {
	return engine.Request{Prompt: p, MaxTokens: max, CachePrompt: true, IgnoreEOS: true}
}

// kinds of models that the worker must get right, whatever their memory is like.
func kinds() map[string]toygguf.Spec {
	return map[string]toygguf.Spec{
		"dense":     {Kind: toygguf.Llama, LogitScale: 8},
		"iswa":      {Kind: toygguf.Gemma3, SWA: 64, LogitScale: 8},
		"hybrid":    {Kind: toygguf.Jamba, LogitScale: 8},
		"recurrent": {Kind: toygguf.Mamba, LogitScale: 8},
	}
}

func TestEveryKindOfModel(t *testing.T) {
	type variant struct{ kind, layout, windows string }
	variants := []variant{{"iswa", "unified", "window"}, {"iswa", "streams", "window"}}
	for name := range kinds() {
		variants = append(variants, variant{kind: name})
	}
	for _, v := range variants {
		name := v.kind
		t.Run(strings.TrimRight(name+" "+v.windows+" "+v.layout, " "), func(t *testing.T) {
			m, p := load(t, engine.LoadSpec{Path: toy(t, kinds()[name]), Context: 1024, Cells: 4096, MaxSequences: 8, Chunk: 64, FlashAttention: "off", KVLayout: v.layout, WindowCache: v.windows})
			if small := m.Info().WindowCells > 0; small != (v.windows == "window") {
				t.Errorf("%d cells for windows", m.Info().WindowCells)
			}
			for _, f := range m.Info().Features {
				if !f.On {
					t.Errorf("feature %s is off: %s", f.Name, f.Reason)
				}
			}
			// Alone, without cache: the reference.
			want := make([]answer, 8)
			for i := range want {
				r := greedy(words(150+i, i), 24)
				r.CachePrompt = false
				want[i] = mustAsk(t, m, r)
				if len(want[i].tokens[0]) != 24 || want[i].finish[0] != engine.FinishLength {
					t.Fatalf("%d tokens, finish %q", len(want[i].tokens[0]), want[i].finish[0])
				}
			}
			// All at once, with cache, twice: computed in mixed steps, then from cached prefixes.
			for round := range 2 {
				var wg sync.WaitGroup
				var cached atomic.Int64
				for i := range want {
					wg.Go(func() {
						got, err := ask(t.Context(), m, greedy(words(150+i, i), 24))
						if err != nil {
							t.Error(err)
							return
						}
						if n := same(got.tokens[0], want[i].tokens[0]); n < 24 {
							t.Errorf("round %d request %d: differs from token %d on", round, i, n)
						}
						cached.Add(int64(got.usage.CachedTokens))
					})
				}
				wg.Wait()
				kept := name == "recurrent" // whoever has KV cells drops prefixes that cost more than to compute them again, as toys do
				if n := cached.Load(); round == 1 && n < 300 && kept {
					t.Errorf("only %d tokens were cached: %+v", n, p.Status()[0].Stats)
				}
			}
			st := p.Status()[0]
			if st.Restarts != 0 || st.Stats.Running+st.Stats.Waiting != 0 || st.Stats.Mismatches != 0 {
				t.Errorf("status %+v", st.Stats)
			}
		})
	}
}

// same is the length of the common prefix.
func same(a, b []engine.Token) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestReturningConversationIsCached(t *testing.T) {
	m, _ := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Llama, LogitScale: 8}), Context: 1024})
	first := mustAsk(t, m, greedy(words(200, 1), 20))
	toks, err := m.Tokenize(t.Context(), words(200, 1))
	if err != nil {
		t.Fatal(err)
	}
	if first.usage.PromptTokens != len(toks) || first.usage.CachedTokens != 0 || first.usage.CompletionTokens != 20 {
		t.Errorf("usage %+v of %d tokens", first.usage, len(toks))
	}
	turn := append(append(slices.Clone(toks), first.tokens[0]...), toks[5:25]...)
	next := greedy(engine.Prompt{Segments: []engine.Segment{{Tokens: turn}}}, 5)
	if u := mustAsk(t, m, next).usage; u.CachedTokens < len(toks)+10 {
		t.Errorf("%d of %d tokens were cached", u.CachedTokens, len(turn))
	}
}

func TestSamplingThroughTheWholeStack(t *testing.T) {
	m, _ := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Llama, LogitScale: 4}), Context: 1024, MaxSequences: 8})
	seed := uint64(42)
	r := greedy(words(30, 1), 16)
	r.N, r.Logprobs, r.TopLogprobs = 3, true, 4
	r.Sampling = engine.Sampling{Temperature: 1.2, TopP: 0.95, Seed: &seed, RepeatPenalty: 1.1, RepeatLastN: 64}
	a, b := mustAsk(t, m, r), mustAsk(t, m, r)
	if a.usage.Seed != 42 || len(a.lps) != 48 || len(a.lps[0].Top) != 4 || a.lps[0].Logprob > 0 || len(a.lps[0].Bytes) == 0 {
		t.Errorf("seed %d, %d logprobs", a.usage.Seed, len(a.lps))
	}
	for c := range 3 {
		if !slices.Equal(a.tokens[c], b.tokens[c]) {
			t.Errorf("choice %d does not repeat with its seed", c)
		}
	}
	if slices.Equal(a.tokens[0], a.tokens[1]) {
		t.Error("choices are equal")
	}
	for name, s := range map[string]engine.Sampling{
		"dry":      {Temperature: 1, Seed: &seed, DRY: engine.DRY{Multiplier: 0.8, Base: 1.75, AllowedLength: 2, PenaltyLastN: -1, SequenceBreakers: []string{"\n"}}},
		"xtc":      {Temperature: 1, Seed: &seed, XTCProbability: 0.5, XTCThreshold: 0.1},
		"mirostat": {Temperature: 1, Seed: &seed, Mirostat: 2, MirostatTau: 5, MirostatEta: 0.1},
		"typical":  {Temperature: 1, Seed: &seed, TypicalP: 0.9},
		"dynatemp": {Temperature: 1, Seed: &seed, DynatempRange: 0.5, DynatempExponent: 1},
		"sigma":    {Temperature: 1, Seed: &seed, TopNSigma: 1},
	} {
		r := greedy(words(30, 2), 8)
		r.Sampling = s
		if got, err := ask(t.Context(), m, r); err != nil || len(got.tokens[0]) != 8 {
			t.Errorf("%s: %d tokens, %v", name, len(got.tokens[0]), err)
		}
	}
	banned := mustAsk(t, m, greedy(words(30, 3), 1)).tokens[0][0]
	r = greedy(words(30, 3), 1)
	inf := float32(-1e30)
	r.Sampling.LogitBias = []engine.Bias{{Token: banned, Value: inf}}
	if mustAsk(t, m, r).tokens[0][0] == banned {
		t.Error("a banned token came")
	}
}

func TestGrammarHolds(t *testing.T) {
	m, _ := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Llama, LogitScale: 4}), Context: 512})
	r := engine.Request{Prompt: words(20, 1), MaxTokens: 40, Sampling: engine.Sampling{
		Temperature: 1, Grammar: `root ::= "{" [0-9] [0-9] "}"`,
	}}
	a := mustAsk(t, m, r)
	if len(a.text[0]) != 4 || a.text[0][0] != '{' || a.text[0][3] != '}' || a.finish[0] != engine.FinishStop {
		t.Errorf("text %q, finish %q", a.text[0], a.finish[0])
	}
	// The grammar lets the text end, and nothing else may follow: that is not the engine's fault.
	r.IgnoreEOS = true
	if _, err := ask(t.Context(), m, r); engine.KindOf(err) != engine.KindInvalid || !strings.Contains(err.Error(), "grammar") {
		t.Errorf("a grammar without a way on: %v", err)
	}
	r.IgnoreEOS = false
	r.Sampling.Grammar = "root ::= ("
	if _, err := ask(t.Context(), m, r); engine.KindOf(err) != engine.KindInvalid {
		t.Errorf("a broken grammar: %v", err)
	}
}

// TestBansThatLeaveNothing: whoever bans every token that could follow is told so, at once where that is known at once.
func TestBansThatLeaveNothing(t *testing.T) {
	m, _ := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Llama, LogitScale: 4}), Context: 512})
	ban := func(tokens ...engine.Token) (out []engine.Bias) {
		for _, token := range tokens {
			out = append(out, engine.Bias{Token: token, Value: float32(math.Inf(-1))})
		}
		return out
	}
	var all, others []engine.Token
	for token := range engine.Token(m.Info().VocabSize) {
		all = append(all, token)
		if token != toygguf.TokenEOS && token != toygguf.TokenEnd {
			others = append(others, token)
		}
	}
	a := engine.Token(toygguf.TokenByte0 + 'a')
	var spelled []engine.Token // whatever spells the letter
	for _, token := range all {
		if text, err := m.Detokenize(t.Context(), []engine.Token{token}); err == nil && string(text) == "a" {
			spelled = append(spelled, token)
		}
	}
	if !slices.Contains(spelled, a) {
		t.Fatalf("the letter is spelled by %v", spelled)
	}
	for name, c := range map[string]struct {
		bias      []engine.Bias
		ignoreEOS bool
		grammar   string
		want      string
	}{
		"all":            {ban(all...), false, "", "bans every token of the vocabulary"},
		"all and EOS":    {ban(all...), true, "", "bans every token of the vocabulary"},
		"all but EOS":    {ban(others...), true, "", "that ignore_eos leaves"},
		"of the grammar": {ban(spelled...), false, `root ::= "bcd" "a"`, "that the grammar lets follow"},
	} {
		r := engine.Request{Prompt: words(20, 1), MaxTokens: 40, IgnoreEOS: c.ignoreEOS, N: 2}
		r.Sampling = engine.Sampling{Temperature: 1, LogitBias: c.bias, Grammar: c.grammar}
		_, err := ask(t.Context(), m, r)
		e, ok := errors.AsType[*engine.Error](err)
		if !ok || e.Kind != engine.KindInvalid || e.Field != "logit_bias" || !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := engine.Request{Prompt: words(20, 1), MaxTokens: 4, Sampling: engine.Sampling{Temperature: 1, LogitBias: ban(others...)}}
	if got := mustAsk(t, m, r); got.text[0] != "" || got.finish[0] != engine.FinishStop {
		t.Errorf("with the end alone left: %q, %q", got.text[0], got.finish[0])
	}
}

func TestStopsAndLimits(t *testing.T) {
	m, _ := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Llama, LogitScale: 8}), Context: 256})
	free := mustAsk(t, m, greedy(words(20, 1), 12))
	parts := strings.Fields(free.text[0])
	if len(parts) < 5 {
		t.Skipf("the toy says %q", free.text[0])
	}
	r := greedy(words(20, 1), 12)
	r.Stop = []string{parts[3]}
	at := strings.Index(free.text[0], parts[3])
	if a := mustAsk(t, m, r); a.text[0] != free.text[0][:at] || a.finish[0] != engine.FinishStop {
		t.Errorf("text %q, finish %q; whole %q", a.text[0], a.finish[0], free.text[0])
	}
	full := mustAsk(t, m, greedy(words(20, 1), -1))
	if n := full.usage.PromptTokens + full.usage.CompletionTokens; n < 255 || n > 257 || full.finish[0] != engine.FinishLength {
		t.Errorf("%d tokens in a context of 256, finish %q", n, full.finish[0])
	}
	_, err := ask(t.Context(), m, greedy(words(300, 1), 1))
	if e, ok := errors.AsType[*engine.Error](err); !ok || e.Kind != engine.KindContextLength || e.ContextTokens != 256 {
		t.Errorf("a prompt of 300 tokens: %v", err)
	}
}

func TestOverloadedPoolCompletesEverything(t *testing.T) {
	m, p := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Llama, LogitScale: 8}), Context: 512, Cells: 768, MaxSequences: 8, Chunk: 64})
	var wg sync.WaitGroup
	for i := range 16 { // 16 x (200 + 60) tokens on 768 cells
		wg.Go(func() {
			a, err := ask(t.Context(), m, greedy(words(200, i), 60))
			if err != nil || len(a.tokens[0]) != 60 {
				t.Errorf("request %d: %d tokens, %v", i, len(a.tokens[0]), err)
			}
		})
	}
	wg.Wait()
	t.Logf("%+v", p.Status()[0].Stats)
}

func TestCancelFreesCells(t *testing.T) {
	m, p := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Llama}), Context: 4096, MaxSequences: 8})
	r := greedy(words(100, 1), -1)
	r.CachePrompt = false
	s, err := m.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.Stats().CellsUsed < 100 {
		t.Errorf("%d cells in use", m.Stats().CellsUsed)
	}
	s.Close()
	r.MaxTokens = 1 // its last frame shows the state behind the cancel
	mustAsk(t, m, r)
	if st := p.Status()[0].Stats; st.CellsUsed != 0 || st.Running != 0 {
		t.Errorf("after the cancel: %+v", st)
	}
}

func TestKilledWorkerContinuesTheStream(t *testing.T) {
	m, p := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Llama, LogitScale: 8}), Context: 2048})
	seed := uint64(5)
	r := greedy(words(50, 1), 200)
	r.Sampling = engine.Sampling{Temperature: 0.8, Seed: &seed}
	want := mustAsk(t, m, r)

	s, err := m.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var got []engine.Token
	var text strings.Builder
	for killed := false; ; {
		ev, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev.Tokens...)
		text.WriteString(ev.Text)
		if len(got) > 20 && !killed {
			killed = true
			if err := syscall.Kill(p.Status()[0].PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := same(got, want.tokens[0]); n < len(want.tokens[0]) {
		t.Errorf("differs from token %d of %d on", n, len(want.tokens[0]))
	}
	if text.String() != want.text[0] {
		t.Errorf("text %q\nwant %q", text.String(), want.text[0])
	}
	if p.Status()[0].Restarts != 1 {
		t.Errorf("%d restarts", p.Status()[0].Restarts)
	}
}

func TestEmbeddingsAndRerank(t *testing.T) {
	m, _ := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Bert, Pooling: toygguf.PoolingMean}), Mode: "embedding", MaxSequences: 4})
	if !m.Info().Embedding || m.Info().EmbeddingLen == 0 {
		t.Fatalf("info %+v", m.Info())
	}
	req := engine.EmbedRequest{Normalize: true}
	for i := range 11 { // more than one batch of four
		req.Inputs = append(req.Inputs, words(3+5*i, i))
	}
	all, err := m.Embed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for i := range req.Inputs {
		one, err := m.Embed(t.Context(), engine.EmbedRequest{Normalize: true, Inputs: req.Inputs[i : i+1]})
		if err != nil {
			t.Fatal(err)
		}
		if c := dot(one.Vectors[0], all.Vectors[i]); c < 0.999 {
			t.Errorf("input %d: alone and in a batch differ, cosine %g", i, c)
		}
	}
	if _, err := m.Generate(t.Context(), greedy(words(3, 1), 1)); err == nil {
		if _, err = ask(t.Context(), m, greedy(words(3, 1), 1)); engine.KindOf(err) != engine.KindUnsupported {
			t.Errorf("text from an embedding model: %v", err)
		}
	}
	r, _ := load(t, engine.LoadSpec{Path: toy(t, toygguf.Spec{Kind: toygguf.Bert, Pooling: toygguf.PoolingRank}), Mode: "rerank"})
	out, err := r.Embed(t.Context(), engine.EmbedRequest{Rerank: true, Query: "query", Inputs: req.Inputs[:3]})
	if err != nil || len(out.Vectors) != 3 || len(out.Vectors[0]) != 1 {
		t.Errorf("rerank: %+v %v", out, err)
	}
}

func dot(a, b []float32) float64 {
	var s float64
	for i := range a {
		s += float64(a[i]) * float64(b[i])
	}
	return s
}

func TestBadFiles(t *testing.T) {
	good, err := os.ReadFile(toy(t, toygguf.Spec{Kind: toygguf.Llama}))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"no GGUF": []byte("hello, this is text and no model at all"), "empty": {}, "truncated": good[:len(good)/2], "header only": good[:40],
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.gguf")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			b := testBundle(t)
			p, err := supervisor.New(supervisor.Config{RuntimeDir: t.TempDir()}, one{supervisor.Plan{
				Label: "cpu", Spec: engine.LoadSpec{Name: "m", Path: path, Backend: "cpu"},
				Launch: func(args ...string) supervisor.Command {
					return supervisor.Command(b.Command(os.Args[0], append(args, "--bundle", b.Dir)...))
				},
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if _, _, err := p.Acquire(t.Context(), "m"); engine.KindOf(err) != engine.KindInvalid {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCommandLine(t *testing.T) {
	b := testBundle(t)
	cpu := ""
	for _, p := range b.PluginsOf(bundle.KindCPU) { // one that runs here; the bundle has variants for other CPUs
		if run(t.Context(), []string{"x", "devices", "--plugin", p.Path}, io.Discard, io.Discard) == exitOK {
			cpu = p.Path
		}
	}
	for _, tt := range []struct {
		args []string
		code int
		out  string // in stdout or stderr
	}{
		{[]string{}, exitUsage, "usage:"},
		{[]string{"fly"}, exitUsage, `no command "fly"`},
		{[]string{"version"}, exitOK, "llama.cpp 0."},
		{[]string{"version", "x"}, exitUsage, "unexpected argument"},
		{[]string{"serve"}, exitUsage, "needs --socket"},
		{[]string{"serve", "--socket", "/nowhere/s", "--bundle", b.Dir}, exitFailed, "listen"},
		{[]string{"serve", "--socket", "s", "--bundle", "/nowhere"}, exitFailed, "engine bundle"},
		{[]string{"devices"}, exitUsage, "needs --plugin"},
		{[]string{"devices", "--plugin", "/nowhere/libggml-hip.so"}, exitNoPlugin, `"event":"error"`},
		{[]string{"devices", "--plugin", cpu}, exitOK, `"event":"done"`},
		{[]string{"bench", "--batch", "0"}, exitUsage, "no list of positive numbers"},
		{[]string{"bench", "--model", "/nowhere.gguf", "--bundle", b.Dir}, exitFailed, "not there"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			var out, errs bytes.Buffer
			code := run(t.Context(), append([]string{"hearth-engine"}, tt.args...), &out, &errs)
			if code != tt.code || !strings.Contains(out.String()+errs.String(), tt.out) {
				t.Errorf("code %d, want %d\n%s%s", code, tt.code, out.String(), errs.String())
			}
		})
	}
}

func TestBenchMeasuresBothLayouts(t *testing.T) {
	b := testBundle(t)
	path := toy(t, toygguf.Spec{Kind: toygguf.Llama})
	for _, layout := range []string{"unified", "streams"} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"x", "bench", "--bundle", b.Dir, "--model", path, "--batch", "1,3", "--context", "32", "--steps", "4", "--prefill", "64", "--chunk", "32", "--threads", "1", "--cpu-blas", "off", "--served", "--shared", "16", "--kv-layout", layout}, &out, &errs)
		var rep benchReport
		if err := json.Unmarshal(out.Bytes(), &rep); code != exitOK || err != nil {
			t.Fatalf("code %d: %v\n%s", code, err, errs.String())
		}
		r := rep.Runs
		if len(r) != 6 || rep.Layout != layout || r[2].Tokens != 12 || r[4].Steps != 2 || r[0].PerSec <= 0 || r[3].Kind != "served" || r[3].OverRaw <= 0 || r[2].Shared != 16 {
			t.Errorf("report %+v", rep)
		}
	}
}

// TestSmolLM2 runs the default model when it is in the cache: $HEARTH_TEST_MODEL, or any GGUF of it below $HEARTH_CACHE.
func TestSmolLM2(t *testing.T) {
	path := smolLM2(t)
	m, _ := load(t, engine.LoadSpec{Path: path, Context: 2048})
	if m.Info().ChatTemplate == "" || m.Info().LoadTime <= 0 || m.Info().LlamaVersion == "" {
		t.Errorf("info %+v", m.Info())
	}
	chat := func(text string) engine.Prompt {
		return engine.TextPrompt("<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n")
	}
	a := mustAsk(t, m, engine.Request{Prompt: chat("What is the capital of France? Answer in one sentence."), MaxTokens: 40, CachePrompt: true})
	if !strings.Contains(a.text[0], "Paris") || a.finish[0] != engine.FinishStop {
		t.Errorf("%q, finish %q", a.text[0], a.finish[0])
	}
	var wg sync.WaitGroup
	began := time.Now()
	total := 0
	var mu sync.Mutex
	for i := range 8 {
		wg.Go(func() {
			r := greedy(chat(fmt.Sprintf("Tell me a story about the number %d.", i)), 48)
			a, err := ask(t.Context(), m, r)
			if err != nil || len(a.tokens[0]) != 48 {
				t.Errorf("request %d: %d tokens, %v", i, len(a.tokens[0]), err)
			}
			mu.Lock()
			total += len(a.tokens[0])
			mu.Unlock()
		})
	}
	wg.Wait()
	t.Logf("8 clients: %.0f tokens/s", float64(total)/time.Since(began).Seconds())
}

func smolLM2(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("HEARTH_TEST_MODEL"); path != "" {
		return path
	}
	cache := os.Getenv("HEARTH_CACHE")
	if cache == "" {
		t.Skip("HEARTH_CACHE is not set")
	}
	found := ""
	_ = filepath.WalkDir(cache, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), "SmolLM2") && strings.HasSuffix(path, ".gguf") {
			found = path
			return filepath.SkipAll
		}
		return nil
	})
	if found == "" {
		t.Skip("the cache holds no SmolLM2")
	}
	return found
}
