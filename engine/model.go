package engine

import (
	"context"
	"time"
)

// Model is one loaded model, as its clients see it. Methods may be called from any goroutine.
type Model interface {
	Info() Info
	// Generate queues the request. Errors known before the first token (prompt too long, queue full, grammar that does
	// not parse) come from here or from the first Next; both are *Error.
	Generate(ctx context.Context, req Request) (Stream, error)
	Tokenize(ctx context.Context, p Prompt) ([]Token, error)
	// Detokenize returns the bytes of the tokens, special tokens spelled out.
	Detokenize(ctx context.Context, tokens []Token) ([]byte, error)
	// Embed returns one vector per input, in order. Only for models loaded for embeddings (Info.Embedding).
	Embed(ctx context.Context, req EmbedRequest) (EmbedResult, error)
	// Stats is the newest state the worker reported; it never blocks.
	Stats() Stats
}

// EmbedRequest asks for embeddings of the inputs, or with Rerank for one score per input (the pairs of query and
// document that a rerank model wants are built by the worker from Query).
type EmbedRequest struct {
	Inputs    []Prompt
	Normalize bool
	Rerank    bool
	Query     string
	Tenant    string
}

// EmbedResult has len(Inputs) rows; for rerank each row has one value, the score.
type EmbedResult struct {
	Vectors      [][]float32
	PromptTokens []int
}

// Info describes a loaded model. It does not change while the model is loaded.
type Info struct {
	Name         string
	Architecture string
	Description  string // llama.cpp's one-line description, such as "llama 134.52M Q4_1"
	Path         string
	SizeBytes    uint64
	Params       uint64
	VocabSize    int
	EmbeddingLen int
	// ContextTrain is what the model was trained for, Context what one sequence may use here, Cells the KV pool of all.
	ContextTrain, Context, Cells int
	// WindowCells is the size of the layers' cache that have a sliding window, in cells, of the pool or of one sequence in streams, at
	// the start; 0: they keep all cells, or there are none.
	WindowCells  int
	MaxSequences int
	ChatTemplate string
	BOS, EOS     string // pieces, empty when the vocabulary has none
	AddsBOS      bool
	// Embedding and Rerank say what the context was created for; a chat model has neither.
	Embedding, Rerank bool
	Recurrent, Hybrid bool
	SlidingWindow     int // tokens; 0: none

	Backend      string // "hip", "vulkan", "cpu"
	Device       Device
	KVLayout     string // "unified" or "streams", at the start
	LlamaVersion string
	LoadTime     time.Duration
	// Features lists worker features and whether the self-test at start left them on.
	Features []Feature
}

// Device is where the model's layers sit, as the backend reports it after load.
type Device struct {
	Name        string // "ROCm0", "Vulkan0", "CPU"
	Description string
	PCI         string // lower case "0000:03:00.0"; empty when the backend does not say
	MemoryFree  uint64
	MemoryTotal uint64
}

// Feature is one worker feature; Reason says why it is off.
type Feature struct {
	Name   string
	On     bool
	Reason string
}

// Stats is a worker's state after a step. Counters only grow while the worker lives.
type Stats struct {
	Running, Waiting       int
	CellsUsed, CellsTotal  int // used includes cached prefixes
	CellsCached            int // cells that only the prefix cache holds
	Steps                  uint64
	PromptTokens           uint64 // computed, not cached ones
	CachedTokens           uint64
	CompletionTokens       uint64
	Preemptions, Evictions uint64
	// Mismatches counts steps for which llama.cpp found no cells although the accounting had some: bugs, survived.
	Mismatches   uint64
	GraphsReused uint64
	LastStep     time.Duration
	DecodeRows   int // rows of the last step
	PrefillRows  int
	// HostPrefixes are cached prefixes that were moved to host memory, of HostTokens tokens and HostBytes bytes; HostLimit is the
	// budget. HostSaves and HostLoads count moves to there and back.
	HostPrefixes, HostTokens int
	HostBytes, HostLimit     int64
	HostSaves, HostLoads     uint64
	// KVLayout is the layout of the KV cache now: "unified" or "streams"; with kv_layout auto it follows the load. Empty before the
	// first step.
	KVLayout string
}
