package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/batch/kvsim"
)

// Tokens of the fake vocabulary: id t reads "t ", below fakeText nothing is text.
const (
	fakeBOS  = 1
	fakeEOS  = 2
	fakeText = 10
	fakeSize = 1000
)

// fakeModel computes with kvsim, a plain model of llama.cpp's memory: its next token depends on every token that the
// sequence really holds, so a wrong cell gives a wrong answer.
type fakeModel struct {
	cfg  batch.Config
	sim  *kvsim.Sim
	outs []int // row of each output

	mu        sync.Mutex
	code      func(step int) batch.Code // test's say in each decode's result; nil: CodeOK
	decode    func(rows []batch.Row)    // called before each decode
	saveFails func() bool
	loadFails bool
	loadLost  bool // loads do nothing
	backend   string
	lastRows  int  // of the last step
	wrongFrom int  // steps with more rows that are no multiple of 8 are computed wrongly; 0: none
	partsLost bool // loads of other than the first cells do nothing
	copies    bool // a copy to or from host memory takes 2 ms for each run of cells and 10 us for each
	copyLost  bool // copies do nothing: what the self-test must notice
	steps     int
	rows      int // open Rows
	async     bool
	auto      bool
	relaid    []batch.Layout
}

func newFakeModel(cfg batch.Config) *fakeModel {
	return &fakeModel{cfg: cfg, sim: kvsim.New(kvsim.ConfigOf(cfg))}
}

func smallConfig() batch.Config {
	return batch.Config{Cells: 512, Context: 256, Sequences: 8, Parking: 16, Chunk: 64, Outputs: 8}
}

func (m *fakeModel) Tokenize(text string, addSpecial, _ bool) ([]engine.Token, error) {
	var out []engine.Token
	if addSpecial {
		out = append(out, fakeBOS)
	}
	for _, w := range strings.Fields(text) {
		n, err := strconv.Atoi(w)
		if err != nil || n < 0 || n >= fakeSize {
			return nil, fmt.Errorf("no token reads %q", w)
		}
		out = append(out, engine.Token(n))
	}
	return out, nil
}

func (m *fakeModel) Piece(t engine.Token) []byte {
	if t < fakeText {
		return nil
	}
	return fmt.Appendf(nil, "%d ", t)
}
func (m *fakeModel) SpecialPiece(t engine.Token) []byte { return fmt.Appendf(nil, "%d ", t) }
func (m *fakeModel) IsEOG(t engine.Token) bool          { return t == fakeEOS }
func (m *fakeModel) BOS() engine.Token                  { return fakeBOS }
func (m *fakeModel) EOS() engine.Token                  { return fakeEOS }
func (m *fakeModel) SEP() engine.Token                  { return -1 }
func (m *fakeModel) Info() engine.Info                  { return engine.Info{VocabSize: fakeSize, Backend: m.backend} }
func (m *fakeModel) Config() batch.Config               { return m.cfg }
func (m *fakeModel) CanRelayout() bool                  { return m.auto }
func (m *fakeModel) Relayout(l batch.Layout) (batch.Config, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.relaid = append(m.relaid, l)
	m.cfg.Layout = l
	return m.cfg, m.Clear()
}
func (m *fakeModel) Abort()                  {}
func (m *fakeModel) Close()                  {}
func (m *fakeModel) Async() bool             { return m.async }
func (m *fakeModel) GraphsReused() uint64    { return 0 }
func (m *fakeModel) EmbedLimits() (int, int) { return 64, 4 }

// Embed answers (sum of the tokens, how many).
func (m *fakeModel) Embed(texts [][]engine.Token, each func(int, []float32)) error {
	for i, t := range texts {
		v := []float32{0, float32(len(t))}
		for _, x := range t {
			v[0] += float32(x)
		}
		each(i, v)
	}
	m.mu.Lock()
	m.steps++
	m.mu.Unlock()
	return nil
}

func (m *fakeModel) Remove(seq, p0, p1 int32) error { return m.sim.Remove(seq, p0, p1) }
func (m *fakeModel) Copy(src, dst, p0, p1 int32) error {
	if m.copyLost {
		return nil
	}
	return m.sim.Copy(src, dst, p0, p1)
}

func (m *fakeModel) Save(seq, slot int32) error {
	if m.saveFails != nil && m.saveFails() {
		return errors.New("the test says that there is no memory")
	}
	m.copied(seq)
	return m.sim.Save(seq, slot)
}

// copied waits for as long as copying a sequence takes.
func (m *fakeModel) copied(seq int32) {
	if m.copies {
		<-time.After(time.Duration(m.sim.Runs(seq))*2*time.Millisecond + time.Duration(len(m.sim.Tokens(seq)))*10*time.Microsecond)
	}
}

