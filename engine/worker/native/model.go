package native

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/llama"
	"hearth/engine/worker"
)

// model implements worker.Model.
type model struct {
	rt   *llama.Runtime
	m    *llama.Model
	ctx  *llama.Context
	b    *llama.Batch
	s    *llama.Sampler
	lora []*llama.Adapter
	spec engine.LoadSpec
	size sizes  // of a chat model's context
	blas string // path of the BLAS plugin; "": none

	aborting sync.Mutex // held where ctx is replaced, for Abort comes from any goroutine

	host         map[int32]saved // sequences by slot
	part         []byte          // room for a part of one
	scales       []float32       // of lora
	auto         bool            // the layout may be changed
	unifiedCells int             // the pool in the unified layout
	log          *slog.Logger
	info         engine.Info
	cfg          batch.Config

	rows   llama.Rows
	jobs   []llama.Job
	async  bool
	picked []*row
}

// init makes the context and everything that belongs to it.
func (m *model) init(dev llama.Device, progress func(string, float64)) error {
	mi := m.m.Info()
	if !mi.Decoder && mi.Encoder && m.spec.Mode == "" {
		m.spec.Mode = "embedding" // it cannot do anything else
	}
	m.async = m.spec.Backend != "cpu" && dev.Type != llama.DeviceCPU
	progress("context", 0)
	var err error
	if m.spec.Mode == "embedding" || m.spec.Mode == "rerank" {
		err = m.initEmbedding(mi)
	} else {
		err = m.initChat(mi, dev)
	}
	if err != nil {
		return err
	}
	if err := m.adapters(); err != nil {
		return err
	}
	m.describe(mi, dev)
	return nil
}

func (m *model) initChat(mi llama.ModelInfo, dev llama.Device) error {
	if mi.Diffusion || mi.Encoder {
		return &engine.Error{Kind: engine.KindUnsupported, Field: "model", Message: "this kind of model (encoder or diffusion) cannot chat"}
	}
	if mi.Embeddings && m.spec.Mode == "" && mi.Pooling == llama.PoolingRank {
		return &engine.Error{Kind: engine.KindUnsupported, Field: "model", Message: "this is a rerank model: load it with mode rerank"}
	}
	free := uint64(0)
	if devices, err := m.rt.Devices(); err == nil {
		for _, d := range devices {
			if d.Name == dev.Name {
				free = d.MemoryFree
			}
		}
	}
	meta := m.m.Metadata()
	kv := kvBytes(&mi, meta, m.spec.KVTypeK, m.spec.KVTypeV)
	m.size = choose(&m.spec, &mi, windowOf(&mi, meta), kv, memory{device: free, spare: m.spare(free)}, physicalCores("/sys"))
	if want := cmp.Or(m.spec.MaxSequences, engine.DefaultMaxSequences); m.size.sequences < want {
		m.log.Warn("the memory does not hold a context or a window for every sequence: fewer run at a time",
			"sequences", m.size.sequences, "wanted", want, "context", m.size.context, "free_bytes", free)
	}
	blas, err := m.prepareBLAS(m.size.threads)
	if err != nil {
		return err
	}
	if blas {
		m.size.fewerThanBLAS(&m.spec)
	}
	m.unifiedCells = m.size.cells
	// Streams need a whole context for every sequence, so on most cards there is nothing to choose.
	m.auto = m.async && (m.spec.KVLayout == "" || m.spec.KVLayout == "auto") && !mi.Recurrent && !mi.Hybrid &&
		m.size.sequences > 1 && m.streamsBytes(kv) < free/2
	// The first layout is the one that start-up will most likely choose: it saves making the context once more.
	if m.auto && m.size.sequences >= streamsFrom {
		m.layout(batch.LayoutStreams)
	}
	err = m.chatContext()
	if err != nil && !m.size.unified && m.auto {
		m.log.Warn("no room for a context per sequence, one pool for all is used", "err", err)
		m.auto = false
		m.layout(batch.LayoutUnified)
		err = m.chatContext()
	}
	if err != nil {
		return err
	}
	if m.size.why != "" {
		m.log.Info("cells of the layers with a sliding window", "keep", m.size.keep(), "why", m.size.why, "window", mi.SWA, "window_layers", windowLayers(&mi, meta),
			"cells", m.ctx.NCtx(), "window_cells", m.cfg.WindowCells, "kv_bytes", kv.bytes(&m.size))
	}
	if m.b, err = llama.NewBatch(m.ctx.NBatch(), 1, m.log); err != nil {
		return memoryError(err)
	}
	// Sampling runs while the device waits, so use what cores there are, within reason: a row takes 20 us.
	m.s, err = llama.NewSampler(mi.Vocab, m.ctx.NOutputsMax()*engine.MaxChoices, min(8, max(1, runtime.NumCPU()/2)), m.log)
	if err != nil {
		return memoryError(err)
	}
	return nil
}

