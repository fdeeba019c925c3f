package llama

// #include "shim.h"
import "C"

import (
	"fmt"
	"strconv"
	"sync/atomic"
)

// Pooling says how a context folds token embeddings into one per sequence.
type Pooling int

// Values are llama_pooling_type plus one, so that the zero value asks the model.
const (
	PoolingModel Pooling = iota // what the model's metadata says
	PoolingNone
	PoolingMean
	PoolingCLS
	PoolingLast
	PoolingRank // classification head: ModelInfo.ClsOut scores per sequence
)

func metaPooling(meta map[string]string) (Pooling, bool) {
	v, ok := meta[meta["general.architecture"]+".pooling_type"]
	n, err := strconv.Atoi(v)
	if !ok || err != nil || n < 0 || n > 4 {
		return PoolingModel, false
	}
	return Pooling(n + 1), n != 0
}

// FlashAttn selects the attention kernels.
type FlashAttn int

// The zero value lets llama.cpp decide by device support.
const (
	FlashAuto FlashAttn = iota
	FlashOn
	FlashOff
)

// KVType is the element type of the K or V cache.
type KVType string

// Types llama.cpp has attention kernels for; "" is F16. A quantised V needs flash attention.
const (
	KVF32  KVType = "f32"
	KVF16  KVType = "f16"
	KVBF16 KVType = "bf16"
	KVQ8_0 KVType = "q8_0"
	KVQ5_1 KVType = "q5_1"
	KVQ5_0 KVType = "q5_0"
	KVQ4_1 KVType = "q4_1"
	KVQ4_0 KVType = "q4_0"
	KVIQ4  KVType = "iq4_nl"
)

// ggml maps to ggml_type (ggml.h).
func (k KVType) ggml() (C.int32_t, bool) {
	switch k {
	case KVF16, "":
		return 1, true
	case KVF32:
		return 0, true
	case KVBF16:
		return 30, true
	case KVQ8_0:
		return 8, true
	case KVQ5_1:
		return 7, true
	case KVQ5_0:
		return 6, true
	case KVQ4_1:
		return 3, true
	case KVQ4_0:
		return 2, true
	case KVIQ4:
		return 20, true
	}
	return 0, false
}

// ContextParams are the settings of a context. None can be changed later, on
// purpose: llama.cpp crashes when some are toggled after the first decode.
type ContextParams struct {
	Ctx        int // tokens; the pool when KVUnified, else split over SeqMax; 0 = the model's; rounded up to 256
	Batch      int // most entries of one Decode; 0 = 2048
	UBatch     int // entries of one graph evaluation; 0 = 512, at most Batch
	SeqMax     int // sequence ids that can be decoded, 1..256; 0 = 1
	OutputsMax int // most output rows of one Decode, at least SeqMax; sizes the logits buffers; 0 = Batch

	Threads      int // for single-token steps; 0 = 1
	ThreadsBatch int // for larger ones; 0 = Threads

	Flash FlashAttn
	TypeK KVType
	TypeV KVType

	KVUnified bool // one pool of cells for all sequences
	SWAFull   bool // full-size cache for sliding-window layers

	Embeddings bool    // make embeddings; every entry becomes an output
	Pooling    Pooling // with Embeddings

	NoOffloadKV bool // keep the KV cache and attention in host memory
	NoOpOffload bool // never move host-weight matrix products to the device

	RopeFreqBase  float64 // 0 = the model's
	RopeFreqScale float64 // 0 = the model's

	Perf bool // measure times for Perf; costs a synchronisation per decode
}

// PadCells rounds up as llama.cpp rounds a context.
func PadCells(n int) int { return (n + 255) / 256 * 256 }

// WindowCells is the size of a window cache that is not full-size (SWAFull): the windows of the sequences that share it and one
// evaluation of ubatch tokens, padded to 256 cells, in a context of ctx cells. No call reports it, so this repeats llama.cpp's own sum
// (src/llama-kv-cache-iswa.cpp: size_swa). TestLockstep would fail with any other size.
func WindowCells(window, seqs, ubatch, ctx int) int {
	return PadCells(min(ctx, window*seqs+ubatch))
}

