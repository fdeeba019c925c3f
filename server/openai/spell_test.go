package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"hearth/engine"
)

// TestSpell: text stands as it is, bytes that are no characters as OpenAI escapes them.
func TestSpell(t *testing.T) {
	for in, want := range map[string]string{
		"":                 "",
		" word":            " word",
		"é\n":              "é\n",
		"\ufffd":           "\ufffd", // a character like others
		"\xe2\x80":         `bytes:\xe2\x80`,
		" \xf0\x9f":        `bytes: \xf0\x9f`,
		"\x99":             `bytes:\x99`,
		"\\\n\xc3":         `bytes:\\\x0a\xc3`,
		"\xc3\xa9\xc3":     `bytes:\xc3\xa9\xc3`,
		"bytes:\\xe2":      `bytes:\xe2`,
		"<|im_end|>":       "<|im_end|>",
		"\xed\xa0\x80":     `bytes:\xed\xa0\x80`, // half of a surrogate pair
		"\xf4\x90\x80\x80": `bytes:\xf4\x90\x80\x80`,
	} {
		if got := spellText([]byte(in)); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

// TestPartialCharactersInLogprobs: tokens that are parts of characters keep apart in both forms.
func TestPartialCharactersInLogprobs(t *testing.T) {
	lp := engine.TokenLogprob{Token: 1, Bytes: []byte("\xe2\x80"), Logprob: -0.5, Top: []engine.TokenLogprob{
		{Token: 1, Bytes: []byte("\xe2\x80"), Logprob: -0.5}, {Token: 2, Bytes: []byte("\xe2\x81"), Logprob: -1},
		{Token: 3, Bytes: []byte("\xf0"), Logprob: -2},
	}}
	rest := engine.TokenLogprob{Token: 4, Bytes: []byte("\x99"), Logprob: -0.25}
	next := engine.TokenLogprob{Token: 5, Bytes: []byte("s"), Logprob: -0.125}
	text := string(appendTextLogprobs(nil, []engine.TokenLogprob{lp, rest, next}, 3, 7))
	want := `{"tokens":["bytes:\\xe2\\x80","bytes:\\x99","s"],"token_logprobs":[-0.5,-0.25,-0.125],` +
		`"top_logprobs":[{"bytes:\\xe2\\x80":-0.5,"bytes:\\xe2\\x81":-1,"bytes:\\xf0":-2},{"bytes:\\x99":-0.25},{"s":-0.125}],` +
		`"text_offset":[7,8,8]}`
	if text != want {
		t.Errorf("completions\n got %s\nwant %s", text, want)
	}
	chat := string(appendChatLogprobs(nil, []engine.TokenLogprob{lp}, 1))
	want = `{"content":[{"token":"\\xe2\\x80","logprob":-0.5,"bytes":[226,128],` +
		`"top_logprobs":[{"token":"\\xe2\\x80","logprob":-0.5,"bytes":[226,128]}]}],"refusal":null}`
	if chat != want {
		t.Errorf("chat\n got %s\nwant %s", chat, want)
	}
}

// TestTokensOfOneText: every alternative keeps its entry, and the sampled token the one that its text finds.
func TestTokensOfOneText(t *testing.T) {
	eot := func(id engine.Token, p float32) engine.TokenLogprob {
		return engine.TokenLogprob{Token: id, Bytes: []byte("<eot>"), Logprob: p}
	}
	for _, c := range []struct {
		sampled engine.Token
		want    map[string]float64
	}{
		{1, map[string]float64{"<eot>": -1, "token_id:2": -2, "token_id:3": -3}},
		{2, map[string]float64{"token_id:1": -1, "<eot>": -2, "token_id:3": -3}},
		{9, map[string]float64{"token_id:1": -1, "token_id:2": -2, "token_id:3": -3, "<eot>": -9}},
	} {
		lp := eot(c.sampled, -float32(c.sampled))
		lp.Top = []engine.TokenLogprob{eot(1, -1), eot(2, -2), eot(3, -3)}
		out := string(appendTextLogprobs(nil, []engine.TokenLogprob{lp}, 3, 0))
		var got struct {
			Top []map[string]float64 `json:"top_logprobs"`
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if len(got.Top) != 1 || fmt.Sprint(got.Top[0]) != fmt.Sprint(c.want) {
			t.Errorf("token %d sampled: %v, want %v", c.sampled, got.Top, c.want)
		}
	}
}

// TestSampledTokenAmongAlternatives: OpenAI adds the sampled token where it is none of the most likely ones.
func TestSampledTokenAmongAlternatives(t *testing.T) {
	lp := engine.TokenLogprob{Token: 7, Bytes: []byte("x"), Logprob: -4, Top: []engine.TokenLogprob{{Token: 1, Bytes: []byte("a"), Logprob: -1}}}
	if out := string(appendTextLogprobs(nil, []engine.TokenLogprob{lp}, 1, 0)); !strings.Contains(out, `"top_logprobs":[{"a":-1,"x":-4}]`) {
		t.Error(out)
	}
}
