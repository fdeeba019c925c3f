package openai

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"hearth/engine"
)

// spell is a token as the logprobs of both APIs write it: its text, or, when its bytes are no whole characters, prefix
// and the bytes escaped as Python escapes them, which is what OpenAI sends. (U+FFFD would stand for any of them.)
func spell(token []byte, prefix string) string {
	if utf8.Valid(token) {
		return string(token)
	}
	b := []byte(prefix)
	for _, c := range token {
		switch {
		case c == '\\':
			b = append(b, `\\`...)
		case c >= ' ' && c <= '~':
			b = append(b, c)
		default:
			b = fmt.Appendf(b, `\x%02x`, c)
		}
	}
	return string(b)
}

// spellText is spell as completions have it.
func spellText(token []byte) string { return spell(token, "bytes:") }

// alternative is one entry of the map of a token's alternatives that completions have.
type alternative struct {
	name    string
	logprob float32
}

// alternatives lists the top most likely tokens in lp's place, and the sampled one, which OpenAI adds where it is not
// among them. Names are unique: of tokens that read alike (a control token, and the same letters as text) the sampled
// one has the text, so that a look-up by the token in the list of tokens finds its own log-probability, then the most
// likely one; the others are named by their ids in vLLM's form.
func alternatives(lp engine.TokenLogprob, top int) []alternative {
	list := lp.Top[:min(top, len(lp.Top))]
	sampled := spellText(lp.Bytes)
	out := make([]alternative, 0, len(list)+1)
	taken := map[string]bool{sampled: true}
	here := false
	for _, alt := range list {
		name := spellText(alt.Bytes)
		switch {
		case alt.Token == lp.Token:
			here = true
		case taken[name]:
			name = "token_id:" + strconv.Itoa(int(alt.Token))
		}
		taken[name] = true
		out = append(out, alternative{name, alt.Logprob})
	}
	if !here {
		out = append(out, alternative{sampled, lp.Logprob})
	}
	return out
}

// characters counts the characters that begin in a token, so that one spelled by several tokens counts once.
func characters(token []byte) int {
	n := 0
	for _, c := range token {
		if utf8.RuneStart(c) {
			n++
		}
	}
	return n
}