// checkpointIDs is how many sequence ids of recurrent and hybrid models are left to kept states: without any, nothing could
// be reused. An id costs the memory of one state (megabytes), whether it is used or not.
const checkpointIDs = 8

// chatContext makes the context that m.size describes, and the scheduler's view of it.
func (m *model) chatContext() error {
	mi, z := m.m.Info(), m.size
	spare := 0
	if mi.Recurrent || mi.Hybrid {
		spare = min(checkpointIDs, batch.MaxIDs-z.sequences)
	}
	ids := z.sequences + spare
	chunk := max(z.chunk, ids) // one row of each must fit
	err := m.newContext(llama.ContextParams{
		Ctx: z.cells, Batch: chunk, UBatch: chunk, SeqMax: ids, OutputsMax: ids,
		Threads: z.threads, Flash: flash(m.spec.FlashAttention),
		TypeK: llama.KVType(m.spec.KVTypeK), TypeV: llama.KVType(m.spec.KVTypeV), KVUnified: z.unified,
		SWAFull: z.windowCells() == 0,
	})
	if err != nil {
		return err
	}
	c := m.ctx
	m.cfg = batch.Config{
		Layout: batch.LayoutUnified, Cells: c.NCtx(), Context: min(c.NCtxSeq(), z.context), Sequences: c.NSeqMax(), MaxRunning: z.sequences,
		Chunk: c.NBatch(), Outputs: c.NOutputsMax(), Recurrent: mi.Recurrent || mi.Hybrid, NoAttention: mi.Recurrent,
	}
	if z.windowCells() > 0 {
		m.cfg.Window, m.cfg.WindowCells = z.window, c.WindowCells()
	}
	switch {
	case !z.unified:
		m.cfg.Layout = batch.LayoutStreams
	case !m.cfg.Recurrent:
		m.cfg.Parking = c.MaxSeqID() - c.NSeqMax()
	}
	m.cfg.Host = m.hostBudget()
	if !m.Async() {
		m.cfg.MinPrefill, m.cfg.IdleTarget = cpuMinPrefill, cpuIdleTarget
	}
	return nil
}

// On a CPU a small chunk of prompt is hardly dearer for each token than a large one: SmolLM2 on two cores prefills 216
// tok/s in chunks of 16, 253 in chunks of 64 and 288 in chunks of 512. So chunks beside decodes may be small, which keeps
// answers flowing; behind 2500 tokens, where attention is most of the price, 16 rows alone took 70 ms and 4 fit, behind 6000 four rows took
// 60 ms and one or two fit. A step of a prompt alone may last two seconds, in which that model computes 512 tokens; it costs the wait of a cancel and of a
// new request. Bounded by one second, 860 tokens became four chunks that end in the middle of the 256 cells by which the span
// grows, and took 6 % longer than in two.
const (
	cpuMinPrefill = 1
	cpuIdleTarget = 2 * time.Second
)

// CanRelayout implements worker.Model.
func (m *model) CanRelayout() bool { return m.auto }

// streamsFrom is the number of sequences from which on streams were faster for unshared prompts on the GPU measured
// (docs/scheduling.md).
const streamsFrom = 8

// layout makes m.size describe a context of that layout.
func (m *model) layout(l batch.Layout) {
	m.size.unified = l == batch.LayoutUnified
	m.size.cells = m.unifiedCells
	if !m.size.unified {
		m.size.cells = m.size.context * m.size.sequences
	}
}

