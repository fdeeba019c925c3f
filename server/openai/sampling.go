package openai

import (
	"encoding/json/jsontext"
	"fmt"
	"math"
	"strconv"

	"hearth/engine"
	"hearth/server/api"
)

// DefaultSampling is how tokens are drawn when a request does not say. OpenAI's documents say temperature 1 and nothing
// else, which small local models answer with noise; these are the values that llama.cpp's users expect.
func DefaultSampling() engine.Sampling {
	return engine.Sampling{
		Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05,
		TypicalP: 1, TopNSigma: -1, DynatempExponent: 1, XTCThreshold: 0.1,
		MirostatTau: 5, MirostatEta: 0.1,
		RepeatLastN: 64, RepeatPenalty: 1,
		DRY: engine.DRY{Base: 1.75, AllowedLength: 2, PenaltyLastN: -1, SequenceBreakers: []string{"\n", ":", "\"", "*"}},
	}
}

// Limits of integer fields that the engine does not check.
const (
	maxTopK      = 1 << 20
	maxWindow    = 1 << 20 // tokens
	maxBias      = 100     // OpenAI's bound on a logit bias
	maxBreakers  = 32
	maxBiasCount = 1024
)

// decodeSampling reads the sampler fields of OpenAI and llama-server. vocab is the model's vocabulary size, 0 when
// unknown. Errors are kept in o.
func decodeSampling(o *api.Object, vocab int) engine.Sampling {
	s := DefaultSampling()
	s.Temperature = o.Float("temperature", s.Temperature, 0, 100)
	s.TopP = atLeastOne(o.Float("top_p", s.TopP, 0, 1))
	s.TopK = int(o.Int("top_k", int64(s.TopK), -1, maxTopK))
	s.MinP = o.Float("min_p", s.MinP, 0, 1)
	s.TypicalP = atLeastOne(o.Float("typical_p", s.TypicalP, 0, 1))
	s.TopNSigma = o.Float("top_n_sigma", s.TopNSigma, -1, 1000)
	s.DynatempRange = o.Float("dynatemp_range", 0, 0, 100)
	s.DynatempExponent = o.Float("dynatemp_exponent", s.DynatempExponent, 0, 100)
	s.XTCProbability = o.Float("xtc_probability", 0, 0, 1)
	s.XTCThreshold = o.Float("xtc_threshold", s.XTCThreshold, 0, 1)
	s.Mirostat = int(o.Int("mirostat", 0, 0, 2))
	s.MirostatTau = o.Float("mirostat_tau", s.MirostatTau, 0, 100)
	s.MirostatEta = o.Float("mirostat_eta", s.MirostatEta, 0, 100)
	s.RepeatLastN = int(o.Int("repeat_last_n", int64(s.RepeatLastN), -1, maxWindow))
	s.RepeatPenalty = o.Float("repeat_penalty", s.RepeatPenalty, 0, 100)
	if !o.Has("repeat_penalty") { // vLLM's and TGI's name
		s.RepeatPenalty = o.Float("repetition_penalty", s.RepeatPenalty, 0, 100)
	}
	s.FrequencyPenalty = o.Float("frequency_penalty", 0, -2, 2)
	s.PresencePenalty = o.Float("presence_penalty", 0, -2, 2)
	s.DRY.Multiplier = o.Float("dry_multiplier", 0, 0, 100)
	s.DRY.Base = o.Float("dry_base", s.DRY.Base, 0, 100)
	s.DRY.AllowedLength = int(o.Int("dry_allowed_length", int64(s.DRY.AllowedLength), 0, maxWindow))
	s.DRY.PenaltyLastN = int(o.Int("dry_penalty_last_n", int64(s.DRY.PenaltyLastN), -1, maxWindow))
	if v, ok := o.Get("dry_sequence_breakers"); ok {
		breakers, err := stringList(v, maxBreakers)
		o.Fail(err)
		s.DRY.SequenceBreakers = breakers
	}
	s.MinKeep = int(o.Int("min_keep", 0, 0, maxTopK))
	s.Seed = decodeSeed(o)
	bias, err := decodeBias(o, vocab)
	o.Fail(err)
	s.LogitBias = bias
	s.Grammar = o.Str("grammar", "")
	return s
}

// atLeastOne keeps a mass of 0 apart from engine.Sampling's 0, which is off: it leaves one token, as OpenAI's and
// llama.cpp's do, and clients ask so for a reply without chance.
func atLeastOne(p float32) float32 { return max(p, math.SmallestNonzeroFloat32) }

// decodeSeed returns nil for no seed and for -1, with which llama.cpp's clients ask for a random one.
func decodeSeed(o *api.Object) *uint64 {
	if !o.Has("seed") {
		return nil
	}
	seed := o.Int("seed", -1, math.MinInt64, math.MaxInt64)
	if seed == -1 {
		return nil
	}
	u := uint64(seed)
	return &u
}

