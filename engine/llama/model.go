package llama

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/cgo"
	"sync"
	"unsafe"
)

// LoadMode says how weights get into memory.
type LoadMode int

// The zero value lets llama.cpp choose by device.
const (
	LoadAuto      LoadMode = iota
	LoadRead               // read into anonymous memory
	LoadMMap               // map the file
	LoadMLock              // read and lock
	LoadMMapMLock          // map and lock
	LoadDirectIO           // read past the page cache
)

// ModelParams are the settings of a load.
type ModelParams struct {
	// Devices by name, as in Device.Name; the whole model goes to the first
	// that fits, split mode none. Empty: CPU only.
	Devices []string
	// GPULayers to offload to Devices; negative means all.
	GPULayers int
	Load      LoadMode
	// CheckTensors validates every value while loading (slow).
	CheckTensors bool
	// VocabOnly loads no weights: the model can tokenize, not run.
	VocabOnly bool
	// NoRepack keeps CPU weights in file layout: faster load, slower decode.
	NoRepack bool
	// Progress is called on the loading goroutine with 0..1. It must be quick.
	Progress func(fraction float64)
}

// ModelInfo are the fixed facts about a model.
type ModelInfo struct {
	Description string // "llama 8B Q4_K - Medium"
	Size        uint64 // bytes of all tensors
	Params      uint64 // elements of all tensors

	CtxTrain int // tokens
	Embd     int // residual width
	EmbdOut  int // width of an output embedding
	Layers   int
	Heads    int
	HeadsKV  int
	SWA      int // sliding window in tokens, 0 for none
	Vocab    int // tokens
	ClsOut   int // outputs of a rank head

	Recurrent  bool // state-space only: one state per sequence, no partial removal
	Hybrid     bool // attention and recurrent layers
	Encoder    bool // has an encoder that must run first (T5)
	Decoder    bool
	Diffusion  bool
	RopeType   int  // llama_rope_type: -1 none
	MultiRope  bool // positions have several components (M-RoPE)
	AddBOS     bool
	AddEOS     bool
	VocabType  int // llama_vocab_type: 1 SPM, 2 BPE, 3 WPM, ...
	VocabOnly  bool
	Embeddings bool // the metadata names a pooling type: an embedding or rerank model
	Pooling    Pooling

	BOS, EOS, EOT, SEP, NL, PAD, MASK              Token // NullToken where absent
	FIMPre, FIMSuf, FIMMid, FIMPad, FIMRep, FIMSep Token
}

// Model is a loaded model. All methods but Close are safe for concurrent use.
type Model struct {
	lease
	refs   refs
	h      *C.hs_model
	rt     *Runtime
	log    *slog.Logger
	path   string
	info   ModelInfo
	meta   map[string]string
	attrs  []TokenAttr
	eog    []bool
	plain  pieceTable // special tokens render empty
	full   pieceTable // special tokens render as their text
	pieces [2]sync.Once

	cut     [2]*cutter // for text without and with control tokens
	cutOnce [2]sync.Once
}

// LoadModel loads a GGUF file. Errors: those of the file system; ErrModelLoad
// with llama.cpp's words; ErrRange for an unknown device; ErrOutOfMemory; and
// the context's cause when ctx ends first.
func (r *Runtime) LoadModel(ctx context.Context, path string, p ModelParams) (*Model, error) {
	if r.closed.Load() {
		return nil, fail("load model", ErrClosed, "")
	}
	if st, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("llama: load model: %w", err)
	} else if !st.Mode().IsRegular() {
		return nil, fail("load model", ErrModelLoad, path+" is not a regular file")
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	h, err := loadHandle(ctx, path, p)
	if err != nil {
		return nil, err
	}
	m := &Model{h: h, rt: r, log: r.log, path: path}
	if err := m.readAll(p.VocabOnly); err != nil {
		C.hs_model_free(h)
		return nil, err
	}
	track(&m.lease, m, "model", r.log)
	return m, nil
}

func loadHandle(ctx context.Context, path string, p ModelParams) (*C.hs_model, error) {
	cp := C.hs_model_params{
		n_gpu_layers: C.int32_t(p.GPULayers), load_mode: C.int32_t(p.Load) - 1, // llama.cpp's auto is -1
		vocab_only: C.bool(p.VocabOnly), check_tensors: C.bool(p.CheckTensors), no_repack: C.bool(p.NoRepack),
		n_devices: C.int32_t(len(p.Devices)),
	}
	if n := len(p.Devices); n > 0 {
		list := C.malloc(C.size_t(n) * C.size_t(unsafe.Sizeof((*C.char)(nil))))
		defer C.free(list)
		names := unsafe.Slice((**C.char)(list), n)
		for i, d := range p.Devices {
			names[i] = C.CString(d)
			defer C.free(unsafe.Pointer(names[i]))
		}
		cp.devices = (**C.char)(list)
	}
	progress := cgo.NewHandle(&loadProgress{ctx, p.Progress})
	defer progress.Delete()
	cp.progress = C.uintptr_t(progress)
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var h *C.hs_model
	var e C.hs_err
	rc := C.hs_model_load(cpath, &cp, &h, &e)
	if rc == C.HS_CANCELLED {
		return nil, context.Cause(ctx)
	}
	if rc != C.HS_OK {
		return nil, shimError("load model "+path, ErrModelLoad, rc, &e)
	}
	return h, nil
}