// Relayout implements worker.Model.
func (m *model) Relayout(l batch.Layout) (batch.Config, error) {
	m.aborting.Lock()
	defer m.aborting.Unlock()
	if m.ctx != nil { // nil: the last change failed
		if err := m.ctx.Close(); err != nil {
			return batch.Config{}, err
		}
	}
	m.ctx, m.rows = nil, llama.Rows{}
	m.layout(l)
	if err := m.chatContext(); err != nil {
		return batch.Config{}, err
	}
	if len(m.lora) > 0 {
		if err := m.ctx.SetAdapters(m.lora, m.scales); err != nil {
			return batch.Config{}, err
		}
	}
	return m.cfg, nil
}

// initEmbedding makes a context whose one step can hold a longest text, or many short ones.
func (m *model) initEmbedding(mi llama.ModelInfo) error {
	limit := cmp.Or(m.spec.Context, min(cmp.Or(mi.CtxTrain, 512), engine.DefaultContext))
	tokens := llama.PadCells(max(limit, cmp.Or(m.spec.Chunk, 2048)))
	seqs := cmp.Or(m.spec.MaxSequences, 64)
	cores := m.spec.Threads
	if cores == 0 {
		cores = physicalCores("/sys")
	}
	pool, err := pooling(m.spec.Pooling)
	if err != nil {
		return err
	}
	if m.spec.Mode == "rerank" {
		pool = llama.PoolingRank
	} else if pool == llama.PoolingModel && !mi.Embeddings {
		pool = llama.PoolingMean // a chat model asked for embeddings
	}
	if _, err := m.prepareBLAS(cores); err != nil {
		return err
	}
	return m.newContext(llama.ContextParams{
		Ctx: tokens, Batch: tokens, UBatch: tokens, SeqMax: seqs, Threads: cores,
		Flash: flash(m.spec.FlashAttention), KVUnified: true, SWAFull: true, Embeddings: true, Pooling: pool,
	})
}

func (m *model) newContext(p llama.ContextParams) error {
	c, err := m.m.NewContext(p)
	switch {
	case errors.Is(err, llama.ErrRange):
		return &engine.Error{Kind: engine.KindInvalid, Message: "the context's settings do not fit the model", Cause: err}
	case err != nil:
		return &engine.Error{Kind: engine.KindUnavailable, Message: "there is not enough memory for the model's context", Hint: "a smaller context needs less", Cause: err}
	}
	m.ctx = c
	if p.Embeddings {
		if m.b, err = llama.NewBatch(c.NBatch(), 1, m.log); err != nil {
			return memoryError(err)
		}
	}
	return nil
}

func memoryError(err error) error {
	return &engine.Error{Kind: engine.KindUnavailable, Message: "there is not enough memory", Cause: err}
}

func flash(v string) llama.FlashAttn {
	return map[string]llama.FlashAttn{"on": llama.FlashOn, "off": llama.FlashOff}[v] // "" and "auto": FlashAuto
}

func pooling(v string) (llama.Pooling, error) {
	p, ok := map[string]llama.Pooling{
		"": llama.PoolingModel, "none": llama.PoolingNone, "mean": llama.PoolingMean, "cls": llama.PoolingCLS,
		"last": llama.PoolingLast, "rank": llama.PoolingRank,
	}[v]
	switch {
	case !ok:
		return 0, engine.Invalid("pooling", fmt.Sprintf("is %q, which is none of llama.cpp's", v))
	case p == llama.PoolingNone:
		return 0, &engine.Error{Kind: engine.KindUnsupported, Field: "pooling", Message: "one vector per token (pooling none) is not supported"}
	}
	return p, nil
}

// adapters loads the LoRA files and puts them in force.
func (m *model) adapters() error {
	for _, l := range m.spec.LoRA {
		a, err := m.m.LoadAdapter(l.Path)
		if err != nil {
			return &engine.Error{Kind: engine.KindInvalid, Field: "lora", Message: "the LoRA adapter cannot be loaded", Cause: err}
		}
		m.lora = append(m.lora, a)
		m.scales = append(m.scales, l.Scale)
	}
	if len(m.lora) == 0 {
		return nil
	}
	if err := m.ctx.SetAdapters(m.lora, m.scales); err != nil {
		return &engine.Error{Kind: engine.KindInvalid, Field: "lora", Message: "the LoRA adapters do not fit the model", Cause: err}
	}
	return nil
}

