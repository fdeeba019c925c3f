package llama

// #include "shim.h"
import "C"

import (
	"strconv"
	"unsafe"
)

// Rows are the logits rows of the last finished step: row k belongs to the
// k-th entry added with output. They view the context's memory and are invalid
// after its next Decode, Step, SetAdapters or Close.
type Rows struct {
	p     []unsafe.Pointer // of float, in C memory
	vocab int
}

// Len is the number of rows.
func (r Rows) Len() int { return len(r.p) }

// Logits returns row k, vocabulary-long, or nil where the context makes none
// (encoders, pooled embeddings). Rows may be read from several goroutines.
func (r Rows) Logits(k int) []float32 {
	if r.p[k] == nil {
		return nil
	}
	return unsafe.Slice((*float32)(r.p[k]), r.vocab)
}

// Argmax returns the id of the largest logit, the lowest of equals; NullToken
// when there is none that compares (empty or all NaN).
func Argmax(logits []float32) Token {
	best := NullToken
	for i, l := range logits {
		if l == l && (best < 0 || l > logits[best]) {
			best = Token(i)
		}
	}
	return best
}

// Decode queues the batch and returns while a GPU may still be computing; Sync
// waits and hands out the rows. In between only Go code and calls on other
// objects may run.
//
// Errors: before anything changed: ErrClosed, ErrPoisoned, ErrInvalidBatch,
// ErrRange and ErrPosition (with the entry), ErrNoKVSlot. With finished
// micro-batches kept: ErrAborted, ErrOutOfMemory, ErrCompute; ask PosMax what is
// there. After ErrException the context refuses further work.
func (c *Context) Decode(b *Batch) error {
	if err := c.begin(b); err != nil {
		return err
	}
	defer c.yield()
	c.rows.p = nil
	return c.decoded(b, C.hs_decode(c.h, b.h, c.err))
}

// Sync waits for the queued Decode and returns its rows.
func (c *Context) Sync() (Rows, error) {
	if err := c.enter("sync"); err != nil {
		return Rows{}, err
	}
	defer c.yield()
	var rows **C.float
	var n C.int32_t
	rc := C.hs_sync(c.h, &rows, &n, c.err)
	if rc != C.HS_OK {
		c.poisoned = true
		return Rows{}, shimError("sync", ErrException, rc, c.err)
	}
	return c.setRows(rows, n), nil
}

// Step is Decode and Sync in one call across the language border.
func (c *Context) Step(b *Batch) (Rows, error) {
	if err := c.begin(b); err != nil {
		return Rows{}, err
	}
	defer c.yield()
	c.rows.p = nil
	var rows **C.float
	var n C.int32_t
	if err := c.decoded(b, C.hs_step(c.h, b.h, &rows, &n, c.err)); err != nil {
		return Rows{}, err
	}
	return c.setRows(rows, n), nil
}

// begin claims the context and runs the guards; on nil error the caller yields.
func (c *Context) begin(b *Batch) error {
	if err := c.enter("decode"); err != nil {
		return err
	}
	err := b.check(c)
	if c.poisoned {
		err = fail("decode", ErrPoisoned, "")
	}
	if err != nil {
		c.yield()
		return err
	}
	if c.par.Embeddings {
		c.noteEmbeddings(b)
	}
	b.h.n = C.int32_t(b.n)
	return nil
}

func (c *Context) decoded(b *Batch, rc C.int) error {
	switch rc {
	case C.HS_OK:
		return nil
	case C.HS_EXCEPTION, C.HS_NOMEM:
		c.poisoned = true
	}
	return decodeError(rc, c.err)
}

func (c *Context) setRows(rows **C.float, n C.int32_t) Rows {
	c.rows.p = nil
	if n > 0 {
		c.rows.p = unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(rows)), int(n))
	}
	return c.rows
}

// noteEmbeddings marks every entry as an output, as llama.cpp would do with a
// warning, and remembers which sequences will have an embedding.
func (c *Context) noteEmbeddings(b *Batch) {
	clear(c.embdSeqs)
	for i := range b.n {
		b.output[i] = 1
		for _, s := range b.seqs[i*b.seqCap : i*b.seqCap+int(b.nSeq[i])] {
			c.embdSeqs[s] = true
		}
	}
	b.outputs = b.n
}

// EmbeddingSeq returns the pooled embedding of a sequence of the last batch:
// ModelInfo.EmbdOut values, or ModelInfo.ClsOut scores with rank pooling, not
// normalised. It views the context's memory until the next decode. Errors:
// ErrUnsupported without pooling, ErrRange for a sequence that was not in it.
func (c *Context) EmbeddingSeq(seq SeqID) ([]float32, error) {
	if err := c.enter("embedding"); err != nil {
		return nil, err
	}
	defer c.yield()
	if !c.par.Embeddings || c.Pooling() == PoolingNone {
		return nil, fail("embedding", ErrUnsupported, "the context does not pool embeddings")
	}
	if !c.embdSeqs[seq] {
		return nil, fail("embedding", ErrRange, "sequence "+strconv.Itoa(int(seq))+" was not in the last batch")
	}
	var p *C.float
	if rc := C.hs_embd_seq(c.h, C.int32_t(seq), &p, c.err); rc != C.HS_OK {
		return nil, shimError("embedding", ErrException, rc, c.err)
	}
	n := c.m.info.EmbdOut
	if c.Pooling() == PoolingRank {
		n = c.m.info.ClsOut
	}
	return embdView(p, n)
}

// EmbeddingAt returns the embedding of entry i of the last batch, ModelInfo.EmbdOut
// values, from a context with Embeddings and PoolingNone. Errors as EmbeddingSeq.
func (c *Context) EmbeddingAt(i int) ([]float32, error) {
	if err := c.enter("embedding"); err != nil {
		return nil, err
	}
	defer c.yield()
	if !c.par.Embeddings || c.Pooling() != PoolingNone {
		return nil, fail("embedding", ErrUnsupported, "the context does not keep token embeddings")
	}
	if i < 0 {
		return nil, fail("embedding", ErrRange, "negative entry")
	}
	var p *C.float
	if rc := C.hs_embd_ith(c.h, C.int32_t(i), &p, c.err); rc != C.HS_OK {
		return nil, shimError("embedding", ErrException, rc, c.err)
	}
	return embdView(p, c.m.info.EmbdOut)
}

func embdView(p *C.float, n int) ([]float32, error) {
	if p == nil {
		return nil, fail("embedding", ErrRange, "no such output")
	}
	return unsafe.Slice((*float32)(p), n), nil
}
