package gguf

import (
	"strings"

	ggufparser "github.com/gpustack/gguf-parser-go"
)

// Kind is what a model is for.
type Kind string

// Kinds of model file. Only the first three can be served.
const (
	KindChat      Kind = "chat" // generates text; Summary.ChatTemplate says whether it was made for chat
	KindEmbedding Kind = "embedding"
	KindRerank    Kind = "rerank"
	KindProjector Kind = "projector" // vision or audio encoder beside a chat model
	KindAdapter   Kind = "adapter"   // LoRA
	KindOther     Kind = "other"     // diffusion, importance matrix, ...
)

// Summary is what people and the scheduler want to know about a model before it is loaded.
type Summary struct {
	Kind         Kind   `json:"kind"`
	Architecture string `json:"architecture"`
	Title        string `json:"title,omitempty"`   // general.name
	License      string `json:"license,omitempty"` // as the file states it
	// Parameters is the number of weights; Quantization the type of most of them, such as "Q4_K_M".
	Parameters    uint64  `json:"parameters"`
	Quantization  string  `json:"quantization"`
	BitsPerWeight float64 `json:"bits_per_weight"`
	// ContextLength is what the model was trained for, tokens.
	ContextLength   uint64 `json:"context_length"`
	Layers          uint64 `json:"layers"`
	EmbeddingLength uint64 `json:"embedding_length"`
	Heads           uint64 `json:"heads"`
	HeadsKV         uint64 `json:"heads_kv"`
	// KVBytesPerToken is what one more token of context costs with an f16 KV cache, once sliding windows are full.
	KVBytesPerToken uint64 `json:"kv_bytes_per_token"`
	SlidingWindow   uint64 `json:"sliding_window,omitempty"` // tokens; 0: none
	VocabularySize  uint64 `json:"vocabulary_size"`
	Experts         uint32 `json:"experts,omitempty"`
	ExpertsUsed     uint32 `json:"experts_used,omitempty"`
	ChatTemplate    bool   `json:"chat_template"`
	Recurrent       bool   `json:"recurrent,omitempty"` // keeps a state instead of, or (Hybrid) beside, a KV cache
	Hybrid          bool   `json:"hybrid,omitempty"`
}

// Summarize reads the summary out of the header.
func (f *File) Summarize() (Summary, error) {
	var s Summary
	err := f.Guard(func() { s = f.summarize() })
	return s, err
}

func (f *File) summarize() Summary {
	g := f.parsed
	m, a := g.Metadata(), g.Architecture()
	s := Summary{
		Architecture: m.Architecture, Title: m.Name, License: m.License,
		Parameters: uint64(m.Parameters), Quantization: f.quantization(m), BitsPerWeight: float64(m.BitsPerWeight),
		ContextLength: a.MaximumContextLength, Layers: uint64(a.BlockCount), EmbeddingLength: uint64(a.EmbeddingLength),
		Heads: uint64(a.AttentionHeadCount), HeadsKV: uint64(a.AttentionHeadCountKV),
		SlidingWindow: uint64(a.AttentionSlidingWindow), VocabularySize: a.VocabularyLength,
		Experts: a.ExpertCount, ExpertsUsed: a.ExpertUsedCount,
		Recurrent: a.AttentionRecurrent, Hybrid: a.AttentionHybrid,
	}
	if s.VocabularySize == 0 {
		s.VocabularySize = g.Tokenizer().TokensLength
	}
	if t, ok := g.Header.MetadataKV.Get("tokenizer.chat_template"); ok && t.ValueType == ggufparser.GGUFMetadataValueTypeString {
		s.ChatTemplate = t.ValueString() != ""
	}
	s.Kind = f.kind(m.Type, m.Architecture)
	if s.Kind == KindChat {
		s.KVBytesPerToken = f.kvPerToken()
	}
	return s
}

// kind asks the parser's estimate, which mirrors llama.cpp's own tests for embedding and rerank models.
func (f *File) kind(typ, arch string) Kind {
	switch {
	case typ == "projector":
		return KindProjector
	case typ == "adapter":
		return KindAdapter
	case typ != "model", arch == "diffusion":
		return KindOther
	}
	e := f.parsed.EstimateLLaMACppRun(ggufparser.WithLLaMACppContextSize(512))
	switch {
	case e.Reranking:
		return KindRerank
	case e.EmbeddingOnly:
		return KindEmbedding
	}
	return KindChat
}

// kvPerToken is the growth of the f16 KV cache between two contexts beyond any usual sliding window.
func (f *File) kvPerToken() uint64 {
	const low, step = 1 << 17, 1 << 14
	return (f.kv(low+step) - f.kv(low)) / step
}

func (f *File) kv(context int32) uint64 {
	e := f.parsed.EstimateLLaMACppRun(ggufparser.WithLLaMACppContextSize(context), ggufparser.WithFlashAttention())
	var sum uint64
	for _, d := range e.Devices {
		sum += uint64(d.KVCache.Sum())
	}
	return sum
}

// quantization spells general.file_type as people know it: "Q4_K_M". The parser's own description, which looks at the
// tensors, stands in when the file does not say.
func (f *File) quantization(m ggufparser.GGUFMetadata) string {
	if v, ok := f.parsed.Header.MetadataKV.Get("general.file_type"); ok && v.ValueType.IsNumeric() {
		name := ggufparser.GGUFFileType(ggufparser.ValueNumeric[uint32](v)).String()
		if q, known := strings.CutPrefix(name, "MOSTLY_"); known {
			return q
		}
	}
	return m.FileTypeDescriptor
}
