package llama

// #include "sampler.h"
import "C"

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"unsafe"
)

// SampleParams are one request's sampling settings. Start from
// NewSampleParams; a zero RepeatPenalty is refused, so that a forgotten one shows.
type SampleParams struct {
	Temperature float32 // 0 = greedy, ties to the lowest id
	TopK        int     // likeliest tokens kept; 0 = off
	TopP        float32 // mass kept, 0..1; 1 = off, 0 = the likeliest token only
	MinP        float32 // least probability over the likeliest token's; 0 = off

	// PenaltyLastN is how many of the last accepted tokens the penalties look
	// at; 0 = none, negative = all.
	PenaltyLastN     int
	RepeatPenalty    float32 // > 0; 1 = off
	FrequencyPenalty float32 // per occurrence; 0 = off
	PresencePenalty  float32 // once; 0 = off

	Bias map[Token]float32 // added to logits first of all
	Ban  []Token           // never sampled; Model.EOG() for ignore_eos

	Seed uint64 // with the number of the draw it decides every draw

	// Logprobs: -1 = none, 0 = of the sampled token, n = and of the n
	// likeliest. By the model's own logits, before bias and penalties.
	Logprobs int

	// Chain asks for llama.cpp's own samplers in place of the kernel's filters.
	Chain *ChainParams
}

// NewSampleParams returns settings that change nothing: temperature 1, all
// filters and penalties off, a window of 64 tokens, no logprobs.
func NewSampleParams() SampleParams {
	return SampleParams{Temperature: 1, TopP: 1, RepeatPenalty: 1, PenaltyLastN: 64, Logprobs: -1}
}

// MaxLogprobs is the most likeliest tokens a row can list.
const MaxLogprobs = 1024

// Validate names the field that cannot be, wrapping ErrRange.
func (p *SampleParams) Validate(vocab int) error {
	bad := func(field string, v any) error {
		return fail("sample params", ErrRange, fmt.Sprintf("%s = %v", field, v))
	}
	finite := func(f float32) bool { return !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0) }
	switch {
	case !finite(p.Temperature) || p.Temperature < 0:
		return bad("Temperature", p.Temperature)
	case p.TopK < 0 || p.TopK > math.MaxInt32:
		return bad("TopK", p.TopK)
	case !(p.TopP >= 0 && p.TopP <= 1):
		return bad("TopP", p.TopP)
	case !(p.MinP >= 0 && p.MinP <= 1):
		return bad("MinP", p.MinP)
	case !finite(p.RepeatPenalty) || p.RepeatPenalty <= 0:
		return bad("RepeatPenalty", p.RepeatPenalty)
	case !finite(p.FrequencyPenalty):
		return bad("FrequencyPenalty", p.FrequencyPenalty)
	case !finite(p.PresencePenalty):
		return bad("PresencePenalty", p.PresencePenalty)
	case p.Logprobs < -1 || p.Logprobs > MaxLogprobs:
		return bad("Logprobs", p.Logprobs)
	}
	for t, b := range p.Bias {
		if t < 0 || int(t) >= vocab || math.IsNaN(float64(b)) || math.IsInf(float64(b), 1) {
			return bad("Bias", fmt.Sprintf("%d:%v", t, b))
		}
	}
	for _, t := range p.Ban {
		if t < 0 || int(t) >= vocab {
			return bad("Ban", t)
		}
	}
	if p.Chain != nil {
		return p.Chain.validate()
	}
	return nil
}

// Row is one request's settings, penalty window and draw counter, kept in C
// memory so that a step passes only pointers; the last result is in it too.
type Row struct {
	lease
	h     *C.hs_row
	m     *Model
	vocab int
	chain *C.hs_chain

	penalties bool
	lastN     int           // window length, negative = unbounded
	window    []Token       // ring of the last lastN tokens
	head      int           // next place in window
	at        map[Token]int // token -> its index in the C arrays
}

