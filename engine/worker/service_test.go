package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/enginepb"
)

// opens is an Opener of a fake model, or of an error.
type opens struct {
	m   Model
	err error
}

func (o opens) Open(_ context.Context, _ engine.LoadSpec, progress func(string, float64)) (Model, error) {
	for i := range 1000 {
		progress("weights", float64(i)/1000)
	}
	return o.m, o.err
}

// serveFake starts a service on a unix socket and returns a client.
func serveFake(t *testing.T, o Opener) (enginepb.WorkerClient, *Service) {
	t.Helper()
	return serveNoting(t, o, io.Discard)
}

// serveNoting is serveFake with the admissions written to notes.
func serveNoting(t *testing.T, o Opener, notes io.Writer) (enginepb.WorkerClient, *Service) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	svc := NewService(o, notes, testLog(t))
	g := Register(svc)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		svc.Close()
		svc.Close() // a second time does nothing
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return enginepb.NewWorkerClient(conn), svc
}

// load runs the Load call and returns the stages it passed.
func load(t *testing.T, c enginepb.WorkerClient) ([]*enginepb.LoadEvent, error) {
	t.Helper()
	s, err := c.Load(t.Context(), enginepb.FromLoadSpec(&engine.LoadSpec{Name: "m", Path: "f"}))
	if err != nil {
		return nil, err
	}
	var out []*enginepb.LoadEvent
	for {
		ev, err := s.Recv()
		if err != nil {
			return out, enginepb.FromStatusError(err)
		}
		out = append(out, ev)
		if ev.Info != nil {
			return out, nil
		}
	}
}