// describe fills in Info.
func (m *model) describe(mi llama.ModelInfo, dev llama.Device) {
	version, _ := llama.Version()
	template, _ := m.m.ChatTemplate("")
	layout := "unified"
	if m.cfg.Layout == batch.LayoutStreams {
		layout = "streams"
	}
	text := func(t llama.Token) string {
		if t < 0 {
			return ""
		}
		return string(m.m.SpecialPiece(t))
	}
	m.info = engine.Info{
		Name: m.spec.Name, Architecture: m.m.Metadata()["general.architecture"], Description: mi.Description, Path: m.spec.Path,
		SizeBytes: mi.Size, Params: mi.Params, VocabSize: mi.Vocab, EmbeddingLen: mi.EmbdOut, ContextTrain: mi.CtxTrain,
		Context: m.cfg.Context, Cells: m.ctx.NCtx(), MaxSequences: cmp.Or(m.cfg.MaxRunning, m.ctx.NSeqMax()), ChatTemplate: template,
		BOS: text(mi.BOS), EOS: text(mi.EOS), AddsBOS: mi.AddBOS,
		Embedding: m.spec.Mode == "embedding", Rerank: m.spec.Mode == "rerank",
		Recurrent: mi.Recurrent, Hybrid: mi.Hybrid, SlidingWindow: mi.SWA,
		Backend: m.spec.Backend, KVLayout: layout, LlamaVersion: version,
		Device: engine.Device{
			Name: dev.Name, Description: dev.Description, PCI: dev.PCI, MemoryFree: dev.MemoryFree, MemoryTotal: dev.MemoryTotal,
		},
	}
	if m.info.Context == 0 { // embeddings have no scheduler
		m.info.Context = m.ctx.NBatch()
	}
}

// Close frees everything in the order that the handles demand.
func (m *model) Close() {
	m.forgetAll()
	closeAll := []interface{ Close() error }{}
	if m.s != nil {
		closeAll = append(closeAll, m.s)
	}
	if m.ctx != nil {
		closeAll = append(closeAll, m.ctx)
	}
	if m.b != nil {
		closeAll = append(closeAll, m.b)
	}
	for _, a := range m.lora {
		closeAll = append(closeAll, a)
	}
	closeAll = append(closeAll, m.m, m.rt)
	for _, c := range closeAll {
		if err := c.Close(); err != nil {
			m.log.Warn("close the model", "err", err)
		}
	}
}

// Info implements worker.Model.
func (m *model) Info() engine.Info { return m.info }

// Config implements worker.Model.
func (m *model) Config() batch.Config { return m.cfg }

// Abort implements worker.Model.
func (m *model) Abort() {
	m.aborting.Lock()
	defer m.aborting.Unlock()
	if m.ctx != nil {
		m.ctx.Abort()
	}
}

// Tokenize implements worker.Vocabulary.
func (m *model) Tokenize(text string, addSpecial, parseSpecial bool) ([]engine.Token, error) {
	return m.m.Tokenize(text, addSpecial, parseSpecial)
}

// Piece implements worker.Vocabulary.
func (m *model) Piece(t engine.Token) []byte { return m.m.Piece(t) }

// SpecialPiece implements worker.Vocabulary.
func (m *model) SpecialPiece(t engine.Token) []byte { return m.m.SpecialPiece(t) }

// IsEOG implements worker.Vocabulary.
func (m *model) IsEOG(t engine.Token) bool { return m.m.IsEOG(t) }

// BOS implements worker.Vocabulary.
func (m *model) BOS() engine.Token { return m.m.Info().BOS }

// EOS implements worker.Vocabulary.
func (m *model) EOS() engine.Token { return m.m.Info().EOS }

// SEP implements worker.Vocabulary.
func (m *model) SEP() engine.Token { return m.m.Info().SEP }

var _ worker.Model = (*model)(nil)