// readAll copies everything fixed out of the model.
func (m *Model) readAll(vocabOnly bool) error {
	var ci C.hs_model_info
	var e C.hs_err
	if rc := C.hs_model_get_info(m.h, &ci, &e); rc != C.HS_OK {
		return shimError("read model", ErrModelLoad, rc, &e)
	}
	m.info = ModelInfo{
		Description: C.GoString(&ci.desc[0]), Size: uint64(ci.size), Params: uint64(ci.n_params),
		CtxTrain: int(ci.n_ctx_train), Embd: int(ci.n_embd), EmbdOut: int(ci.n_embd_out), Layers: int(ci.n_layer),
		Heads: int(ci.n_head), HeadsKV: int(ci.n_head_kv), SWA: int(ci.n_swa), Vocab: int(ci.n_vocab), ClsOut: int(ci.n_cls_out),
		Recurrent: bool(ci.recurrent), Hybrid: bool(ci.hybrid), Encoder: bool(ci.has_encoder), Decoder: bool(ci.has_decoder),
		Diffusion: bool(ci.diffusion), AddBOS: bool(ci.add_bos), AddEOS: bool(ci.add_eos),
		RopeType: int(ci.rope_type), MultiRope: ci.rope_type == ropeMulti || ci.rope_type == ropeIMulti,
		VocabType: int(ci.vocab_type), VocabOnly: vocabOnly,
		BOS: Token(ci.bos), EOS: Token(ci.eos), EOT: Token(ci.eot), SEP: Token(ci.sep), NL: Token(ci.nl),
		PAD: Token(ci.pad), MASK: Token(ci.mask), FIMPre: Token(ci.fim_pre), FIMSuf: Token(ci.fim_suf),
		FIMMid: Token(ci.fim_mid), FIMPad: Token(ci.fim_pad), FIMRep: Token(ci.fim_rep), FIMSep: Token(ci.fim_sep),
	}
	if err := m.readMeta(); err != nil {
		return err
	}
	m.info.Pooling, m.info.Embeddings = metaPooling(m.meta)
	return m.readTokenTable()
}

// llama_rope_type values (llama.h, ggml.h); the multi ones have several positions per token.
const (
	ropeNone   = -1
	ropeMulti  = 8
	ropeIMulti = 40
)

// Close frees the weights. It returns ErrInUse, and does nothing, while a
// Context, Adapter or Grammar of the model is open or a call is in flight.
func (m *Model) Close() error {
	if m.closed.Load() {
		return nil
	}
	if !m.refs.shut() {
		if m.closed.Load() {
			return nil
		}
		return fail("close model", ErrInUse, "")
	}
	m.release()
	C.hs_model_free(m.h)
	m.h = nil
	return nil
}

// Info returns the fixed facts.
func (m *Model) Info() ModelInfo { return m.info }

// Path returns the file the model came from.
func (m *Model) Path() string { return m.path }

// Metadata returns every scalar and string key of the GGUF header as text. The
// map is shared: do not change it.
func (m *Model) Metadata() map[string]string { return m.meta }

// ChatTemplate returns the Jinja text of a template by name ("" for the
// default) and whether the model has it.
func (m *Model) ChatTemplate(name string) (string, bool) {
	if !m.refs.acquire() {
		return "", false
	}
	defer m.refs.release()
	var cn *C.char
	if name != "" {
		cn = C.CString(name)
		defer C.free(unsafe.Pointer(cn))
	}
	t := C.hs_chat_template(m.h, cn)
	if t == nil {
		return "", false
	}
	return C.GoString(t), true
}

func (m *Model) readMeta() error {
	n := int(C.hs_meta_count(m.h))
	m.meta = make(map[string]string, n)
	for i := range n {
		var k, v *C.char
		var e C.hs_err
		if rc := C.hs_meta_get(m.h, C.int(i), &k, &v, &e); rc != C.HS_OK {
			return shimError("read metadata", ErrModelLoad, rc, &e)
		}
		m.meta[C.GoString(k)] = C.GoString(v)
		C.hs_free(unsafe.Pointer(k))
		C.hs_free(unsafe.Pointer(v))
	}
	return nil
}
