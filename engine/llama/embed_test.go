package llama_test

import (
	"errors"
	"math"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

func bertBatch(t *testing.T, b *llama.Batch, seq llama.SeqID, words ...int) {
	t.Helper()
	add(t, b, toygguf.BertCLS, 0, seq, true)
	for i, w := range words {
		add(t, b, llama.Token(toygguf.BertWord0+w), llama.Pos(i+1), seq, true)
	}
	add(t, b, toygguf.BertSEP, llama.Pos(len(words)+1), seq, true)
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return ab / math.Sqrt(aa*bb)
}

func TestEmbeddingsPackSequences(t *testing.T) {
	m := toy(t, toygguf.Spec{Kind: toygguf.Bert})
	c := newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 128, UBatch: 128, SeqMax: 4, Embeddings: true})
	if c.HasMemory() || c.Pooling() != llama.PoolingMean {
		t.Fatalf("memory %v, pooling %v", c.HasMemory(), c.Pooling())
	}
	b := newBatch(t, 128, 1)
	bertBatch(t, b, 0, 1, 2, 3)
	if _, err := c.Step(b); err != nil {
		t.Fatal(err)
	}
	e, err := c.EmbeddingSeq(0)
	if err != nil || len(e) != m.Info().EmbdOut {
		t.Fatalf("%d values, %v", len(e), err)
	}
	alone := append([]float32(nil), e...)
	b.Reset()
	bertBatch(t, b, 0, 9, 8, 7, 6)
	bertBatch(t, b, 2, 1, 2, 3)
	if _, err := c.Step(b); err != nil {
		t.Fatal(err)
	}
	packed, err := c.EmbeddingSeq(2)
	if err != nil {
		t.Fatal(err)
	}
	if cos := cosine(alone, packed); cos < 0.9999 {
		t.Errorf("packing changes the embedding: cosine %g", cos)
	}
	other, err := c.EmbeddingSeq(0)
	if err != nil || cosine(other, packed) > 0.9999 {
		t.Errorf("two texts, one embedding (%v)", err)
	}
	if _, err := c.EmbeddingSeq(1); !errors.Is(err, llama.ErrRange) {
		t.Errorf("a sequence that was not in the batch: %v", err)
	}
	if _, err := c.EmbeddingAt(0); !errors.Is(err, llama.ErrUnsupported) {
		t.Errorf("token embedding with pooling: %v", err)
	}
	if err := c.SeqRm(0, -1, -1); !errors.Is(err, llama.ErrUnsupported) {
		t.Errorf("memory call without memory: %v", err)
	}
}

func TestRerankScore(t *testing.T) {
	m := toy(t, toygguf.Spec{Kind: toygguf.Bert, Pooling: toygguf.PoolingRank})
	if i := m.Info(); i.Pooling != llama.PoolingRank || i.ClsOut != 1 {
		t.Fatalf("%+v", i)
	}
	c := newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 128, UBatch: 128, SeqMax: 2, Embeddings: true})
	b := newBatch(t, 128, 1)
	bertBatch(t, b, 0, 1, 2)
	bertBatch(t, b, 1, 3, 4)
	if _, err := c.Step(b); err != nil {
		t.Fatal(err)
	}
	one, err := c.EmbeddingSeq(0)
	if err != nil || len(one) != 1 {
		t.Fatalf("%v, %v", one, err)
	}
	two, err := c.EmbeddingSeq(1)
	if err != nil || one[0] == two[0] {
		t.Errorf("scores %v and %v, %v", one, two, err)
	}
}

func TestTokenEmbeddings(t *testing.T) {
	m := dense(t)
	c := newContext(t, m, llama.ContextParams{Ctx: 256, Batch: 64, UBatch: 64, Embeddings: true, Pooling: llama.PoolingNone})
	b := newBatch(t, 64, 1)
	for i, tok := range prompt(5, 1) {
		add(t, b, tok, llama.Pos(i), 0, false)
	}
	if _, err := c.Step(b); err != nil {
		t.Fatal(err)
	}
	if e, err := c.EmbeddingAt(4); err != nil || len(e) != 128 {
		t.Errorf("%d values, %v", len(e), err)
	}
	if _, err := c.EmbeddingAt(5); !errors.Is(err, llama.ErrRange) {
		t.Errorf("entry past the batch: %v", err)
	}
}
