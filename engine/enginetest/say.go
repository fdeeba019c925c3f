package enginetest

import (
	"strings"

	"hearth/engine"
)

// Say returns a script that answers text, word by word, on every choice of every request, as a model would: it minds
// MaxTokens, stop strings, IgnoreEOS (the text is repeated), logprobs and progress.
func (m *Model) Say(text string) func(engine.Request) Play {
	return func(r engine.Request) Play {
		said, finish, stop := shorten(text, r, m.Details.Context)
		prompt := len(m.tokenize(r.Prompt))
		var steps []Step
		if r.Progress {
			steps = append(steps, Step{Event: engine.Event{Prefill: &engine.Prefill{Cached: prompt / 2, Done: prompt, Total: prompt}}})
		}
		completion := len(said)
		if finish == engine.FinishStop && stop == "" {
			completion++ // the end-of-generation token
		}
		words := split(said)
		for _, word := range words {
			for c := range r.Choices() {
				steps = append(steps, Step{Event: m.event(word, c, r)})
			}
		}
		for c := range r.Choices() {
			ev := engine.Event{Choice: c, Finish: finish, StopString: stop}
			if finish == engine.FinishStop && stop == "" {
				ev.Tokens = []engine.Token{EOS}
			}
			if c == r.Choices()-1 {
				ev.Usage = usage(prompt, completion*r.Choices())
			}
			steps = append(steps, Step{Event: ev})
		}
		return Play{Steps: steps}
	}
}

// shorten applies the request's limits to text.
func shorten(text string, r engine.Request, context int) (string, engine.FinishReason, string) {
	finish := engine.FinishStop
	if r.IgnoreEOS {
		limit := r.MaxTokens
		if limit < 0 {
			limit = context
		}
		text = strings.Repeat(text, limit/max(len(text), 1)+1)
	}
	at, stop := len(text), ""
	for _, s := range r.Stop {
		if i := strings.Index(text, s); i >= 0 && i < at {
			at, stop = i, s
		}
	}
	text = text[:at]
	if r.MaxTokens >= 0 && len(text) > r.MaxTokens {
		text, finish, stop = text[:r.MaxTokens], engine.FinishLength, ""
	}
	return text, finish, stop
}

// split cuts text before each space, so that the pieces joined are the text.
func split(text string) []string {
	var out []string
	for text != "" {
		i := strings.IndexByte(text[1:], ' ') + 1
		if i == 0 {
			i = len(text)
		}
		out = append(out, text[:i])
		text = text[i:]
	}
	return out
}

func (m *Model) event(word string, choice int, r engine.Request) engine.Event {
	ev := engine.Event{Choice: choice, Text: word}
	for i := range len(word) {
		b := word[i]
		ev.Tokens = append(ev.Tokens, engine.Token(b))
		if !r.Logprobs {
			continue
		}
		lp := engine.TokenLogprob{Token: engine.Token(b), Bytes: []byte{b}, Logprob: -0.125}
		for k := range r.TopLogprobs {
			alt := b + byte(k)
			lp.Top = append(lp.Top, engine.TokenLogprob{Token: engine.Token(alt), Bytes: []byte{alt}, Logprob: -0.125 - float32(k)})
		}
		ev.Logprobs = append(ev.Logprobs, lp)
	}
	return ev
}
