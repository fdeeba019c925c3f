package native

import (
	"errors"
	"math"
	"slices"

	"hearth/engine"
	"hearth/engine/llama"
	"hearth/engine/worker"
)

// row implements worker.Row: a sampler row, and a grammar when there is one. The grammar does not mask the vocabulary
// (5 to 150 ms a token); the row samples freely first, and only a token that does not fit is drawn again.
type row struct {
	r      *llama.Row
	g      *llama.Grammar
	window int           // tokens of the prompt worth showing: the longest window of penalties and DRY; -1: all
	err    error         // of the last draw
	broken error         // for good: a kept token that the grammar or the history did not take
	banned []llama.Token // by logit_bias
}

// NewRow implements worker.Model.
func (m *model) NewRow(p worker.RowParams) (worker.Row, error) {
	s := p.Sampling
	sp := llama.NewSampleParams()
	sp.Temperature, sp.TopK, sp.MinP, sp.Seed, sp.Logprobs = s.Temperature, max(0, s.TopK), s.MinP, p.Seed, p.Logprobs
	sp.PenaltyLastN, sp.FrequencyPenalty, sp.PresencePenalty = s.RepeatLastN, s.FrequencyPenalty, s.PresencePenalty
	if s.TopP > 0 {
		sp.TopP = s.TopP
	}
	if s.RepeatPenalty > 0 {
		sp.RepeatPenalty = s.RepeatPenalty
	}
	if len(s.LogitBias) > 0 {
		sp.Bias = make(map[llama.Token]float32, len(s.LogitBias))
		for _, b := range s.LogitBias {
			if b.Token < 0 || int(b.Token) >= m.info.VocabSize {
				return nil, engine.Invalid("logit_bias", "names a token outside the vocabulary")
			}
			sp.Bias[b.Token] += b.Value
		}
	}
	if p.IgnoreEOS {
		sp.Ban = m.m.EOG()
	}
	r := &row{window: window(s), banned: banned(sp.Bias)}
	if err := anyLeft(sp, r.banned, m.info.VocabSize); err != nil {
		return nil, err
	}
	sp.Chain = chain(s)
	var err error
	if r.r, err = m.m.NewRow(sp); err != nil {
		return nil, rowError(err)
	}
	if s.Grammar != "" {
		if r.g, err = m.m.NewGrammar(grammar(s)); err != nil {
			r.Close()
			return nil, rowError(err)
		}
	}
	return r, nil
}

