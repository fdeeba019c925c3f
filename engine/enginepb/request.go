package enginepb

import "hearth/engine"

// FromPrompt converts a prompt for the wire.
func FromPrompt(p *engine.Prompt) *Prompt {
	out := &Prompt{AddSpecial: p.AddSpecial, Segments: make([]*Segment, 0, len(p.Segments))}
	for _, s := range p.Segments {
		out.Segments = append(out.Segments, &Segment{Text: s.Text, Special: s.Special, Tokens: s.Tokens})
	}
	return out
}

// ToPrompt is the inverse of FromPrompt.
func ToPrompt(p *Prompt) engine.Prompt {
	out := engine.Prompt{AddSpecial: p.GetAddSpecial()}
	for _, s := range p.GetSegments() {
		out.Segments = append(out.Segments, engine.Segment{Text: s.GetText(), Special: s.GetSpecial(), Tokens: s.GetTokens()})
	}
	return out
}

// FromRequest converts a request for the wire.
func FromRequest(r *engine.Request) *Request {
	out := &Request{
		Id: r.ID, Prompt: FromPrompt(&r.Prompt), N: int64(r.N), MaxTokens: int64(r.MaxTokens), Stop: r.Stop,
		StopTokens: r.StopTokens, IgnoreEos: r.IgnoreEOS, Sampling: fromSampling(&r.Sampling), Logprobs: r.Logprobs,
		TopLogprobs: int64(r.TopLogprobs), CachePrompt: r.CachePrompt, Tenant: r.Tenant, Priority: int32(r.Priority),
		Progress: r.Progress,
	}
	for _, t := range r.Resume {
		out.Resume = append(out.Resume, &TokenList{Tokens: t})
	}
	return out
}

// ToRequest is the inverse of FromRequest.
func ToRequest(r *Request) engine.Request {
	out := engine.Request{
		ID: r.GetId(), Prompt: ToPrompt(r.GetPrompt()), N: int(r.GetN()), MaxTokens: int(r.GetMaxTokens()),
		Stop: r.GetStop(), StopTokens: r.GetStopTokens(), IgnoreEOS: r.GetIgnoreEos(), Sampling: toSampling(r.GetSampling()),
		Logprobs: r.GetLogprobs(), TopLogprobs: int(r.GetTopLogprobs()), CachePrompt: r.GetCachePrompt(),
		Tenant: r.GetTenant(), Priority: engine.Priority(r.GetPriority()), Progress: r.GetProgress(),
	}
	for _, t := range r.GetResume() {
		out.Resume = append(out.Resume, t.GetTokens())
	}
	return out
}

func fromSampling(s *engine.Sampling) *Sampling {
	out := &Sampling{
		Temperature: s.Temperature, TopK: int64(s.TopK), TopP: s.TopP, MinP: s.MinP, TypicalP: s.TypicalP,
		TopNSigma: s.TopNSigma, DynatempRange: s.DynatempRange, DynatempExponent: s.DynatempExponent,
		XtcProbability: s.XTCProbability, XtcThreshold: s.XTCThreshold, Mirostat: int64(s.Mirostat),
		MirostatTau: s.MirostatTau, MirostatEta: s.MirostatEta, RepeatLastN: int64(s.RepeatLastN),
		RepeatPenalty: s.RepeatPenalty, FrequencyPenalty: s.FrequencyPenalty, PresencePenalty: s.PresencePenalty,
		Dry: &DRY{
			Multiplier: s.DRY.Multiplier, Base: s.DRY.Base, AllowedLength: int64(s.DRY.AllowedLength),
			PenaltyLastN: int64(s.DRY.PenaltyLastN), SequenceBreakers: s.DRY.SequenceBreakers,
		},
		Seed: s.Seed, Grammar: s.Grammar, GrammarLazy: s.GrammarLazy, MinKeep: int64(s.MinKeep),
	}
	for _, b := range s.LogitBias {
		out.LogitBias = append(out.LogitBias, &Bias{Token: b.Token, Value: b.Value})
	}
	for _, t := range s.GrammarTriggers {
		out.GrammarTriggers = append(out.GrammarTriggers, &Trigger{Token: t.Token, Pattern: t.Pattern})
	}
	return out
}

