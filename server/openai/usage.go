package openai

import (
	"fmt"
	"time"

	"hearth/engine"
	"hearth/server/api"
)

// finishName spells a finish reason as OpenAI does. An ended choice has always one of these two.
func finishName(f engine.FinishReason) string {
	if f == engine.FinishLength {
		return "length"
	}
	return "stop"
}

// appendUsage appends the usage object.
func appendUsage(b []byte, u engine.Usage) []byte {
	return fmt.Appendf(b, `{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":0}}`,
		u.PromptTokens, u.CompletionTokens, u.PromptTokens+u.CompletionTokens, u.CachedTokens)
}

// appendTimings appends llama-server's timings object: milliseconds and tokens per second, and the queue time.
func appendTimings(b []byte, u engine.Usage) []byte {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	rate := func(n int, d time.Duration) float64 {
		if d <= 0 {
			return 0
		}
		return float64(n) / d.Seconds()
	}
	computed := u.PromptTokens - u.CachedTokens
	b = fmt.Appendf(b, `{"queue_ms":%.3f,"cache_n":%d,"prompt_n":%d,"prompt_ms":%.3f,"prompt_per_second":%.2f,`,
		ms(u.Queue), u.CachedTokens, computed, ms(u.Prefill), rate(computed, u.Prefill))
	return fmt.Appendf(b, `"predicted_n":%d,"predicted_ms":%.3f,"predicted_per_second":%.2f,"seed":%d}`,
		u.CompletionTokens, ms(u.Decode), rate(u.CompletionTokens, u.Decode), u.Seed)
}

func appendProgress(b []byte, p *engine.Prefill, since time.Duration) []byte {
	return fmt.Appendf(b, `{"total":%d,"cache":%d,"processed":%d,"time_ms":%d}`, p.Total, p.Cached, p.Done, since.Milliseconds())
}

// appendMember appends `,"name":"value"` when value is not empty.
func appendMember(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return api.AppendString(b, value)
}

// appendTail ends a stream: the usage chunk when it was asked for, begun by prefix, and the terminator.
func appendTail(b, prefix []byte, includeUsage bool, u engine.Usage) []byte {
	if includeUsage {
		b = append(b, prefix...)
		b = append(b, `"choices":[],"usage":`...)
		b = appendUsage(b, u)
		b = append(b, `,"timings":`...)
		b = appendTimings(b, u)
		b = append(b, "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}
