package openai

import (
	"strconv"
	"time"

	"hearth/engine"
	"hearth/server/api"
)

// chatShape encodes chat completions. Chunks are put together from parts made once per request: a token costs an
// escape and three copies.
type chatShape struct {
	out     output
	head    head
	prefix  []byte // data: {"id":...,
	suffix  string // behind the delta of a chunk that does not finish
	usage   string // `,"usage":null` when usage was asked for
	opened  []bool // per choice: its role has been sent
	pending [][]engine.TokenLogprob
}

func newChatShape(h head, out output) *chatShape {
	s := &chatShape{out: out, head: h, prefix: h.append([]byte("data: "), "chat.completion.chunk")}
	if out.includeUsage {
		s.usage = `,"usage":null`
	}
	s.suffix = `,"logprobs":null,"finish_reason":null}]` + s.usage + "}\n\n"
	return s
}

func (s *chatShape) begin(b []byte, choice int) []byte {
	b = append(b, s.prefix...)
	b = append(b, `"choices":[{"index":`...)
	b = strconv.AppendInt(b, int64(choice), 10)
	return append(b, `,"delta":`...)
}

func (s *chatShape) chunk(b []byte, ev *engine.Event) []byte {
	if ev.Prefill != nil {
		return s.progress(b, ev.Prefill)
	}
	if len(ev.Tokens) == 0 && ev.Text == "" && ev.Finish == "" {
		return b
	}
	for ev.Choice >= len(s.opened) {
		s.opened = append(s.opened, false)
		s.pending = append(s.pending, nil)
	}
	if !s.opened[ev.Choice] {
		s.opened[ev.Choice] = true
		b = s.begin(b, ev.Choice)
		b = append(b, `{"role":"assistant","content":""}`...)
		b = append(b, s.suffix...)
	}
	// Log-probabilities of tokens whose text is held back go out with the text.
	if len(ev.Logprobs) > 0 {
		s.pending[ev.Choice] = append(s.pending[ev.Choice], ev.Logprobs...)
	}
	if ev.Text != "" || ev.Finish != "" && len(s.pending[ev.Choice]) > 0 {
		b = s.begin(b, ev.Choice)
		b = append(b, `{"content":`...)
		b = api.AppendString(b, ev.Text)
		b = append(b, '}')
		if s.out.logprobs {
			b = append(b, `,"logprobs":`...)
			b = appendChatLogprobs(b, s.pending[ev.Choice], s.out.topLogprobs)
			b = append(b, `,"finish_reason":null}]`...)
			b = append(b, s.usage...)
			b = append(b, "}\n\n"...)
			s.pending[ev.Choice] = s.pending[ev.Choice][:0]
		} else {
			b = append(b, s.suffix...)
		}
	}
	if ev.Finish != "" {
		b = s.begin(b, ev.Choice)
		b = append(b, `{},"logprobs":null,"finish_reason":"`...)
		b = append(b, finishName(ev.Finish)...)
		b = append(b, `"}]`...)
		b = append(b, s.usage...)
		if ev.Usage != nil && !s.out.includeUsage {
			b = append(b, `,"timings":`...)
			b = appendTimings(b, *ev.Usage)
		}
		b = append(b, "}\n\n"...)
	}
	return b
}

// progress tells a client that asked for it how far the prompt is, in llama-server's form.
func (s *chatShape) progress(b []byte, p *engine.Prefill) []byte {
	b = s.begin(b, 0)
	b = append(b, `{},"logprobs":null,"finish_reason":null}]`...)
	b = append(b, s.usage...)
	b = append(b, `,"prompt_progress":`...)
	b = appendProgress(b, p, time.Since(s.head.created))
	return append(b, "}\n\n"...)
}

func (s *chatShape) tail(b []byte, u engine.Usage) []byte {
	return appendTail(b, s.prefix, s.out.includeUsage, u)
}

func (s *chatShape) reply(b []byte, choices []choice, u engine.Usage) []byte {
	b = s.head.append(b, "chat.completion")
	b = append(b, `"choices":[`...)
	for i, c := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"message":{"role":"assistant","content":`...)
		b = api.AppendString(b, string(c.text))
		b = append(b, `,"refusal":null},"logprobs":`...)
		if s.out.logprobs {
			b = appendChatLogprobs(b, c.logprobs, s.out.topLogprobs)
		} else {
			b = append(b, "null"...)
		}
		b = append(b, `,"finish_reason":"`...)
		b = append(b, finishName(c.finish)...)
		b = append(b, `"}`...)
	}
	b = append(b, `],"usage":`...)
	b = appendUsage(b, u)
	b = append(b, `,"timings":`...)
	b = appendTimings(b, u)
	return append(b, '}')
}

// appendChatLogprobs appends {"content":[...],"refusal":null}.
func appendChatLogprobs(b []byte, lps []engine.TokenLogprob, top int) []byte {
	b = append(b, `{"content":[`...)
	for i, lp := range lps {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendToken(b, lp)
		b = append(b, `,"top_logprobs":[`...)
		for j, alt := range lp.Top[:min(top, len(lp.Top))] {
			if j > 0 {
				b = append(b, ',')
			}
			b = appendToken(b, alt)
			b = append(b, '}')
		}
		b = append(b, "]}"...)
	}
	return append(b, `],"refusal":null}`...)
}

// appendToken appends a token's object without closing it.
func appendToken(b []byte, lp engine.TokenLogprob) []byte {
	b = append(b, `{"token":`...)
	b = api.AppendString(b, spell(lp.Bytes, "")) // the bytes stand beside it
	b = append(b, `,"logprob":`...)
	b = api.AppendLogprob(b, lp.Logprob)
	b = append(b, `,"bytes":[`...)
	for i, c := range lp.Bytes {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(c), 10)
	}
	return append(b, ']')
}
