package llama

// #include "shim.h"
import "C"

import (
	"fmt"
	"log/slog"
	"math"
	"unsafe"
)

// Batch holds the input entries of one Decode in C memory, written through Go
// views: filling it calls nothing. It belongs to no context and may be reused.
type Batch struct {
	lease
	h       *C.hs_batch
	tokens  []Token
	pos     []Pos
	nSeq    []int32
	seqs    []SeqID // seqCap ids per entry
	output  []int8
	seqCap  int
	n       int
	outputs int
}

// NewBatch allocates room for capacity entries of up to seqsPerEntry sequence
// ids each (1 unless entries are shared). Errors: ErrRange, ErrOutOfMemory.
func NewBatch(capacity, seqsPerEntry int, log *slog.Logger) (*Batch, error) {
	if capacity < 1 || capacity > 1<<20 || seqsPerEntry < 1 || seqsPerEntry > MaxSeqs() {
		return nil, fail("new batch", ErrRange, fmt.Sprintf("%d entries of %d sequences", capacity, seqsPerEntry))
	}
	h := C.hs_batch_new(C.int32_t(capacity), C.int32_t(seqsPerEntry))
	if h == nil {
		return nil, fail("new batch", ErrOutOfMemory, "")
	}
	b := &Batch{
		h: h, seqCap: seqsPerEntry,
		tokens: unsafe.Slice((*Token)(h.token), capacity),
		pos:    unsafe.Slice((*Pos)(h.pos), capacity),
		nSeq:   unsafe.Slice((*int32)(h.n_seq), capacity),
		seqs:   unsafe.Slice((*SeqID)(h.seq_data), capacity*seqsPerEntry),
		output: unsafe.Slice((*int8)(h.output), capacity),
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	track(&b.lease, b, "batch", log)
	return b, nil
}

// Close frees the memory.
func (b *Batch) Close() error {
	if b.release() {
		C.hs_batch_free(b.h)
		b.h, b.tokens, b.pos, b.nSeq, b.seqs, b.output = nil, nil, nil, nil, nil, nil
		b.Reset()
	}
	return nil
}

// Reset empties the batch.
func (b *Batch) Reset() { b.n, b.outputs = 0, 0 }

// Len is the number of entries, Cap how many fit, Outputs how many ask for a row.
func (b *Batch) Len() int     { return b.n }
func (b *Batch) Cap() int     { return len(b.tokens) }
func (b *Batch) Outputs() int { return b.outputs }

// Add appends one token of one sequence; output asks for its logits row. It
// returns the index of the output row the entry will have (the number of
// outputs before it), or ErrBatchFull.
func (b *Batch) Add(tok Token, pos Pos, seq SeqID, output bool) (row int, err error) {
	i := b.n
	if i >= len(b.tokens) {
		return 0, &Error{Op: "batch add", Kind: ErrBatchFull, Index: i}
	}
	b.tokens[i], b.pos[i], b.nSeq[i], b.output[i] = tok, pos, 1, 0
	b.seqs[i*b.seqCap] = seq
	row = b.outputs
	if output {
		b.output[i] = 1
		b.outputs++
	}
	b.n++
	return row, nil
}

// AddShared appends one token that belongs to several sequences at once. Only
// a unified KV memory takes it. Errors: ErrBatchFull, ErrRange when seqs is
// empty or longer than the batch allows.
func (b *Batch) AddShared(tok Token, pos Pos, seqs []SeqID, output bool) (row int, err error) {
	if len(seqs) < 1 || len(seqs) > b.seqCap {
		return 0, fail("batch add", ErrRange, fmt.Sprintf("%d sequences", len(seqs)))
	}
	row, err = b.Add(tok, pos, seqs[0], output)
	if err != nil {
		return 0, err
	}
	i := b.n - 1
	copy(b.seqs[i*b.seqCap:], seqs)
	b.nSeq[i] = int32(len(seqs))
	return row, nil
}

// posLimit is one past the largest position. A model that looks positions up
// in a table as long as its training context aborts past it: encoders (BERT,
// whatever its rope type says) and decoders without rotary embeddings (GPT-2).
func (c *Context) posLimit() Pos {
	i := &c.m.info
	table := !c.HasMemory() || i.RopeType == ropeNone && !i.Recurrent && !i.Hybrid
	if table && i.CtxTrain > 0 {
		return Pos(i.CtxTrain)
	}
	return math.MaxInt32
}

// check refuses what llama.cpp would abort on or misread. It is the guard in
// front of every decode; positions are checked in the shim, where the memory is.
func (b *Batch) check(c *Context) error {
	bad := func(kind error, i int, msg string) error {
		return &Error{Op: "decode", Kind: kind, Msg: msg, Index: i}
	}
	limit := c.NBatch()
	if !c.HasMemory() {
		limit = c.NUBatch() // an encoder sees its whole input at once
	}
	switch {
	case b.closed.Load():
		return fail("decode", ErrClosed, "batch")
	case b.n == 0:
		return fail("decode", ErrInvalidBatch, "no entries")
	case b.n > limit:
		return fail("decode", ErrInvalidBatch, fmt.Sprintf("%d entries, at most %d", b.n, limit))
	case b.outputs > c.par.OutputsMax:
		return fail("decode", ErrInvalidBatch, fmt.Sprintf("%d outputs, at most %d", b.outputs, c.par.OutputsMax))
	}
	vocab, seqMax, posMax := Token(c.m.info.Vocab), SeqID(c.info.n_seq_max), c.posLimit()
	for i := range b.n {
		if t := b.tokens[i]; t < 0 || t >= vocab {
			return bad(ErrRange, i, fmt.Sprintf("token %d of %d", t, vocab))
		}
		if b.pos[i] < 0 || b.pos[i] >= posMax {
			return bad(ErrRange, i, fmt.Sprintf("position %d of %d", b.pos[i], posMax))
		}
		if b.nSeq[i] > 1 && !c.par.KVUnified {
			return bad(ErrUnsupported, i, "shared entries need a unified KV memory")
		}
		for _, s := range b.seqs[i*b.seqCap : i*b.seqCap+int(b.nSeq[i])] {
			if s < 0 || s >= seqMax {
				return bad(ErrRange, i, fmt.Sprintf("sequence %d of %d", s, seqMax))
			}
		}
	}
	return nil
}
