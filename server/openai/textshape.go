package openai

import (
	"strconv"
	"time"

	"hearth/engine"
	"hearth/server/api"
)

// textShape encodes completions.
type textShape struct {
	out       output
	head      head
	prefix    []byte
	usage     string
	echoes    []string // per prompt; nil without echo
	perPrompt int      // choices of each prompt
	state     []textState
}

// textState is one choice's progress.
type textState struct {
	opened  bool
	offset  int // characters of the tokens whose log-probabilities were sent, for text_offset
	pending []engine.TokenLogprob
}

func newTextShape(h head, out output, echoes []string, perPrompt int) *textShape {
	s := &textShape{out: out, head: h, echoes: echoes, perPrompt: perPrompt, prefix: h.append([]byte("data: "), "text_completion")}
	if out.includeUsage {
		s.usage = `,"usage":null`
	}
	return s
}

// echo returns what stands before a choice's own text.
func (s *textShape) echo(choice int) string {
	if s.echoes == nil {
		return ""
	}
	return s.echoes[choice/s.perPrompt]
}

func (s *textShape) chunk(b []byte, ev *engine.Event) []byte {
	if ev.Prefill != nil {
		b = append(b, s.prefix...)
		b = append(b, `"choices":[]`...)
		b = append(b, s.usage...)
		b = append(b, `,"prompt_progress":`...)
		b = appendProgress(b, ev.Prefill, time.Since(s.head.created))
		return append(b, "}\n\n"...)
	}
	if len(ev.Tokens) == 0 && ev.Text == "" && ev.Finish == "" {
		return b
	}
	for ev.Choice >= len(s.state) {
		s.state = append(s.state, textState{})
	}
	st := &s.state[ev.Choice]
	text := ev.Text
	if !st.opened {
		st.opened = true
		text = s.echo(ev.Choice) + text
	}
	st.pending = append(st.pending, ev.Logprobs...)
	if text == "" && ev.Finish == "" {
		return b
	}
	b = append(b, s.prefix...)
	b = append(b, `"choices":[{"text":`...)
	b = api.AppendString(b, text)
	b = append(b, `,"index":`...)
	b = strconv.AppendInt(b, int64(ev.Choice), 10)
	b = append(b, `,"logprobs":`...)
	if s.out.logprobs {
		b = appendTextLogprobs(b, st.pending, s.out.topLogprobs, st.offset)
		for i := range st.pending {
			st.offset += characters(st.pending[i].Bytes)
		}
		st.pending = st.pending[:0]
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"finish_reason":`...)
	if ev.Finish == "" {
		b = append(b, "null"...)
	} else {
		b = append(b, '"')
		b = append(b, finishName(ev.Finish)...)
		b = append(b, '"')
	}
	b = append(b, "}]"...)
	b = append(b, s.usage...)
	return append(b, "}\n\n"...)
}

func (s *textShape) tail(b []byte, u engine.Usage) []byte {
	return appendTail(b, s.prefix, s.out.includeUsage, u)
}

func (s *textShape) reply(b []byte, choices []choice, u engine.Usage) []byte {
	b = s.head.append(b, "text_completion")
	b = append(b, `"choices":[`...)
	for i, c := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"text":`...)
		b = api.AppendString(b, s.echo(i)+string(c.text))
		b = append(b, `,"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"logprobs":`...)
		if s.out.logprobs {
			b = appendTextLogprobs(b, c.logprobs, s.out.topLogprobs, 0)
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

// appendTextLogprobs appends the completions' form, four lists side by side. offset is where the first token begins in
// the choice's text, in characters.
func appendTextLogprobs(b []byte, lps []engine.TokenLogprob, top, offset int) []byte {
	list := func(name string, item func(b []byte, lp engine.TokenLogprob) []byte) {
		b = append(b, '"')
		b = append(b, name...)
		b = append(b, `":[`...)
		for i, lp := range lps {
			if i > 0 {
				b = append(b, ',')
			}
			b = item(b, lp)
		}
		b = append(b, ']')
	}
	b = append(b, '{')
	list("tokens", func(b []byte, lp engine.TokenLogprob) []byte { return api.AppendString(b, spellText(lp.Bytes)) })
	b = append(b, ',')
	list("token_logprobs", func(b []byte, lp engine.TokenLogprob) []byte { return api.AppendLogprob(b, lp.Logprob) })
	b = append(b, ',')
	if top == 0 {
		b = append(b, `"top_logprobs":null`...)
	} else {
		list("top_logprobs", func(b []byte, lp engine.TokenLogprob) []byte {
			b = append(b, '{')
			for i, alt := range alternatives(lp, top) {
				if i > 0 {
					b = append(b, ',')
				}
				b = api.AppendString(b, alt.name)
				b = append(b, ':')
				b = api.AppendLogprob(b, alt.logprob)
			}
			return append(b, '}')
		})
	}
	b = append(b, ',')
	list("text_offset", func(b []byte, lp engine.TokenLogprob) []byte {
		b = strconv.AppendInt(b, int64(offset), 10)
		offset += characters(lp.Bytes)
		return b
	})
	return append(b, '}')
}