// banned lists the tokens that biases take from the vocabulary, lowest first.
func banned(bias map[llama.Token]float32) []llama.Token {
	var out []llama.Token
	for t, b := range bias {
		if math.IsInf(float64(b), -1) {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return out
}

// anyLeft refuses bans that leave nothing to draw.
func anyLeft(sp llama.SampleParams, banned []llama.Token, vocab int) error {
	n := len(banned)
	for _, t := range sp.Ban {
		if _, both := slices.BinarySearch(banned, t); !both {
			n++
		}
	}
	switch {
	case n < vocab || len(banned) == 0:
		return nil
	case n == len(banned):
		return engine.Invalid("logit_bias", "bans every token of the vocabulary")
	}
	return engine.Invalid("logit_bias", "bans every token that ignore_eos leaves")
}

// chain are the settings that only llama.cpp's own samplers have; nil when none is used.
func chain(s *engine.Sampling) *llama.ChainParams {
	c := llama.ChainParams{
		TopNSigma: max(0, s.TopNSigma), XTCProbability: s.XTCProbability, XTCThreshold: s.XTCThreshold, MinKeep: s.MinKeep,
		DynaRange: s.DynatempRange, DynaExponent: s.DynatempExponent,
		Mirostat: s.Mirostat, MirostatTau: s.MirostatTau, MirostatEta: s.MirostatEta,
	}
	if s.TypicalP > 0 && s.TypicalP < 1 {
		c.Typical = s.TypicalP
	}
	if s.DRY.Multiplier > 0 {
		c.DRYMultiplier, c.DRYBase = s.DRY.Multiplier, s.DRY.Base
		c.DRYAllowedLength, c.DRYLastN, c.DRYBreakers = s.DRY.AllowedLength, s.DRY.PenaltyLastN, s.DRY.SequenceBreakers
	}
	on := c.TopNSigma > 0 || c.XTCProbability > 0 || c.DynaRange > 0 || c.Mirostat > 0 || c.Typical > 0 || c.DRYMultiplier > 0 || c.MinKeep > 1
	// Greedy is greedy: of these only DRY changes which token is most likely.
	if !on || s.Temperature == 0 && c.DRYMultiplier == 0 && c.Mirostat == 0 && c.DynaRange == 0 {
		return nil
	}
	return &c
}

func grammar(s *engine.Sampling) llama.GrammarParams {
	g := llama.GrammarParams{GBNF: s.Grammar, Lazy: s.GrammarLazy}
	for _, t := range s.GrammarTriggers {
		if t.Pattern != "" {
			g.Patterns = append(g.Patterns, t.Pattern)
		} else {
			g.Tokens = append(g.Tokens, t.Token)
		}
	}
	return g
}

// window is how much of the prompt the penalties and DRY look at, in tokens; -1: all of it.
func window(s *engine.Sampling) int {
	n := 0
	see := func(last int) {
		if last < 0 || n < 0 {
			n = -1
		} else {
			n = max(n, last)
		}
	}
	if s.RepeatPenalty > 0 && s.RepeatPenalty != 1 || s.FrequencyPenalty != 0 || s.PresencePenalty != 0 {
		see(s.RepeatLastN)
	}
	if s.DRY.Multiplier > 0 {
		see(s.DRY.PenaltyLastN)
	}
	return n
}

// rowError names the request field behind a refused setting.
func rowError(err error) error {
	switch {
	case errors.Is(err, llama.ErrGrammar):
		return &engine.Error{Kind: engine.KindInvalid, Field: "grammar", Message: "grammar does not parse", Cause: err}
	case errors.Is(err, llama.ErrRange):
		return &engine.Error{Kind: engine.KindInvalid, Message: "a sampling setting is out of range", Cause: err}
	case errors.Is(err, llama.ErrUnsupported):
		return &engine.Error{Kind: engine.KindUnsupported, Message: "this model cannot serve a sampling setting", Cause: err}
	default:
		return &engine.Error{Kind: engine.KindInternal, Message: "the sampler cannot be made", Cause: err}
	}
}

// settle checks the row's draw against its grammar and draws again where it does not fit.
func (r *row) settle(m *model, job llama.Job) {
	err := r.r.Err()
	if r.g == nil {
		if err != nil {
			r.err = sampleError(err)
		}
		return
	}
	if err == nil {
		if ok, err := r.g.Allows(r.r.Token()); err == nil && ok {
			return
		}
	}
	switch again := m.s.Resample(m.rows, job, r.g); {
	case again == nil:
	case err == nil && errors.Is(again, llama.ErrNoCandidate): // without the grammar there was one
		r.err = r.deadEnd(again)
	default:
		r.err = sampleError(again)
	}
}

// deadEnd is the error for a text that may not go on, by the grammar and the bans together.
func (r *row) deadEnd(cause error) error {
	allowed := make([]bool, len(r.banned))
	if r.g.AllowsEach(r.banned, allowed) == nil && slices.Contains(allowed, true) {
		return &engine.Error{
			Kind: engine.KindInvalid, Field: "logit_bias", Cause: cause,
			Message: "logit_bias bans every token that the grammar lets follow the text so far",
		}
	}
	return &engine.Error{
		Kind: engine.KindInvalid, Field: "grammar", Cause: cause,
		Message: "grammar leaves no token that can follow the text so far, and does not let it end",
	}
}

// sampleError words a failure that no setting of the request is known to have caused, except by a grammar on which
// llama.cpp gave up.
func sampleError(err error) error {
	switch {
	case errors.Is(err, llama.ErrGrammar):
		return &engine.Error{Kind: engine.KindInvalid, Field: "grammar", Message: "grammar cannot be followed any further", Cause: err}
	case errors.Is(err, llama.ErrNoCandidate):
		return &engine.Error{Kind: engine.KindInternal, Message: "the model left no token to choose from", Cause: err}
	}
	return &engine.Error{Kind: engine.KindInternal, Message: "the sampler failed", Cause: err}
}

// AcceptPrompt implements worker.Row.
func (r *row) AcceptPrompt(tokens []engine.Token) {
	if r.window >= 0 && len(tokens) > r.window {
		tokens = tokens[len(tokens)-r.window:]
	}
	for _, t := range tokens {
		if err := r.r.Accept(t); err != nil {
			r.broken = sampleError(err)
			return
		}
	}
}

// Resume implements worker.Row.
func (r *row) Resume(tokens []engine.Token) error {
	for _, t := range tokens {
		r.Accept(t)
		if r.broken != nil {
			return r.broken
		}
	}
	r.r.SetDraw(uint64(len(tokens)))
	return nil
}

// Accept implements worker.Row.
func (r *row) Accept(t engine.Token) {
	if err := r.r.Accept(t); err != nil {
		r.broken = sampleError(err)
	}
	if r.g == nil {
		return
	}
	if err := r.g.Accept(t); err != nil {
		r.broken = sampleError(err)
	}
}

// Token implements worker.Row.
func (r *row) Token() engine.Token { return r.r.Token() }

// Logprob implements worker.Row.
func (r *row) Logprob() float32 { return r.r.Logprob() }

// Top implements worker.Row.
func (r *row) Top() ([]engine.Token, []float32) { return r.r.Top() }

// Err implements worker.Row.
func (r *row) Err() error {
	if r.broken != nil {
		return r.broken
	}
	return r.err
}

// Close implements worker.Row.
func (r *row) Close() {
	_ = r.r.Close()
	if r.g != nil {
		_ = r.g.Close()
	}
}
