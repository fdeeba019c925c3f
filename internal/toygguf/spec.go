package toygguf

import (
	"errors"
	"fmt"
)

// Kind names the architecture a toy imitates.
type Kind string

// The kinds differ in what their KV cache can do, which is why tests want them all.
const (
	Llama  Kind = "llama"  // dense attention; every prefix can be shared and cut
	Gemma3 Kind = "gemma3" // sliding window on 5 of 6 layers (iSWA)
	Jamba  Kind = "jamba"  // hybrid: Mamba on even layers, attention on odd ones
	Mamba  Kind = "mamba"  // recurrent only: one state per sequence
	Bert   Kind = "bert"   // encoder for embeddings; no KV cache
)

// Pooling kinds of llama.cpp as stored in "<arch>.pooling_type".
const (
	PoolingMean = 1
	PoolingCLS  = 2
	PoolingRank = 4 // adds a classification head of one output
)

// ErrSpec is wrapped by every error about an impossible Spec.
var ErrSpec = errors.New("toygguf: impossible spec")

// Spec describes one toy. The zero value of every field but Kind selects the
// default given beside it; widths are in elements.
type Spec struct {
	Kind Kind

	Vocab   int // tokens; default 1024, at least MinVocab
	Embd    int // residual width; default 128
	Layers  int // default 4; 12 for Gemma3 so that it has two full-attention layers
	Heads   int // attention heads; default 4; Embd must be a multiple
	HeadsKV int // key/value heads; default 2 (Bert: always Heads)
	FF      int // feed-forward width; default 2*Embd
	Context int // training context in tokens; default 131072 (Bert: 512)
	SWA     int // sliding window in tokens, Gemma3 only; default 512

	Pooling int // Bert only; default PoolingMean

	Seed         uint64 // of the weights; default 1
	Name         string // general.name; default "toy-<kind>"
	ChatTemplate string // default a three-role template over the control tokens; "-" leaves it out

	// LogitScale multiplies the output matrix, to make greedy choices clear
	// (large) or the distribution flat (small). 0 means 1.
	LogitScale float32

	// Extra string metadata, written after the toy's own keys.
	Extra map[string]string
}

// withDefaults fills the zero fields and checks what remains.
func (s Spec) withDefaults() (Spec, error) {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	layers, ctx := 4, 131072
	switch s.Kind {
	case Llama, Jamba, Mamba:
	case Gemma3:
		layers = 12
		def(&s.SWA, 512)
	case Bert:
		ctx = 512
		def(&s.Pooling, PoolingMean)
	default:
		return s, fmt.Errorf("%w: kind %q", ErrSpec, s.Kind)
	}
	def(&s.Vocab, 1024)
	def(&s.Embd, 128)
	def(&s.Layers, layers)
	def(&s.Heads, 4)
	def(&s.HeadsKV, 2)
	def(&s.FF, 2*s.Embd)
	def(&s.Context, ctx)
	if s.Kind == Bert {
		s.HeadsKV = s.Heads
	}
	if s.Seed == 0 {
		s.Seed = 1
	}
	if s.Name == "" {
		s.Name = "toy-" + string(s.Kind)
	}
	if s.ChatTemplate == "" {
		s.ChatTemplate = defaultTemplate
	}
	if s.LogitScale == 0 {
		s.LogitScale = 1
	}
	return s, s.check()
}

func (s Spec) check() error {
	switch {
	case s.Vocab < MinVocab || s.Vocab > maxVocab:
		return fmt.Errorf("%w: vocab %d, want %d..%d", ErrSpec, s.Vocab, MinVocab, maxVocab)
	case s.Embd < 0 || s.Layers < 0 || s.Heads < 0 || s.HeadsKV < 0 || s.FF < 0 || s.Context < 0 || s.SWA < 0:
		return fmt.Errorf("%w: negative size", ErrSpec)
	case s.Embd%s.Heads != 0 || s.Embd/s.Heads%2 != 0:
		return fmt.Errorf("%w: embd %d over %d heads", ErrSpec, s.Embd, s.Heads)
	case s.Heads%s.HeadsKV != 0:
		return fmt.Errorf("%w: %d heads over %d kv heads", ErrSpec, s.Heads, s.HeadsKV)
	}
	return nil
}