func toSampling(s *Sampling) engine.Sampling {
	d := s.GetDry()
	out := engine.Sampling{
		Temperature: s.GetTemperature(), TopK: int(s.GetTopK()), TopP: s.GetTopP(), MinP: s.GetMinP(),
		TypicalP: s.GetTypicalP(), TopNSigma: s.GetTopNSigma(), DynatempRange: s.GetDynatempRange(),
		DynatempExponent: s.GetDynatempExponent(), XTCProbability: s.GetXtcProbability(), XTCThreshold: s.GetXtcThreshold(),
		Mirostat: int(s.GetMirostat()), MirostatTau: s.GetMirostatTau(), MirostatEta: s.GetMirostatEta(),
		RepeatLastN: int(s.GetRepeatLastN()), RepeatPenalty: s.GetRepeatPenalty(), FrequencyPenalty: s.GetFrequencyPenalty(),
		PresencePenalty: s.GetPresencePenalty(),
		DRY: engine.DRY{
			Multiplier: d.GetMultiplier(), Base: d.GetBase(), AllowedLength: int(d.GetAllowedLength()),
			PenaltyLastN: int(d.GetPenaltyLastN()), SequenceBreakers: d.GetSequenceBreakers(),
		},
		Grammar: s.GetGrammar(), GrammarLazy: s.GetGrammarLazy(), MinKeep: int(s.GetMinKeep()),
	}
	if s != nil {
		out.Seed = s.Seed
	}
	for _, b := range s.GetLogitBias() {
		out.LogitBias = append(out.LogitBias, engine.Bias{Token: b.GetToken(), Value: b.GetValue()})
	}
	for _, t := range s.GetGrammarTriggers() {
		out.GrammarTriggers = append(out.GrammarTriggers, engine.Trigger{Token: t.GetToken(), Pattern: t.GetPattern()})
	}
	return out
}

// FromEmbedRequest converts an embedding request for the wire.
func FromEmbedRequest(r *engine.EmbedRequest) *EmbedRequest {
	out := &EmbedRequest{Normalize: r.Normalize, Rerank: r.Rerank, Query: r.Query, Tenant: r.Tenant}
	for i := range r.Inputs {
		out.Inputs = append(out.Inputs, FromPrompt(&r.Inputs[i]))
	}
	return out
}

// ToEmbedRequest is the inverse of FromEmbedRequest.
func ToEmbedRequest(r *EmbedRequest) engine.EmbedRequest {
	out := engine.EmbedRequest{Normalize: r.GetNormalize(), Rerank: r.GetRerank(), Query: r.GetQuery(), Tenant: r.GetTenant()}
	for _, p := range r.GetInputs() {
		out.Inputs = append(out.Inputs, ToPrompt(p))
	}
	return out
}

// FromEmbedResult converts embeddings for the wire.
func FromEmbedResult(r *engine.EmbedResult) *EmbedReply {
	out := &EmbedReply{}
	for _, v := range r.Vectors {
		out.Vectors = append(out.Vectors, &Vector{Values: v})
	}
	for _, n := range r.PromptTokens {
		out.PromptTokens = append(out.PromptTokens, int64(n))
	}
	return out
}

// ToEmbedResult is the inverse of FromEmbedResult.
func ToEmbedResult(r *EmbedReply) engine.EmbedResult {
	out := engine.EmbedResult{}
	for _, v := range r.GetVectors() {
		out.Vectors = append(out.Vectors, v.GetValues())
	}
	for _, n := range r.GetPromptTokens() {
		out.PromptTokens = append(out.PromptTokens, int(n))
	}
	return out
}
