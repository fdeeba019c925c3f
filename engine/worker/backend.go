package worker

import (
	"context"

	"hearth/engine"
	"hearth/engine/batch"
)

// Opener loads a model as spec says; cmd/hearth-engine gives the service a native one. progress may be called from any
// goroutine with a stage and a fraction of that stage. Errors are *engine.Error where the caller can do something.
type Opener interface {
	Open(ctx context.Context, spec engine.LoadSpec, progress func(stage string, fraction float64)) (Model, error)
}

// Vocabulary is the part of a model that any goroutine may use at any time.
type Vocabulary interface {
	// Tokenize adds BOS and EOS with addSpecial, as the model wants them, and reads spelled-out special tokens with
	// parseSpecial.
	Tokenize(text string, addSpecial, parseSpecial bool) ([]engine.Token, error)
	// Piece is the bytes of a token, none for control tokens; SpecialPiece spells those out.
	Piece(t engine.Token) []byte
	SpecialPiece(t engine.Token) []byte
	// IsEOG says whether the token ends generation. BOS and SEP return -1 when the vocabulary has none.
	IsEOG(t engine.Token) bool
	BOS() engine.Token
	EOS() engine.Token
	SEP() engine.Token
}

// Model is a loaded model with its context. Apart from Vocabulary, Info, NewRow and Abort its methods belong to the
// loop's goroutine.
type Model interface {
	Vocabulary
	Info() engine.Info
	// Config is what the scheduler must know about the context.
	Config() batch.Config
	// CanRelayout says whether Relayout may be used: the load order leaves the layout open and both fit the memory.
	CanRelayout() bool
	// Relayout replaces the context by an empty one with another layout and returns its Config. After an error there is
	// no usable context.
	Relayout(l batch.Layout) (batch.Config, error)
	// NewRow makes the sampler of one choice; any goroutine. Its errors name a request field.
	NewRow(p RowParams) (Row, error)
	// Abort makes a running Decode return early where the backend can; any goroutine.
	Abort()
	Close()

	Memory
	Decoder
	Embedder
}

// Memory is the context's KV memory. P1 -1 means the end of the sequence.
type Memory interface {
	Remove(seq, p0, p1 int32) error
	Copy(src, dst, p0, p1 int32) error
	Clear() error
	// PosMin and PosMax are -1 for an empty sequence.
	PosMin(seq int32) int32
	PosMax(seq int32) int32

	// Save copies what a sequence holds, SaveSize bytes, into a slot of host memory; after an error the slot is empty. Load brings
	// cells from..to-1, as the saved state lists them, to a sequence, which is empty, and leaves the slot as it is. Forget frees the slot.
	Save(seq, slot int32) error
	Load(slot, seq, from, to int32) error
	Forget(slot int32)
	SaveSize(seq int32) (int, error)
}

// Decoder computes. Decode may return before the device is done; Sync waits for it.
type Decoder interface {
	Decode(rows []batch.Row) (batch.Code, error)
	Sync() (batch.Code, error)
	// Async says whether Decode really returns early, so that work placed before Sync is free.
	Async() bool
	// Logits is output row k of the last decode, valid until the next one.
	Logits(k int) []float32
	// Sample draws one token for every pick, rows in parallel. A pick that fails says so by its Row's Err; the error
	// returned is about all of them.
	Sample(picks []Pick) error
	// GraphsReused counts evaluations that reused the graph of the one before.
	GraphsReused() uint64
}

// Embedder computes embeddings of whole texts; only on models loaded for it.
type Embedder interface {
	// Embed runs texts together, each on a sequence of its own, and calls each for every result in order; the slice it
	// gets is lent. The sum of their lengths is at most EmbedLimits' tokens, their number at most its texts.
	Embed(texts [][]engine.Token, each func(i int, v []float32)) error
	EmbedLimits() (tokens, texts int)
}

// Pick asks for one token: from output row Output, by the settings of Row.
type Pick struct {
	Output int
	Row    Row
}

// RowParams are the settings of one choice's sampler.
type RowParams struct {
	Sampling *engine.Sampling
	// Seed is this choice's own; draw number n depends on it and n alone.
	Seed uint64
	// Logprobs: -1 none, 0 the chosen token's, n also the n most likely ones.
	Logprobs  int
	IgnoreEOS bool
}

// Row is the sampler state of one choice: settings, penalty window, draw counter, grammar. One goroutine at a time.
type Row interface {
	// AcceptPrompt shows tokens that were not sampled: the prompt's tail, for the penalties.
	AcceptPrompt(tokens []engine.Token)
	// Resume shows tokens that an earlier run sampled: they count for everything, and the next draw is number len(tokens).
	Resume(tokens []engine.Token) error
	// Accept shows the token that Sample drew, once it is kept.
	Accept(t engine.Token)
	// Token, Logprob and Top are the last draw. Top is most likely first and valid until the next draw.
	Token() engine.Token
	Logprob() float32
	Top() (tokens []engine.Token, logprobs []float32)
	// Err is why the last draw of this row failed; nil usually.
	Err() error
	Close()
}