func TestServiceLifecycle(t *testing.T) {
	m := newFakeModel(smallConfig())
	c, _ := serveFake(t, opens{m: m})
	if _, err := c.Tokenize(t.Context(), &enginepb.TokenizeRequest{}); engine.KindOf(enginepb.FromStatusError(err)) != engine.KindUnavailable {
		t.Errorf("before the load: %v", err)
	}
	if h, err := c.Health(t.Context(), &enginepb.HealthRequest{}); err != nil || h.Loaded {
		t.Errorf("health before the load: %v %v", h, err)
	}
	evs, err := load(t, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(evs) > 130 {
		t.Errorf("%d progress events", len(evs))
	}
	last := float32(0)
	for _, ev := range evs {
		if ev.Progress < last {
			t.Errorf("progress goes back from %g to %g at %s", last, ev.Progress, ev.Stage)
		}
		last = ev.Progress
	}
	if info := enginepb.ToInfo(evs[len(evs)-1].Info); info.Name != "m" || len(info.Features) != 3 || info.LoadTime <= 0 {
		t.Errorf("info %+v", info)
	}
	if _, err := load(t, c); engine.KindOf(err) != engine.KindInvalid {
		t.Errorf("a second load: %v", err)
	}
	p := engine.TextPrompt("11 12")
	toks, err := c.Tokenize(t.Context(), &enginepb.TokenizeRequest{Prompt: enginepb.FromPrompt(&p)})
	if err != nil || !slices.Equal(toks.Tokens, []int32{fakeBOS, 11, 12}) {
		t.Errorf("%v %v", toks, err)
	}
	text, err := c.Detokenize(t.Context(), &enginepb.DetokenizeRequest{Tokens: []int32{1, 11}})
	if err != nil || string(text.Text) != "1 11 " {
		t.Errorf("%v %v", text, err)
	}
	if _, err := c.Detokenize(t.Context(), &enginepb.DetokenizeRequest{Tokens: []int32{-1}}); engine.KindOf(enginepb.FromStatusError(err)) != engine.KindInvalid {
		t.Errorf("a bad token: %v", err)
	}
	if _, err := c.Embed(t.Context(), &enginepb.EmbedRequest{}); engine.KindOf(enginepb.FromStatusError(err)) != engine.KindUnsupported {
		t.Errorf("embeddings of a chat model: %v", err)
	}
}

// lines is an io.Writer that may be read meanwhile.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// of is what the lines say of one request.
func (l *lines) of(id string) string {
	out := ""
	for line := range strings.Lines(l.String()) {
		if word, ok := strings.CutSuffix(line, id+"\n"); ok {
			out += word
		}
	}
	return out
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestServeAnswersAndCancels(t *testing.T) {
	m := newFakeModel(smallConfig())
	var notes lines
	c, _ := serveNoting(t, opens{m: m}, &notes)
	if _, err := load(t, c); err != nil {
		t.Fatal(err)
	}
	// Before a request is computed the note about it is out.
	m.mu.Lock()
	m.decode = func([]batch.Row) {
		if !strings.Contains(notes.String(), "queued 1\nadmitted 1\n") && !strings.HasSuffix(notes.of("1"), "admitted ") {
			t.Error("a step runs whose request was not told of")
		}
	}
	m.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.Serve(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send := func(id uint64, r engine.Request) {
		if err := s.Send(&enginepb.ClientFrame{Id: id, Body: &enginepb.ClientFrame_Submit{Submit: enginepb.FromRequest(&r)}}); err != nil {
			t.Fatal(err)
		}
	}
	p := prompt(30, 2)
	send(1, request(p, 10))
	send(2, request(prompt(300, 1), 10)) // too long
	var tokens []engine.Token
	failed, done := false, false
	for !done || !failed {
		f, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, fl := range f.Failures {
			failed = fl.Id == 2 && fl.Error.Kind == string(engine.KindContextLength)
		}
		for _, ev := range f.Events {
			tokens = append(tokens, ev.Tokens...)
			done = done || ev.Usage != nil
		}
	}
	if !slices.Equal(tokens, truth(p, 10)) || !strings.HasSuffix(notes.of("1"), "admitted queued admitted ") || notes.of("2") != "admitted " {
		t.Errorf("tokens %v, notes %q", tokens, notes.String())
	}
	// When the stream ends, what runs is cancelled and its samplers are freed.
	send(3, request(p, -1))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	for {
		h, err := c.Health(t.Context(), &enginepb.HealthRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if h.Stats.Running+h.Stats.Waiting == 0 && m.openRows() == 0 {
			break
		}
	}
}

func TestHealthSeesARunningStep(t *testing.T) {
	m := newFakeModel(smallConfig())
	c, svc := serveFake(t, opens{m: m})
	if _, err := load(t, c); err != nil {
		t.Fatal(err)
	}
	entered, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.mu.Lock()
	m.decode = func([]batch.Row) {
		once.Do(func() {
			close(entered)
			<-goOn
		})
	}
	m.mu.Unlock()
	s, err := c.Serve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := request(prompt(5, 1), 1)
	if err := s.Send(&enginepb.ClientFrame{Id: 1, Body: &enginepb.ClientFrame_Submit{Submit: enginepb.FromRequest(&r)}}); err != nil {
		t.Fatal(err)
	}
	<-entered
	if h, err := c.Health(t.Context(), &enginepb.HealthRequest{}); err != nil || h.StepAgeNs <= 0 || !h.Loaded {
		t.Errorf("health in a step: %v %v", h, err)
	}
	close(goOn)
	for done := false; !done; {
		f, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		done = len(f.Events) > 0 && f.Events[len(f.Events)-1].Usage != nil
	}
	for {
		h, err := c.Health(t.Context(), &enginepb.HealthRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if h.StepAgeNs == 0 {
			break
		}
	}
	_ = s.CloseSend()
	if svc.Err() != nil {
		t.Error(svc.Err())
	}
}

func TestBackendFailureClosesDone(t *testing.T) {
	m := newFakeModel(smallConfig())
	c, svc := serveFake(t, opens{m: m})
	if _, err := load(t, c); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.code = func(int) batch.Code { return batch.CodeFatal }
	m.mu.Unlock()
	s, err := c.Serve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := request(prompt(5, 1), 5)
	if err := s.Send(&enginepb.ClientFrame{Id: 1, Body: &enginepb.ClientFrame_Submit{Submit: enginepb.FromRequest(&r)}}); err != nil {
		t.Fatal(err)
	}
	<-svc.Done()
	if !errors.Is(svc.Err(), ErrBackend) {
		t.Errorf("got %v", svc.Err())
	}
}

func TestLoadErrorsArrive(t *testing.T) {
	c, _ := serveFake(t, opens{err: &engine.Error{Kind: engine.KindNotFound, Message: "no file"}})
	if _, err := load(t, c); engine.KindOf(err) != engine.KindNotFound {
		t.Errorf("got %v", err)
	}
	broken := newFakeModel(smallConfig())
	broken.code = func(int) batch.Code { return batch.CodeFatal }
	c, _ = serveFake(t, opens{m: broken})
	if _, err := load(t, c); engine.KindOf(err) != engine.KindInternal {
		t.Errorf("a model that cannot decode: %v", err)
	}
}

// embedModel is a fake model for embeddings.
type embedModel struct {
	*fakeModel
	rerank bool
}

func (m embedModel) Info() engine.Info {
	return engine.Info{VocabSize: fakeSize, Embedding: !m.rerank, Rerank: m.rerank}
}

func TestEmbeddings(t *testing.T) {
	m := embedModel{fakeModel: newFakeModel(smallConfig())}
	c, _ := serveFake(t, opens{m: m})
	if _, err := load(t, c); err != nil {
		t.Fatal(err)
	}
	input := func(first, n int) engine.Prompt {
		return engine.Prompt{Segments: []engine.Segment{{Tokens: prompt(n, first)}}}
	}
	sum := func(n, first int) float32 {
		var s float32
		for _, t := range prompt(n, first) {
			s += float32(t)
		}
		return s
	}
	// Many callers at once: each gets its own rows back, whatever shared a batch.
	var wg sync.WaitGroup
	for k := range 10 {
		wg.Go(func() {
			req := engine.EmbedRequest{}
			for i := range 6 {
				req.Inputs = append(req.Inputs, input(k*10+i, 3+i*4))
			}
			out, err := c.Embed(t.Context(), enginepb.FromEmbedRequest(&req))
			if err != nil {
				t.Error(err)
				return
			}
			for i, v := range out.Vectors {
				if n := 3 + i*4; v.Values[0] != sum(n, k*10+i) || v.Values[1] != float32(n) || out.PromptTokens[i] != int64(n) {
					t.Errorf("caller %d input %d: %v", k, i, v.Values)
				}
			}
		})
	}
	wg.Wait()
	m.mu.Lock()
	if m.steps >= 60 {
		t.Errorf("60 texts took %d batches", m.steps)
	}
	m.mu.Unlock()
	one := engine.EmbedRequest{Inputs: []engine.Prompt{input(1, 5)}, Normalize: true}
	out, err := c.Embed(t.Context(), enginepb.FromEmbedRequest(&one))
	if err != nil {
		t.Fatal(err)
	}
	if v := out.Vectors[0].Values; v[0]*v[0]+v[1]*v[1] < 0.999 || v[0]*v[0]+v[1]*v[1] > 1.001 {
		t.Errorf("length of %v is not 1", v)
	}
	for _, tt := range []struct {
		req  engine.EmbedRequest
		kind engine.Kind
	}{
		{engine.EmbedRequest{Inputs: []engine.Prompt{input(1, 65)}}, engine.KindContextLength},
		{engine.EmbedRequest{Inputs: []engine.Prompt{{}}}, engine.KindInvalid},
		{engine.EmbedRequest{Rerank: true, Inputs: []engine.Prompt{input(1, 5)}}, engine.KindUnsupported},
	} {
		_, err := c.Embed(t.Context(), enginepb.FromEmbedRequest(&tt.req))
		if k := engine.KindOf(enginepb.FromStatusError(err)); k != tt.kind {
			t.Errorf("got %v, want %s", err, tt.kind)
		}
	}
	if out, err := c.Embed(t.Context(), &enginepb.EmbedRequest{}); err != nil || len(out.Vectors) != 0 {
		t.Errorf("no inputs: %v %v", out, err)
	}
	s, err := c.Serve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := request(prompt(5, 1), 1)
	if err := s.Send(&enginepb.ClientFrame{Id: 7, Body: &enginepb.ClientFrame_Submit{Submit: enginepb.FromRequest(&r)}}); err != nil {
		t.Fatal(err)
	}
	if f, err := s.Recv(); err != nil || len(f.Failures) != 1 || f.Failures[0].Error.Kind != string(engine.KindUnsupported) {
		t.Errorf("text from an embedding model: %v %v", f, err)
	}
}

func TestRerankPrompt(t *testing.T) {
	m := embedModel{fakeModel: newFakeModel(smallConfig()), rerank: true}
	c, _ := serveFake(t, opens{m: m})
	if _, err := load(t, c); err != nil {
		t.Fatal(err)
	}
	req := engine.EmbedRequest{Rerank: true, Query: "20 21", Inputs: []engine.Prompt{engine.TextPrompt("30")}}
	out, err := c.Embed(t.Context(), enginepb.FromEmbedRequest(&req))
	if err != nil {
		t.Fatal(err)
	}
	// BOS query EOS document EOS
	if want := float32(fakeBOS + 20 + 21 + fakeEOS + 30 + fakeEOS); out.Vectors[0].Values[0] != want || out.PromptTokens[0] != 6 {
		t.Errorf("got %v of %d tokens, want %g", out.Vectors[0].Values, out.PromptTokens[0], want)
	}
}

func TestEmbedCallerGoesAway(t *testing.T) {
	m := embedModel{fakeModel: newFakeModel(smallConfig())}
	e := newEmbedder(m, testLog(t))
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := fmt.Errorf("gone")
	cancel(gone)
	req := engine.EmbedRequest{Inputs: []engine.Prompt{{Segments: []engine.Segment{{Tokens: prompt(5, 1)}}}}}
	if _, err := e.do(ctx, &req); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	ran := make(chan error, 1)
	go func() { ran <- e.run() }()
	if _, err := e.do(t.Context(), &req); err != nil {
		t.Error(err)
	}
	close(e.stop)
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if _, err := e.do(t.Context(), &req); engine.KindOf(err) != engine.KindUnavailable {
		t.Errorf("after the stop: %v", err)
	}
}

func TestTokenizePrompts(t *testing.T) {
	m := newFakeModel(smallConfig())
	for _, tt := range []struct {
		p    engine.Prompt
		want []engine.Token
	}{
		{engine.TextPrompt("11 12"), []engine.Token{1, 11, 12}},
		{engine.TextPrompt("1 11"), []engine.Token{1, 11}}, // BOS spelled by the template is not doubled
		{engine.Prompt{Segments: []engine.Segment{{Text: "11"}, {Tokens: []engine.Token{5}}, {Text: "12"}}, AddSpecial: true}, []engine.Token{1, 11, 5, 12}},
		{engine.Prompt{Segments: []engine.Segment{{Text: "1 11"}}, AddSpecial: true}, []engine.Token{1, 1, 11}}, // a user's text is not a template's
		{engine.Prompt{Segments: []engine.Segment{{Text: ""}}}, nil},
	} {
		got, err := tokenize(m, &tt.p, fakeSize)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v %v, want %v", tt.p, got, err, tt.want)
		}
	}
}