// Context is a KV memory with its compute buffers. One goroutine at a time may
// use it; a second one that comes in the middle of a call panics. Abort and the
// size getters are exempt.
type Context struct {
	lease
	busy     atomic.Bool
	h        *C.hs_ctx
	m        *Model
	par      ContextParams
	info     C.hs_ctx_info
	err      *C.hs_err
	rows     Rows
	maxSeq   SeqID // ids at or above this reach an assertion or are ignored
	onDevice map[SeqID]bool
	embdSeqs map[SeqID]bool // sequences of the last encoded batch
	poisoned bool
}

// NewContext creates a context of the model. Errors: ErrRange naming the
// parameter, ErrContext with llama.cpp's words, ErrOutOfMemory, ErrClosed.
func (m *Model) NewContext(p ContextParams) (*Context, error) {
	cp, err := p.shim(m)
	if err != nil {
		return nil, err
	}
	if !m.refs.acquire() {
		return nil, fail("new context", ErrClosed, "model")
	}
	var h *C.hs_ctx
	e := new(C.hs_err)
	if rc := C.hs_ctx_new(m.h, &cp, &h, e); rc != C.HS_OK {
		m.refs.release()
		return nil, shimError("new context", ErrContext, rc, e)
	}
	c := &Context{h: h, m: m, par: p, err: e, onDevice: map[SeqID]bool{}, embdSeqs: map[SeqID]bool{}}
	if rc := C.hs_ctx_get_info(h, &c.info, e); rc != C.HS_OK {
		C.hs_ctx_free(h)
		m.refs.release()
		return nil, shimError("new context", ErrContext, rc, e)
	}
	c.par.OutputsMax = int(cp.n_outputs_max)
	c.rows.vocab = m.info.Vocab
	c.maxSeq = SeqID(c.info.n_seq_max)
	if p.KVUnified && !m.info.Recurrent && !m.info.Hybrid {
		// Attention caches in one pool accept parking ids beyond SeqMax.
		c.maxSeq = SeqID(MaxSeqs())
	}
	track(&c.lease, c, "context", m.log)
	return c, nil
}

