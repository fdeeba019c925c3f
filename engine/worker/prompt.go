package worker

import (
	"fmt"

	"hearth/engine"
)

// tokenize turns a prompt into tokens of the model with a vocabulary of size ids. Errors are of KindInvalid.
func tokenize(v Vocabulary, p *engine.Prompt, size int) ([]engine.Token, error) {
	var out []engine.Token
	for i := range p.Segments {
		s := &p.Segments[i]
		first := i == 0
		if s.Tokens != nil {
			for _, t := range s.Tokens {
				if t < 0 || int(t) >= size {
					return nil, engine.Invalid("prompt", fmt.Sprintf("holds token %d, the vocabulary has %d", t, size))
				}
			}
			out = append(out, s.Tokens...)
			continue
		}
		if s.Text == "" && !(first && p.AddSpecial) {
			continue
		}
		toks, err := v.Tokenize(s.Text, first && p.AddSpecial, s.Special)
		if err != nil {
			return nil, &engine.Error{Kind: engine.KindInvalid, Field: "prompt", Message: "prompt cannot be tokenised", Cause: err}
		}
		if bos := v.BOS(); first && p.AddSpecial && s.Special && bos >= 0 && len(toks) > 1 && toks[0] == bos && toks[1] == bos {
			toks = toks[1:] // the template had spelled it already
		}
		if len(p.Segments) > 1 && first && p.AddSpecial {
			toks = withoutEOS(v, s.Text, s.Special, toks)
		}
		out = append(out, toks...)
	}
	return out, nil
}

// withoutEOS takes back an EOS that Tokenize put behind the first of several segments: it belongs behind the last, and
// no generating model wants one there.
func withoutEOS(v Vocabulary, text string, special bool, toks []engine.Token) []engine.Token {
	if n := len(toks); n > 0 && v.EOS() >= 0 && toks[n-1] == v.EOS() {
		if bare, err := v.Tokenize(text, false, special); err == nil && (len(bare) == 0 || bare[len(bare)-1] != v.EOS()) {
			return toks[:n-1]
		}
	}
	return toks
}

// rerankPrompt is a query and a document as cross-encoders are trained on them: BOS query EOS SEP document EOS, each
// special token only where the vocabulary has it.
func rerankPrompt(v Vocabulary, query string, doc *engine.Prompt, size int) ([]engine.Token, error) {
	add := func(out []engine.Token, t engine.Token) []engine.Token {
		if t >= 0 {
			return append(out, t)
		}
		return out
	}
	q, err := v.Tokenize(query, false, false)
	if err != nil {
		return nil, &engine.Error{Kind: engine.KindInvalid, Field: "query", Message: "query cannot be tokenised", Cause: err}
	}
	bare := *doc
	bare.AddSpecial = false
	d, err := tokenize(v, &bare, size)
	if err != nil {
		return nil, err
	}
	out := add(nil, v.BOS())
	out = add(append(out, q...), v.EOS())
	if v.SEP() != v.EOS() {
		out = add(out, v.SEP())
	}
	return add(append(out, d...), v.EOS()), nil
}