// NewRow makes a row for the model's vocabulary. Errors: ErrRange naming the
// field, ErrOutOfMemory, ErrUnsupported for a chain the model cannot serve.
func (m *Model) NewRow(p SampleParams) (*Row, error) {
	r, err := newRow(m.info.Vocab, p, m.log)
	if err != nil {
		return nil, err
	}
	if p.Chain == nil {
		return r, nil
	}
	if !m.refs.acquire() {
		r.Close()
		return nil, fail("new row", ErrClosed, "model")
	}
	r.m = m
	if r.chain, err = newChain(m, p); err != nil {
		r.Close()
		return nil, err
	}
	r.h.chain = r.chain
	return r, nil
}

func newRow(vocab int, p SampleParams, log *slog.Logger) (*Row, error) {
	if err := p.Validate(vocab); err != nil {
		return nil, err
	}
	h := C.hs_row_new()
	if h == nil {
		return nil, fail("new row", ErrOutOfMemory, "")
	}
	if !C.hs_row_reserve(h, C.int32_t(len(p.Bias)+len(p.Ban)), 0, C.int32_t(max(p.Logprobs, 0))) {
		C.hs_row_free(h)
		return nil, fail("new row", ErrOutOfMemory, "")
	}
	h.temp, h.top_p, h.min_p, h.top_k = C.float(p.Temperature), C.float(p.TopP), C.float(p.MinP), C.int32_t(p.TopK)
	h.rep, h.freq, h.pres = C.float(p.RepeatPenalty), C.float(p.FrequencyPenalty), C.float(p.PresencePenalty)
	h.n_logprobs, h.seed = C.int32_t(p.Logprobs), C.uint64_t(p.Seed)
	r := &Row{h: h, vocab: vocab, lastN: p.PenaltyLastN}
	r.penalties = r.lastN != 0 && (p.RepeatPenalty != 1 || p.FrequencyPenalty != 0 || p.PresencePenalty != 0)
	if r.penalties {
		r.at = make(map[Token]int)
	}
	r.setBias(p)
	track(&r.lease, r, "row", log)
	return r, nil
}

func (r *Row) setBias(p SampleParams) {
	n := len(p.Bias) + len(p.Ban)
	if n == 0 {
		return
	}
	toks, vals := unsafe.Slice(r.h.bias_tok, n), unsafe.Slice(r.h.bias_val, n)
	i := 0
	for _, t := range slices.Sorted(maps.Keys(p.Bias)) {
		toks[i], vals[i] = C.int32_t(t), C.float(p.Bias[t])
		i++
	}
	for _, t := range p.Ban {
		toks[i], vals[i] = C.int32_t(t), C.float(math.Inf(-1))
		i++
	}
	r.h.n_bias = C.int32_t(n)
}

// Close frees the row.
func (r *Row) Close() error {
	if r.release() {
		C.hs_chain_free(r.chain)
		C.hs_row_free(r.h)
		r.h, r.chain = nil, nil
		if r.m != nil {
			r.m.refs.release()
		}
	}
	return nil
}

// Accept adds a token to the request's history: prompt tokens that penalties
// should see, and every token that is kept. It enters C only for chains.
func (r *Row) Accept(tok Token) error {
	if r.closed.Load() {
		return fail("accept", ErrClosed, "row")
	}
	if tok < 0 || int(tok) >= r.vocab {
		return fail("accept", ErrRange, fmt.Sprintf("token %d of %d", tok, r.vocab))
	}
	if r.chain != nil {
		var e C.hs_err
		if rc := C.hs_chain_accept(r.chain, C.int32_t(tok), &e); rc != C.HS_OK {
			return shimError("accept", ErrException, rc, &e)
		}
	}
	if !r.penalties {
		return nil
	}
	if r.lastN > 0 {
		if len(r.window) < r.lastN {
			r.window = append(r.window, tok)
		} else {
			r.forget(r.window[r.head])
			r.window[r.head] = tok
			r.head = (r.head + 1) % r.lastN
		}
	}
	return r.count(tok)
}