// shim checks the parameters and fills in the defaults.
func (p ContextParams) shim(m *Model) (C.hs_ctx_params, error) {
	def := func(v, d int) int {
		if v == 0 {
			return d
		}
		return v
	}
	var cp C.hs_ctx_params
	bad := func(f string, v any) (C.hs_ctx_params, error) {
		return cp, fail("new context", ErrRange, fmt.Sprintf("%s = %v", f, v))
	}
	batch, seqs, threads := def(p.Batch, 2048), def(p.SeqMax, 1), def(p.Threads, 1)
	ubatch := def(p.UBatch, min(512, batch))
	outputs := def(p.OutputsMax, batch)
	if p.Embeddings {
		outputs = batch // llama.cpp turns every entry into an output
	}
	tk, okK := p.TypeK.ggml()
	tv, okV := p.TypeV.ggml()
	switch {
	case m.info.VocabOnly:
		return cp, fail("new context", ErrUnsupported, "the model was loaded without weights")
	case m.info.Encoder && m.info.Decoder:
		return cp, fail("new context", ErrUnsupported, "encoder-decoder models")
	case p.Ctx < 0 || p.Ctx > 1<<30:
		return bad("Ctx", p.Ctx)
	case batch < 1 || batch > 1<<20:
		return bad("Batch", p.Batch)
	case ubatch < 1 || ubatch > batch:
		return bad("UBatch", p.UBatch)
	case seqs < 1 || seqs > MaxSeqs():
		return bad("SeqMax", p.SeqMax)
	case outputs < seqs || outputs > batch: // fewer outputs than sequences abort in the graph reservation
		return bad("OutputsMax", p.OutputsMax)
	case threads < 1 || threads > 512:
		return bad("Threads", p.Threads)
	case p.ThreadsBatch < 0 || p.ThreadsBatch > 512:
		return bad("ThreadsBatch", p.ThreadsBatch)
	case !okK:
		return bad("TypeK", p.TypeK)
	case !okV:
		return bad("TypeV", p.TypeV)
	case p.Pooling < PoolingModel || p.Pooling > PoolingRank:
		return bad("Pooling", p.Pooling)
	case p.Flash < FlashAuto || p.Flash > FlashOff:
		return bad("Flash", p.Flash)
	}
	flash := map[FlashAttn]C.int32_t{FlashAuto: -1, FlashOn: 1, FlashOff: 0}[p.Flash]
	return C.hs_ctx_params{
		n_ctx: C.uint32_t(p.Ctx), n_batch: C.uint32_t(batch), n_ubatch: C.uint32_t(ubatch), n_seq_max: C.uint32_t(seqs),
		n_outputs_max: C.uint32_t(outputs), n_threads: C.int32_t(threads), n_threads_batch: C.int32_t(def(p.ThreadsBatch, threads)),
		flash_attn: flash, type_k: tk, type_v: tv, pooling: C.int32_t(p.Pooling) - 1, attention: -1,
		rope_freq_base: C.float(p.RopeFreqBase), rope_freq_scale: C.float(p.RopeFreqScale),
		embeddings: C.bool(p.Embeddings), offload_kqv: C.bool(!p.NoOffloadKV), op_offload: C.bool(!p.NoOpOffload),
		swa_full: C.bool(p.SWAFull), kv_unified: C.bool(p.KVUnified), no_perf: C.bool(!p.Perf),
	}, nil
}

// Close frees the context. It must not overlap another call on it.
func (c *Context) Close() error {
	if c.closed.Load() {
		return nil
	}
	c.claim()
	defer c.yield()
	if c.release() {
		C.hs_ctx_free(c.h)
		c.h = nil
		c.rows = Rows{}
		c.m.refs.release()
	}
	return nil
}

// claim takes the context for one call. Two goroutines inside at once is a bug
// of the caller that llama.cpp would answer with corrupt memory.
func (c *Context) claim() {
	if !c.busy.CompareAndSwap(false, true) {
		panic("llama: context used by two goroutines at once")
	}
}

func (c *Context) yield() { c.busy.Store(false) }

// enter is claim for calls that need the context open; on nil error the caller
// must call yield.
func (c *Context) enter(op string) error {
	c.claim()
	if c.closed.Load() {
		c.yield()
		return fail(op, ErrClosed, "")
	}
	return nil
}

// Model returns the model the context belongs to.
func (c *Context) Model() *Model { return c.m }

// NCtx is the size of the whole KV memory in cells.
func (c *Context) NCtx() int { return int(c.info.n_ctx) }

// NCtxSeq is the most cells one sequence can hold.
func (c *Context) NCtxSeq() int { return int(c.info.n_ctx_seq) }

// WindowCells is the size of the cache of layers with a sliding window in cells, of the pool or of one sequence's stream.
func (c *Context) WindowCells() int {
	seqs := 1
	switch {
	case c.par.SWAFull || c.m.info.SWA == 0:
		return c.NCtxSeq()
	case c.par.KVUnified:
		seqs = c.NSeqMax()
	}
	return WindowCells(c.m.info.SWA, seqs, c.NUBatch(), c.NCtxSeq())
}

// NBatch is the most entries of one Decode.
func (c *Context) NBatch() int { return int(c.info.n_batch) }

// NUBatch is the most entries of one graph evaluation.
func (c *Context) NUBatch() int { return int(c.info.n_ubatch) }

// NSeqMax is the number of sequence ids that can be decoded.
func (c *Context) NSeqMax() int { return int(c.info.n_seq_max) }

// NOutputsMax is the most output rows of one Decode.
func (c *Context) NOutputsMax() int { return c.par.OutputsMax }

