package llama

import (
	"log/slog"
	"runtime"
	"unsafe"
)

// NewScalarSampler is NewSampler without the vector kernels.
func NewScalarSampler(vocab, maxRows, threads int) (*Sampler, error) {
	return newSampler(vocab, maxRows, threads, true, nil)
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