// count adds one occurrence to the C arrays.
func (r *Row) count(tok Token) error {
	i, ok := r.at[tok]
	if !ok {
		i = int(r.h.n_pen)
		if i == int(r.h.cap_pen) && !C.hs_row_reserve(r.h, 0, C.int32_t(max(32, 2*i)), 0) {
			return fail("accept", ErrOutOfMemory, "")
		}
		toks, counts := r.seen(i + 1)
		toks[i], counts[i] = C.int32_t(tok), 0
		r.h.n_pen++
		r.at[tok] = i
	}
	_, counts := r.seen(i + 1)
	counts[i]++
	return nil
}

// forget takes one occurrence back; the last entry moves into a hole.
func (r *Row) forget(tok Token) {
	i := r.at[tok]
	n := int(r.h.n_pen)
	toks, counts := r.seen(n)
	if counts[i]--; counts[i] > 0 {
		return
	}
	toks[i], counts[i] = toks[n-1], counts[n-1]
	r.at[Token(toks[i])] = i
	delete(r.at, tok)
	r.h.n_pen--
}

func (r *Row) seen(n int) (toks, counts []C.int32_t) {
	return unsafe.Slice(r.h.pen_tok, n), unsafe.Slice(r.h.pen_count, n)
}

// Token is the last sampled token, NullToken before the first.
func (r *Row) Token() Token { return Token(r.h.token) }

// Logprob is its log-probability by the model's own logits, NaN unless asked for.
func (r *Row) Logprob() float32 { return float32(r.h.logprob) }

// Top lists the likeliest tokens with their log-probabilities, likeliest first,
// as many as SampleParams.Logprobs. The slices are valid until the next Sample.
func (r *Row) Top() ([]Token, []float32) {
	n := int(r.h.n_top)
	if n == 0 {
		return nil, nil
	}
	return unsafe.Slice((*Token)(r.h.top_tok), n), unsafe.Slice((*float32)(r.h.top_logprob), n)
}

// Err is why the last Sample gave this row no token.
func (r *Row) Err() error { return rowError(C.int(r.h.status)) }

// Draw is the number of the next draw: how many tokens the row has sampled.
func (r *Row) Draw() uint64 { return uint64(r.h.draw) }

// SetDraw continues a request elsewhere: after SetDraw(n) and the same n
// accepted tokens the row draws as the original did. Mirostat alone keeps state
// of its own and does not.
func (r *Row) SetDraw(n uint64) { r.h.draw = C.uint64_t(n) }

// Reference returns what llama.cpp's own sampler chain would draw from with the
// same settings over a history of accepted tokens, likeliest first: the yardstick
// for the kernel in tests and in the worker's self-test. Milliseconds per call.
func Reference(logits []float32, p SampleParams, history []Token) ([]Token, []float32, error) {
	r, err := newRow(len(logits), p, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	for _, t := range history {
		if t < 0 || int(t) >= len(logits) {
			return nil, nil, fail("reference", ErrRange, fmt.Sprintf("token %d", t))
		}
	}
	lastN := p.PenaltyLastN
	if lastN < 0 {
		lastN = len(history)
	}
	tok, prob := make([]Token, len(logits)), make([]float32, len(logits))
	var e C.hs_err
	n := C.hs_reference(C.int32_t(len(logits)), (*C.float)(&logits[0]), r.h, (*C.int32_t)(unsafe.SliceData(history)),
		C.int32_t(len(history)), C.int32_t(lastN), C.int32_t(len(tok)), (*C.int32_t)(&tok[0]), (*C.float)(&prob[0]), &e)
	if n < 0 {
		return nil, nil, shimError("reference", ErrException, C.int(n), &e)
	}
	return tok[:n], prob[:n], nil
}