// MaxSeqID is one past the largest id the memory calls accept: above NSeqMax
// lie parking ids, which can keep cells alive but not be decoded.
func (c *Context) MaxSeqID() int { return int(c.maxSeq) }

// Pooling is the pooling in effect.
func (c *Context) Pooling() Pooling { return Pooling(c.info.pooling) + 1 }

// HasMemory reports whether there is a KV memory at all; encoder-only models have none.
func (c *Context) HasMemory() bool { return bool(c.info.has_memory) }

// CanShift reports whether SeqAdd works.
func (c *Context) CanShift() bool { return bool(c.info.can_shift) && !c.m.info.MultiRope }

// Abort makes a Decode in flight on the CPU backend return ErrAborted, and
// every later one until ResetAbort. GPU backends do not look. Any goroutine may
// call it, but not after Close.
func (c *Context) Abort() { C.hs_ctx_abort(c.h, true) }

// ResetAbort lowers the flag again.
func (c *Context) ResetAbort() { C.hs_ctx_abort(c.h, false) }

// SetThreads changes the thread counts: n for single-token steps, nBatch for larger ones.
func (c *Context) SetThreads(n, nBatch int) error {
	if n < 1 || nBatch < 1 || n > 512 || nBatch > 512 {
		return fail("set threads", ErrRange, fmt.Sprintf("%d, %d", n, nBatch))
	}
	if err := c.enter("set threads"); err != nil {
		return err
	}
	defer c.yield()
	return shimError("set threads", ErrException, C.hs_ctx_set_threads(c.h, C.int32_t(n), C.int32_t(nBatch), c.err), c.err)
}

// Perf are the counters of a context since its start or the last reset.
type Perf struct {
	LoadMS, PrefillMS, DecodeMS float64 // need ContextParams.Perf
	Prefill, Decode             int     // tokens
	GraphsReused                int     // evaluations that reused the previous graph
	ReallocsSame, ReallocsDiff  int     // graph reallocations with unchanged and changed size
}

// Perf reads the counters and, with reset, starts them anew.
func (c *Context) Perf(reset bool) (Perf, error) {
	if err := c.enter("perf"); err != nil {
		return Perf{}, err
	}
	defer c.yield()
	var p C.hs_perf
	if rc := C.hs_ctx_perf(c.h, C.bool(reset), &p, c.err); rc != C.HS_OK {
		return Perf{}, shimError("perf", ErrException, rc, c.err)
	}
	return Perf{
		LoadMS: float64(p.t_load_ms), PrefillMS: float64(p.t_prefill_ms), DecodeMS: float64(p.t_decode_ms),
		Prefill: int(p.n_prefill), Decode: int(p.n_decode), GraphsReused: int(p.n_reused),
		ReallocsSame: int(p.n_reallocs_same), ReallocsDiff: int(p.n_reallocs_diff),
	}, nil
}

// SetAdapters puts LoRA adapters with their scales in force for every later
// decode; none clears them. It costs a re-reservation of the graphs.
func (c *Context) SetAdapters(adapters []*Adapter, scales []float32) error {
	if len(adapters) != len(scales) {
		return fail("set adapters", ErrRange, fmt.Sprintf("%d adapters, %d scales", len(adapters), len(scales)))
	}
	if err := c.enter("set adapters"); err != nil {
		return err
	}
	defer c.yield()
	n := len(adapters)
	handles, values := make([]*C.hs_adapter, n+1), make([]C.float, n+1)
	for i, a := range adapters {
		if a.closed.Load() || a.m != c.m {
			return fail("set adapters", ErrRange, "adapter "+strconv.Itoa(i)+" is closed or of another model")
		}
		handles[i], values[i] = a.h, C.float(scales[i])
	}
	rc := C.hs_ctx_set_adapters(c.h, &handles[0], &values[0], C.int32_t(n), c.err)
	return shimError("set adapters", ErrAdapter, rc, c.err)
}