func (m *fakeModel) Load(slot, seq, from, to int32) error {
	switch {
	case m.loadLost, m.partsLost && from > 0:
		return nil
	case m.loadFails:
		return errors.New("the test says that the state does not fit")
	}
	err := m.sim.Load(slot, seq, from, to)
	m.copied(seq)
	return err
}
func (m *fakeModel) Forget(slot int32)               { _ = m.sim.Apply(batch.Op{Kind: batch.OpForget, Host: slot}) }
func (m *fakeModel) SaveSize(seq int32) (int, error) { return 30 + 10*int(m.sim.End(seq)), nil }

func (m *fakeModel) Clear() error {
	old := m.sim
	m.sim = kvsim.New(kvsim.ConfigOf(m.cfg))
	m.sim.TakeSaved(old)
	return nil
}
func (m *fakeModel) PosMin(seq int32) int32 { return min(0, m.sim.End(seq)-1) }
func (m *fakeModel) PosMax(seq int32) int32 { return m.sim.End(seq) - 1 }

func (m *fakeModel) Decode(rows []batch.Row) (batch.Code, error) {
	m.mu.Lock()
	m.steps++
	code, hook := batch.CodeOK, m.decode
	if m.code != nil {
		code = m.code(m.steps)
	}
	m.mu.Unlock()
	if hook != nil {
		hook(rows)
	}
	if code != batch.CodeOK {
		return code, fmt.Errorf("the test says %d", code)
	}
	m.lastRows = len(rows)
	m.outs = m.outs[:0]
	for i, r := range rows {
		if r.Output >= 0 {
			m.outs = append(m.outs, i)
		}
	}
	return m.sim.Decode(rows)
}

func (m *fakeModel) Sync() (batch.Code, error) { return batch.CodeOK, nil }

// Logits are 1 for the answer and 0 elsewhere.
func (m *fakeModel) Logits(k int) []float32 {
	out := make([]float32, fakeSize)
	at := int(m.sim.Next(m.outs[k]))
	if m.wrongFrom > 0 && m.lastRows > m.wrongFrom && m.lastRows%8 != 0 {
		at++
	}
	out[at%fakeSize] = 1
	return out
}

func (m *fakeModel) Sample(picks []Pick) error {
	for _, p := range picks {
		r := p.Row.(*fakeRow)
		r.token = r.pick(m.sim.Next(m.outs[p.Output]))
		r.draws++
	}
	return nil
}

func (m *fakeModel) NewRow(p RowParams) (Row, error) {
	if p.Sampling.Grammar == "bad" {
		return nil, engine.Invalid("grammar", "does not parse")
	}
	m.mu.Lock()
	m.rows++
	m.mu.Unlock()
	return &fakeRow{m: m, p: p}, nil
}

func (m *fakeModel) openRows() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows
}

type fakeRow struct {
	m      *fakeModel
	p      RowParams
	draws  uint64
	token  engine.Token
	closed bool
}

// pick is the model's answer at temperature 0 and something that depends on seed and draw otherwise. EOS never comes
// from the model itself: tests ask for it by token 500, which reads as one.
func (r *fakeRow) pick(answer engine.Token) engine.Token {
	if r.p.Sampling.Temperature == 0 {
		return max(answer, fakeText)
	}
	rng := rand.New(rand.NewPCG(r.p.Seed, r.draws))
	return fakeText + (answer+engine.Token(rng.IntN(fakeSize)))%(fakeSize-fakeText)
}

func (r *fakeRow) AcceptPrompt([]engine.Token) {}
func (r *fakeRow) Resume(tokens []engine.Token) error {
	r.draws = uint64(len(tokens))
	return nil
}
func (r *fakeRow) Accept(engine.Token) {}
func (r *fakeRow) Token() engine.Token { return r.token }
func (r *fakeRow) Logprob() float32    { return -0.5 }
func (r *fakeRow) Top() ([]engine.Token, []float32) {
	return []engine.Token{r.token, 11}, []float32{-0.5, -1}
}
func (r *fakeRow) Err() error {
	if r.p.Sampling.Grammar == "dead" && r.draws > 2 {
		return &engine.Error{Kind: engine.KindInternal, Message: "no token fits"}
	}
	return nil
}

func (r *fakeRow) Close() {
	if !r.closed {
		r.m.mu.Lock()
		r.m.rows--
		r.m.mu.Unlock()
	}
	r.closed = true
}

// truth is what a greedy request must answer: n tokens behind prompt.
func truth(prompt []engine.Token, n int) []engine.Token {
	seq := append([]engine.Token(nil), prompt...)
	for range n {
		seq = append(seq, max(kvsim.Answer(seq, fakeSize), fakeText))
	}
	return seq[len(prompt):]
}

// textOf is how tokens read.
func textOf(tokens []engine.Token) string {
	var b strings.Builder
	for _, t := range tokens {
		if t >= fakeText {
			fmt.Fprintf(&b, "%d ", t)
		}
	}
	return b.String()
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, nil))
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
