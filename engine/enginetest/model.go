// Package enginetest has a fake engine.Model for tests of what talks to models. It answers deterministically, or by a
// script, and remembers what it was asked. It runs no goroutines; its methods may be called from any.
//
// Its vocabulary is bytes: token i is byte i for i < 256, then EOS and BOS. So text of n bytes is n tokens.
package enginetest

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"hearth/engine"
)

// The tokens that are no bytes.
const (
	EOS       engine.Token = 256
	BOS       engine.Token = 257
	VocabSize              = 258
)

// ChatML is a chat template that many models share.
const ChatML = `{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Reply is what the model says unless it is told otherwise.
const Reply = "Hello from the fake model."

// Step is one thing a stream does when its next event is asked for.
type Step struct {
	// Wait, when set, is received from before the step goes on; the stream's end or ctx's end interrupt it.
	Wait  <-chan struct{}
	Event engine.Event
	Err   error // returned in place of Event
}

// Play is how one request goes: an error at once, or steps, then io.EOF.
type Play struct {
	Err   error
	Steps []Step
}

// Model is the fake. Set its fields before use.
type Model struct {
	Details engine.Info
	// Script decides how a request goes; nil: Say(Reply).
	Script func(r engine.Request) Play
	// State is what Stats returns.
	State engine.Stats

	mu       sync.Mutex
	requests []engine.Request
	open     int
	idle     chan struct{} // closed when open is 0
}

// New returns a chat model with a context of 4096 tokens.
func New(name string) *Model {
	idle := make(chan struct{})
	close(idle)
	return &Model{idle: idle, Details: engine.Info{
		Name: name, Architecture: "fake", Description: "fake 0.1K F32", Path: "/models/" + name + ".gguf", SizeBytes: 1000, Params: 100,
		VocabSize: VocabSize, EmbeddingLen: 4, ContextTrain: 8192, Context: 4096, Cells: 16384, MaxSequences: 4,
		ChatTemplate: ChatML, BOS: "<s>", EOS: "</s>", AddsBOS: true, Backend: "cpu",
		Device: engine.Device{Name: "CPU", Description: "fake processor"}, KVLayout: "unified", LlamaVersion: "fake",
	}}
}

// Info implements engine.Model.
func (m *Model) Info() engine.Info { return m.Details }

// Stats implements engine.Model.
func (m *Model) Stats() engine.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.State
	s.Running += m.open
	return s
}

// Requests returns the requests so far, oldest first.
func (m *Model) Requests() []engine.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]engine.Request(nil), m.requests...)
}

// Last returns the newest request, or the zero Request.
func (m *Model) Last() engine.Request {
	all := m.Requests()
	if len(all) == 0 {
		return engine.Request{}
	}
	return all[len(all)-1]
}

// PromptTokens is the length of r's prompt.
func (m *Model) PromptTokens(r engine.Request) int { return len(m.tokenize(r.Prompt)) }

// WaitIdle waits until every stream has been closed.
func (m *Model) WaitIdle(ctx context.Context) error {
	m.mu.Lock()
	idle := m.idle
	m.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d streams are still open: %w", m.open, ctx.Err())
	}
}

// Generate implements engine.Model.
func (m *Model) Generate(ctx context.Context, r engine.Request) (engine.Stream, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if n := len(m.tokenize(r.Prompt)); n >= m.Details.Context {
		return nil, engine.ContextLength(n, m.Details.Context)
	}
	script := m.Script
	if script == nil {
		script = m.Say(Reply)
	}
	play := script(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = append(m.requests, r)
	if play.Err != nil {
		return nil, play.Err
	}
	if m.open == 0 {
		m.idle = make(chan struct{})
	}
	m.open++
	return &stream{model: m, steps: play.Steps, closed: make(chan struct{}), spent: r.Spent, prompt: len(m.tokenize(r.Prompt))}, nil
}

// Tokenize implements engine.Model.
func (m *Model) Tokenize(_ context.Context, p engine.Prompt) ([]engine.Token, error) {
	return m.tokenize(p), nil
}

func (m *Model) tokenize(p engine.Prompt) []engine.Token {
	var out []engine.Token
	if p.AddSpecial && m.Details.AddsBOS {
		out = append(out, BOS)
	}
	for _, s := range p.Segments {
		if s.Tokens != nil {
			out = append(out, s.Tokens...)
			continue
		}
		for _, b := range []byte(s.Text) {
			out = append(out, engine.Token(b))
		}
	}
	return out
}

// Detokenize implements engine.Model.
func (m *Model) Detokenize(_ context.Context, tokens []engine.Token) ([]byte, error) {
	var out []byte
	for _, t := range tokens {
		switch {
		case t >= 0 && t < 256:
			out = append(out, byte(t))
		case t == EOS:
			out = append(out, m.Details.EOS...)
		case t == BOS:
			out = append(out, m.Details.BOS...)
		default:
			return nil, engine.Invalid("tokens", fmt.Sprintf("holds %d, the vocabulary has %d", t, VocabSize))
		}
	}
	return out, nil
}

// Embed implements engine.Model: vectors depend on the bytes alone, scores on how many of the query's words a document
// holds.
func (m *Model) Embed(ctx context.Context, req engine.EmbedRequest) (engine.EmbedResult, error) {
	var out engine.EmbedResult
	for _, in := range req.Inputs {
		tokens := m.tokenize(in)
		if len(tokens) > m.Details.Context {
			return out, engine.ContextLength(len(tokens), m.Details.Context)
		}
		text, err := m.Detokenize(ctx, tokens)
		if err != nil {
			return out, err
		}
		out.PromptTokens = append(out.PromptTokens, len(tokens))
		if req.Rerank {
			out.Vectors = append(out.Vectors, []float32{overlap(req.Query, string(text))})
			continue
		}
		out.Vectors = append(out.Vectors, m.vector(text, req.Normalize))
	}
	return out, nil
}

func overlap(query, document string) float32 {
	score := float32(0)
	for _, word := range strings.Fields(query) {
		if strings.Contains(document, word) {
			score++
		}
	}
	return score
}

func (m *Model) vector(text []byte, normalize bool) []float32 {
	v := make([]float32, m.Details.EmbeddingLen)
	length := 0.0
	for i := range v {
		h := fnv.New32a()
		_, _ = h.Write(append(text, byte(i))) // a hash never fails
		v[i] = float32(h.Sum32()%1000)/500 - 1
		length += float64(v[i]) * float64(v[i])
	}
	if normalize {
		for i := range v {
			v[i] /= float32(math.Sqrt(length))
		}
	}
	return v
}

type stream struct {
	model  *Model
	steps  []Step
	once   sync.Once
	closed chan struct{}

	mu     sync.Mutex
	spent  func(engine.Usage) // nil when it was called
	prompt int                // tokens, all of them computed at once
	said   int                // tokens
}

// count tells what the request cost: u, or at its early end what was computed until then.
func (s *stream) count(u *engine.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spent == nil {
		return
	}
	if u == nil {
		u = &engine.Usage{PromptTokens: s.prompt, CompletionTokens: s.said}
	}
	s.spent(*u)
	s.spent = nil
}

// Next implements engine.Stream.
func (s *stream) Next(ctx context.Context) (engine.Event, error) {
	gone := &engine.Error{Kind: engine.KindCancelled, Message: "the stream is closed"}
	select {
	case <-s.closed:
		return engine.Event{}, gone
	case <-ctx.Done():
		return engine.Event{}, ctx.Err()
	default:
	}
	if len(s.steps) == 0 {
		return engine.Event{}, io.EOF
	}
	step := s.steps[0]
	s.steps = s.steps[1:]
	if step.Wait != nil {
		select {
		case <-step.Wait:
		case <-s.closed:
			return engine.Event{}, gone
		case <-ctx.Done():
			return engine.Event{}, ctx.Err()
		}
	}
	s.mu.Lock()
	s.said += len(step.Event.Tokens)
	s.mu.Unlock()
	if step.Event.Usage != nil {
		s.count(step.Event.Usage)
	}
	return step.Event, step.Err
}

// Close implements engine.Stream.
func (s *stream) Close() {
	s.once.Do(func() {
		close(s.closed)
		s.count(nil)
		s.model.mu.Lock()
		defer s.model.mu.Unlock()
		if s.model.open--; s.model.open == 0 {
			close(s.model.idle)
		}
	})
}

// usage is the same for the same request, so that replies can be compared byte by byte.
func usage(prompt, completion int) *engine.Usage {
	return &engine.Usage{
		PromptTokens: prompt, CachedTokens: prompt / 2, CompletionTokens: completion,
		Queue: time.Millisecond, Prefill: 10 * time.Millisecond, Decode: 100 * time.Millisecond, Seed: 1,
	}
}