// decodeBias reads logit_bias as OpenAI's map {"id": bias} or llama-server's pairs [[id, bias]]; false bans a token.
func decodeBias(o *api.Object, vocab int) ([]engine.Bias, error) {
	v, ok := o.Get("logit_bias")
	if !ok {
		return nil, nil
	}
	var out []engine.Bias
	add := func(id int64, value api.Value) error {
		if len(out) >= maxBiasCount {
			return api.BadField("logit_bias", fmt.Sprintf("has more than %d entries", maxBiasCount))
		}
		if id < 0 || id > math.MaxInt32 || vocab > 0 && id >= int64(vocab) {
			return api.BadField(value.Path, fmt.Sprintf("is for token %d, the vocabulary has %d", id, vocab))
		}
		bias, err := biasValue(value)
		if err != nil {
			return err
		}
		out = append(out, engine.Bias{Token: engine.Token(id), Value: bias})
		return nil
	}
	if v.Kind() == '[' {
		items, err := v.Items()
		for _, item := range items {
			var pair []api.Value
			if pair, err = item.Items(); err == nil && len(pair) != 2 {
				err = api.BadField(item.Path, "must be a pair [token id, bias]")
			}
			var id int64
			if err == nil {
				id, err = pair[0].Int()
			}
			if err == nil {
				err = add(id, pair[1])
			}
			if err != nil {
				break
			}
		}
		return out, err
	}
	object, err := v.Object()
	if err != nil {
		return nil, api.BadField("logit_bias", "must be an object of token ids and biases")
	}
	object.Each(func(name string, value api.Value) {
		id, convErr := strconv.ParseInt(name, 10, 32)
		switch {
		case err != nil:
		case convErr != nil:
			err = api.BadField("logit_bias", fmt.Sprintf("has the key %q, keys must be token ids", name))
		default:
			err = add(id, value)
		}
	})
	return out, err
}

func biasValue(v api.Value) (float32, error) {
	if v.Kind() == jsontext.KindFalse {
		return float32(math.Inf(-1)), nil
	}
	f, err := v.Float()
	if err != nil {
		return 0, err
	}
	if math.Abs(f) > maxBias {
		return 0, api.BadField(v.Path, fmt.Sprintf("must be between -%d and %d", maxBias, maxBias))
	}
	return float32(f), nil
}

func stringList(v api.Value, limit int) ([]string, error) {
	items, err := v.Items()
	if err != nil {
		return nil, err
	}
	if len(items) > limit {
		return nil, api.BadField(v.Path, fmt.Sprintf("has %d entries, at most %d are allowed", len(items), limit))
	}
	out := make([]string, len(items))
	for i, item := range items {
		if out[i], err = item.Str(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// decodeStop reads stop as a string or a list.
func decodeStop(o *api.Object) []string {
	v, ok := o.Get("stop")
	if !ok {
		return nil
	}
	switch v.Kind() {
	case '"':
		s, err := v.Str()
		o.Fail(err)
		return []string{s}
	case '[':
		list, err := stringList(v, engine.MaxStopStrings)
		o.Fail(err)
		return list
	}
	o.Fail(api.BadField("stop", "must be a string or an array of strings"))
	return nil
}

// decodePriority reads hearth's names, or vLLM's numbers, where lower is earlier.
func decodePriority(o *api.Object) engine.Priority {
	v, ok := o.Get("priority")
	if !ok {
		return engine.PriorityNormal
	}
	if v.Kind() == '0' {
		i, err := v.Int()
		o.Fail(err)
		switch {
		case i < 0:
			return engine.PriorityHigh
		case i > 0:
			return engine.PriorityBatch
		}
		return engine.PriorityNormal
	}
	s, err := v.Str()
	switch {
	case err != nil:
	case s == "high":
		return engine.PriorityHigh
	case s == "normal":
		return engine.PriorityNormal
	case s == "batch":
		return engine.PriorityBatch
	}
	o.Fail(api.BadField("priority", `must be "high", "normal", "batch" or an integer`))
	return engine.PriorityNormal
}

// decodeCommon fills what chats and completions have in common. defaultMax is max_tokens when the request has none.
func decodeCommon(o *api.Object, r *engine.Request, info engine.Info, defaultMax, minMax int64) {
	r.N = int(o.Int("n", 1, 1, engine.MaxChoices))
	limit := defaultMax
	for _, name := range []string{"max_completion_tokens", "max_tokens", "n_predict"} {
		if o.Has(name) {
			if limit = o.Int(name, defaultMax, -1, math.MaxInt64); limit >= 0 && limit < minMax {
				o.Fail(api.BadField(name, fmt.Sprintf("must be at least %d, or -1 for no limit", minMax)))
			}
			break
		}
	}
	// Agents ask for more than any local context holds; more than the context can never be used.
	if info.Context > 0 {
		limit = min(limit, int64(info.Context))
	}
	r.MaxTokens = int(min(limit, math.MaxInt32))
	r.Stop = decodeStop(o)
	r.IgnoreEOS = o.Bool("ignore_eos", false)
	r.CachePrompt = o.Bool("cache_prompt", true)
	r.Priority = decodePriority(o)
	r.Sampling = decodeSampling(o, info.VocabSize)
}
