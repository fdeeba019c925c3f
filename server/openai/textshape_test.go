package openai

import (
	"strings"
	"testing"

	"hearth/engine"
)

// TestTextOffsetsOfHeldBackText: an offset counts the tokens before it, also those whose text waits for more.
func TestTextOffsetsOfHeldBackText(t *testing.T) {
	s := newTextShape(head{}, output{stream: true, logprobs: true}, nil, 1)
	got := string(s.chunk(nil, &engine.Event{
		Tokens: []engine.Token{1}, Text: "a", Logprobs: []engine.TokenLogprob{{Token: 1, Bytes: []byte("ab")}},
	}))
	got += string(s.chunk(nil, &engine.Event{
		Tokens: []engine.Token{2}, Text: "bc", Logprobs: []engine.TokenLogprob{{Token: 2, Bytes: []byte("c")}},
	}))
	for _, want := range []string{`"text_offset":[0]`, `"text_offset":[2]`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}
