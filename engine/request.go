package engine

import (
	"fmt"
	"math"
)

// Token is a vocabulary id of the loaded model, 0 <= id < Info.VocabSize. It has llama.cpp's width (llama_token).
type Token = int32

// Segment is one run of prompt: text to tokenise, or tokens given as they are. Tokens win when both are set.
type Segment struct {
	Text string
	// Special says that special tokens spelled in Text ("<|im_start|>") become their ids. Text that a user typed
	// should not have it, text that a chat template wrote must.
	Special bool
	Tokens  []Token
}

// Prompt is the model's input, in order.
type Prompt struct {
	Segments []Segment
	// AddSpecial lets the vocabulary add its BOS (and EOS) as the model's tokenizer settings say. A BOS already
	// spelled at the start of the first segment is not doubled.
	AddSpecial bool
}

// TextPrompt is a prompt of one segment of trusted text, as a chat template renders it.
func TextPrompt(text string) Prompt {
	return Prompt{Segments: []Segment{{Text: text, Special: true}}, AddSpecial: true}
}

// Priority orders requests before fairness does. The zero value is what interactive clients get.
type Priority int8

// Priority classes, most urgent first.
const (
	PriorityHigh   Priority = 1
	PriorityNormal Priority = 0
	PriorityBatch  Priority = -1
)

// Request asks for N continuations of one prompt.
type Request struct {
	// ID names the request in logs and errors; it is unique among the requests of a front end.
	ID     string
	Prompt Prompt
	// N is how many independent continuations ("choices") to sample, 1..MaxChoices; 0 means 1. The prompt is prefilled once.
	N int
	// MaxTokens bounds each choice's output, in tokens. Negative: until the context is full. Zero asks for no output.
	MaxTokens int
	// Stop lists strings that end a choice. The stop string itself is not part of the text.
	Stop []string
	// StopTokens lists token ids that end a choice, beside the model's own end-of-generation tokens.
	StopTokens []Token
	// IgnoreEOS bans end-of-generation tokens, for load tests.
	IgnoreEOS bool
	Sampling  Sampling
	// Logprobs asks for the log-probability of each sampled token.
	Logprobs bool
	// TopLogprobs asks for that many most likely alternatives beside each token, 0..MaxTopLogprobs; needs Logprobs.
	TopLogprobs int
	// CachePrompt lets the prefix cache be used and filled. Results may differ in the last bits between a cached and
	// an uncached run, as they do between batch sizes.
	CachePrompt bool
	// Tenant separates API keys for fairness and, where the worker is told so, for the prefix cache. Never logged.
	Tenant   string
	Priority Priority
	// Progress asks for prefill progress events.
	Progress bool
	// Resume lists, per choice, tokens which an earlier run of this request already produced and sent. The worker
	// continues behind them and does not send them again; they count as output and for penalties.
	Resume [][]Token
	// Spent, when set, is called at most once, from any goroutine, with what the request cost: before the event with its
	// Usage can be read, or, when its stream was closed before, once the worker has dropped it. It must not block. A request
	// that was refused cost nothing and is not told. It stays in the process that made the request.
	Spent func(Usage)
}

// Limits of a Request.
const (
	MaxChoices     = 128
	MaxTopLogprobs = 20
	MaxStopStrings = 16
)

// Validate checks everything that does not need the model, and names the field at fault in an *Error of KindInvalid.
func (r *Request) Validate() error {
	switch {
	case r.N < 0 || r.N > MaxChoices:
		return Invalid("n", fmt.Sprintf("must be between 1 and %d", MaxChoices))
	case r.TopLogprobs < 0 || r.TopLogprobs > MaxTopLogprobs:
		return Invalid("top_logprobs", fmt.Sprintf("must be between 0 and %d", MaxTopLogprobs))
	case r.TopLogprobs > 0 && !r.Logprobs:
		return Invalid("top_logprobs", "needs logprobs to be true")
	case len(r.Stop) > MaxStopStrings:
		return Invalid("stop", fmt.Sprintf("has %d strings, at most %d are allowed", len(r.Stop), MaxStopStrings))
	case len(r.Resume) > max(r.N, 1):
		return Invalid("resume", "lists more choices than n")
	}
	for _, s := range r.Stop {
		if s == "" {
			return Invalid("stop", "must not hold an empty string")
		}
	}
	return r.Sampling.Validate()
}

// Choices is N with its default applied.
func (r *Request) Choices() int { return max(r.N, 1) }

// Bias adds Value to the logit of Token before anything else; -Inf bans it.
type Bias struct {
	Token Token
	Value float32
}

