package llama_test

import (
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

// One crossing of the language border with its guards.
func BenchmarkPosMax(b *testing.B) {
	c := newContext(b, dense(b), llama.ContextParams{Ctx: 256})
	for b.Loop() {
		c.PosMax(0)
	}
}

// Filling a decode batch of 64 sequences: no call into C.
func BenchmarkBatchFill64(b *testing.B) {
	batch := newBatch(b, 64, 1)
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		for i := range 64 {
			if _, err := batch.Add(300, 10, llama.SeqID(i), true); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// Refusing a batch of 64 on its last entry is what the guards cost a step.
func BenchmarkGuards64(b *testing.B) {
	c := newContext(b, dense(b), llama.ContextParams{Ctx: 1024, Batch: 64, SeqMax: 64, KVUnified: true})
	batch := newBatch(b, 64, 1)
	for i := range 64 {
		tok := llama.Token(300)
		if i == 63 {
			tok = -1
		}
		if _, err := batch.Add(tok, 0, llama.SeqID(i), true); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := c.Step(batch); err == nil {
			b.Fatal("accepted")
		}
	}
}

// A step of one token on the smallest toy: nearly all of it is llama.cpp's own fixed cost.
func BenchmarkStepToy(b *testing.B) {
	m := toy(b, toygguf.Spec{Kind: toygguf.Llama, Layers: 1, Embd: 64})
	for _, n := range []int{1, 16} {
		b.Run(map[int]string{1: "seqs1", 16: "seqs16"}[n], func(b *testing.B) {
			c := newContext(b, m, llama.ContextParams{Ctx: 4096, Batch: 16, SeqMax: 16, KVUnified: true})
			batch := newBatch(b, 16, 1)
			pos := llama.Pos(0)
			b.ReportAllocs()
			for b.Loop() {
				if pos == 200 {
					if err := c.Clear(false); err != nil {
						b.Fatal(err)
					}
					pos = 0
				}
				batch.Reset()
				for s := range n {
					if _, err := batch.Add(300, pos, llama.SeqID(s), true); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := c.Step(batch); err != nil {
					b.Fatal(err)
				}
				pos++
			}
		})
	}
}
