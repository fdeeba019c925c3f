package llama_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hearth/engine/llama"
)

func TestCuts(t *testing.T) {
	special := []string{"<|a|>", "<|a|><|b|>", "<s>", "ss", "sst", "sp ace", "tx", ""}
	for _, tt := range []struct {
		text string
		want []int
	}{
		{"", nil},
		{"plain", nil},
		{"x<s>y<s>", []int{1, 5}},
		{"<|a|>", []int{0}},
		{"<|a|><|b|>", []int{0}}, // one token, not two
		{"sss", nil},             // which of the two "ss" counts is not for us to say
		{"asst", []int{1}},
		{"sstx", nil}, // "sst" and "tx" share a letter
		{"sp ace", nil},
		{"<s><s>", []int{0, 3}},
	} {
		if got := llama.Cuts(special, tt.text); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %v, want %v", tt.text, got, tt.want)
		}
	}
}

// cutTexts are long texts of words, line ends and special tokens in random order, and what is hard about them.
func cutTexts(special ...string) []string {
	r := rand.New(rand.NewPCG(1, 2))
	parts := append([]string{"a", " aa", "  ", "\n", "hello", "word ", "é", "<", "|", ">"}, special...)
	out := []string{strings.Repeat(special[0], 3000), strings.Repeat("no special tokens ", 2000), strings.Repeat(special[0]+" ", 3000)}
	for range 20 {
		var b strings.Builder
		for b.Len() < 20_000 {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		out = append(out, b.String())
	}
	return out
}

// A long text that is tokenised in pieces has the tokens it has in one.
func checkCuts(t *testing.T, m *llama.Model, special ...string) {
	t.Helper()
	for i, text := range cutTexts(special...) {
		for _, flags := range [][2]bool{{false, false}, {true, true}, {false, true}} {
			want, err := m.TokenizeWhole(text, flags[0], flags[1])
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.Tokenize(text, flags[0], flags[1])
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("text %d, flags %v: %d tokens, %v; in one piece %d", i, flags, len(got), err, len(want))
			}
		}
	}
}

func TestLongTextsAreCutAtSpecialTokens(t *testing.T) {
	checkCuts(t, dense(t), "<|end|>", "<|user|>", "<|assistant|>", "</s>", "<s>")
}