// Sampling is how the next token is drawn. Fields are applied in the order penalties, DRY, top-n-sigma, top-k,
// typical, top-p, min-p, XTC, temperature, which is llama.cpp's default order. The zero value is greedy.
type Sampling struct {
	// Temperature divides the logits; 0 means greedy (most likely token, lowest id on a tie).
	Temperature float32
	// TopK keeps the K most likely tokens; <= 0: off.
	TopK int
	// TopP keeps the smallest set of tokens whose probability reaches P; >= 1 or 0: off.
	TopP float32
	// MinP drops tokens less likely than P times the most likely one; 0: off.
	MinP float32
	// TypicalP is locally typical sampling; >= 1 or 0: off.
	TypicalP float32
	// TopNSigma keeps logits within N standard deviations of the maximum; <= 0: off.
	TopNSigma float32
	// DynatempRange and DynatempExponent vary the temperature with the entropy; range 0: off.
	DynatempRange, DynatempExponent float32
	// XTCProbability and XTCThreshold exclude top choices; probability 0: off.
	XTCProbability, XTCThreshold float32
	// Mirostat is 0 (off), 1 or 2; Tau is the target surprise in bits, Eta the learning rate.
	Mirostat                 int
	MirostatTau, MirostatEta float32

	// RepeatLastN is the window of the three penalties below in tokens: 0 off, -1 the whole context.
	RepeatLastN                                      int
	RepeatPenalty, FrequencyPenalty, PresencePenalty float32
	DRY                                              DRY

	LogitBias []Bias
	// Seed makes the draw repeatable; nil: the worker picks one and reports it.
	Seed *uint64
	// Grammar is GBNF with the start symbol "root"; empty: none.
	Grammar string
	// GrammarLazy starts the grammar only at a trigger.
	GrammarLazy     bool
	GrammarTriggers []Trigger
	// MinKeep is the least number of candidates that typical, top-p, min-p and XTC leave; 0 means 1.
	MinKeep int
}

// Trigger starts a lazy grammar: at a token, or when the text matches a pattern.
type Trigger struct {
	Token   Token
	Pattern string // empty: Token counts
}

// DRY is the "don't repeat yourself" sampler; Multiplier 0: off.
type DRY struct {
	Multiplier, Base float32
	AllowedLength    int
	PenaltyLastN     int
	SequenceBreakers []string
}

// Validate checks ranges that no model changes. NaN and infinities are refused everywhere but in a bias.
func (s *Sampling) Validate() error {
	checks := []struct {
		field    string
		v        float32
		low, top float32
	}{
		{"temperature", s.Temperature, 0, 100},
		{"top_p", s.TopP, 0, 1},
		{"min_p", s.MinP, 0, 1},
		{"typical_p", s.TypicalP, 0, 1},
		{"top_n_sigma", s.TopNSigma, -1, 1000},
		{"dynatemp_range", s.DynatempRange, 0, 100},
		{"dynatemp_exponent", s.DynatempExponent, 0, 100},
		{"xtc_probability", s.XTCProbability, 0, 1},
		{"xtc_threshold", s.XTCThreshold, 0, 1},
		{"mirostat_tau", s.MirostatTau, 0, 100},
		{"mirostat_eta", s.MirostatEta, 0, 100},
		{"repeat_penalty", s.RepeatPenalty, 0, 100},
		{"frequency_penalty", s.FrequencyPenalty, -2, 2},
		{"presence_penalty", s.PresencePenalty, -2, 2},
		{"dry_multiplier", s.DRY.Multiplier, 0, 100},
		{"dry_base", s.DRY.Base, 0, 100},
	}
	for _, c := range checks {
		if v := float64(c.v); math.IsNaN(v) || math.IsInf(v, 0) || c.v < c.low || c.v > c.top {
			return Invalid(c.field, fmt.Sprintf("must be between %g and %g", c.low, c.top))
		}
	}
	if p := s.RepeatPenalty; p > 0 && p < minRepeatPenalty {
		return Invalid("repeat_penalty", fmt.Sprintf("must be 0 (off), or between %g and 100", minRepeatPenalty))
	}
	if s.Mirostat < 0 || s.Mirostat > 2 {
		return Invalid("mirostat", "must be 0, 1 or 2")
	}
	if s.Mirostat > 0 && s.MirostatTau == 0 {
		return Invalid("mirostat_tau", "must be more than 0")
	}
	if err := s.DRY.validate(); err != nil {
		return err
	}
	if s.RepeatLastN < -1 {
		return Invalid("repeat_last_n", "must be -1 or more")
	}
	for _, b := range s.LogitBias {
		if v := float64(b.Value); math.IsNaN(v) || math.IsInf(v, 1) {
			return Invalid("logit_bias", "must be finite, or -Inf to ban a token")
		}
	}
	return nil
}

// minRepeatPenalty keeps logits finite: those above 0 are divided by the penalty. (1e-38 left nothing to sample from.)
const minRepeatPenalty = 0.01

// maxBreaker is the length of the longest sequence breaker, in bytes: llama.cpp looks for each in the whole vocabulary.
const maxBreaker = 256

// validate checks what the table of Sampling.Validate cannot say: it holds only where DRY is on.
func (d *DRY) validate() error {
	if d.Multiplier == 0 {
		return nil
	}
	if d.Base < 1 {
		return Invalid("dry_base", "must be at least 1")
	}
	for _, b := range d.SequenceBreakers {
		if b == "" || len(b) > maxBreaker {
			return Invalid("dry_sequence_breakers", fmt.Sprintf("must hold strings of 1 to %d bytes", maxBreaker))
		}
	}
	return nil
}
