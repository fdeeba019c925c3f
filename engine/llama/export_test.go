package llama

import (
	"log/slog"
	"runtime"
	"unsafe"
)

// NewSamplerUpTo is NewSampler with at most the given vectors; see SIMD.
func NewSamplerUpTo(simd, vocab, maxRows, threads int) (*Sampler, error) {
	return newSampler(vocab, maxRows, threads, simd, nil)
}

// NewRowFor makes a row without a model.
func NewRowFor(vocab int, p SampleParams) (*Row, error) {
	return newRow(vocab, p, slog.New(slog.DiscardHandler))
}

// RowsOf makes rows of test logits; they stay pinned until unpin.
func RowsOf(logits ...[]float32) (r Rows, unpin func()) {
	var pin runtime.Pinner
	for _, l := range logits {
		pin.Pin(&l[0])
		r.p = append(r.p, unsafe.Pointer(&l[0]))
		r.vocab = len(l)
	}
	return r, pin.Unpin
}

// TokenizeWhole is Tokenize without cutting long texts.
func (m *Model) TokenizeWhole(text string, addSpecial, parseSpecial bool) ([]Token, error) {
	return m.tokenize(text, addSpecial, parseSpecial)
}

// Cuts lists where a cutter with these special tokens may cut text.
func Cuts(special []string, text string) []int {
	var out []int
	c := newCutter(special)
	for i := c.next(text, 0); i < len(text); i = c.next(text, i+1) {
		out = append(out, i)
	}
	return out
}
