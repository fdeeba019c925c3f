package enginepb

import "hearth/engine"

// FromEvent converts an event of request id for the wire.
func FromEvent(id uint64, e *engine.Event) *Event {
	out := &Event{
		Id: id, Choice: int64(e.Choice), Text: e.Text, Tokens: e.Tokens, Logprobs: fromLogprobs(e.Logprobs),
		Finish: string(e.Finish), StopString: e.StopString, Err: FromError(e.Err),
	}
	if p := e.Prefill; p != nil {
		out.Prefill = &Prefill{Cached: int64(p.Cached), Done: int64(p.Done), Total: int64(p.Total)}
	}
	if u := e.Usage; u != nil {
		out.Usage = &Usage{
			PromptTokens: int64(u.PromptTokens), CachedTokens: int64(u.CachedTokens),
			CompletionTokens: int64(u.CompletionTokens), QueueNs: int64(u.Queue), PrefillNs: int64(u.Prefill),
			DecodeNs: int64(u.Decode), Preemptions: int64(u.Preemptions), Seed: u.Seed,
		}
	}
	return out
}

// ToEvent is the inverse of FromEvent; the request's id stays in e.Id.
func ToEvent(e *Event) engine.Event {
	out := engine.Event{
		Choice: int(e.GetChoice()), Text: e.GetText(), Tokens: e.GetTokens(), Logprobs: toLogprobs(e.GetLogprobs()),
		Finish: engine.FinishReason(e.GetFinish()), StopString: e.GetStopString(),
	}
	if e.GetErr() != nil {
		out.Err = ToError(e.GetErr())
	}
	if p := e.GetPrefill(); p != nil {
		out.Prefill = &engine.Prefill{Cached: int(p.GetCached()), Done: int(p.GetDone()), Total: int(p.GetTotal())}
	}
	if u := e.GetUsage(); u != nil {
		out.Usage = &engine.Usage{
			PromptTokens: int(u.GetPromptTokens()), CachedTokens: int(u.GetCachedTokens()),
			CompletionTokens: int(u.GetCompletionTokens()), Queue: duration(u.GetQueueNs()), Prefill: duration(u.GetPrefillNs()),
			Decode: duration(u.GetDecodeNs()), Preemptions: int(u.GetPreemptions()), Seed: u.GetSeed(),
		}
	}
	return out
}

func fromLogprobs(in []engine.TokenLogprob) []*TokenLogprob {
	if len(in) == 0 {
		return nil
	}
	out := make([]*TokenLogprob, 0, len(in))
	for i := range in {
		out = append(out, &TokenLogprob{
			Token: in[i].Token, Bytes: in[i].Bytes, Logprob: in[i].Logprob, Top: fromLogprobs(in[i].Top),
		})
	}
	return out
}

func toLogprobs(in []*TokenLogprob) []engine.TokenLogprob {
	if len(in) == 0 {
		return nil
	}
	out := make([]engine.TokenLogprob, 0, len(in))
	for _, t := range in {
		out = append(out, engine.TokenLogprob{
			Token: t.GetToken(), Bytes: t.GetBytes(), Logprob: t.GetLogprob(), Top: toLogprobs(t.GetTop()),
		})
	}
	return out
}
