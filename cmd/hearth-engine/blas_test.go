package main

import (
	"math"
	"testing"

	"hearth/engine"
	"hearth/engine/bundle"
	"hearth/internal/toygguf"
)

// TestBLASAnswersAlike: a prompt that goes through BLAS, comes to the same
// distribution as without it, but for rounding.
func TestBLASAnswersAlike(t *testing.T) {
	if len(testBundle(t).PluginsOf(bundle.KindBLAS)) == 0 {
		t.Skip("the bundle has no BLAS plugin")
	}
	path := toy(t, toygguf.Spec{Kind: toygguf.Llama, Embd: 256, LogitScale: 1})
	var first [2]engine.TokenLogprob
	var usage [2]engine.Usage
	for i, v := range []string{"off", "on"} {
		m, p := load(t, engine.LoadSpec{Path: path, Context: 1024, MaxSequences: 4, Chunk: 128, FlashAttention: "off", CPUBLAS: v})
		r := engine.Request{Prompt: words(300, 1)}
		r.MaxTokens, r.Logprobs, r.TopLogprobs = 8, true, 4
		a := mustAsk(t, m, r)
		if len(a.lps) != 8 {
			t.Fatalf("cpu_blas %s: %d log-probabilities", v, len(a.lps))
		}
		first[i], usage[i] = a.lps[0], a.usage
		if st := p.Status()[0]; st.Restarts != 0 {
			t.Errorf("cpu_blas %s: %d restarts", v, st.Restarts)
		}
	}
	if usage[0].PromptTokens != usage[1].PromptTokens || math.Abs(float64(first[0].Logprob-first[1].Logprob)) > 0.05 {
		t.Errorf("without %+v, with BLAS %+v", first[0], first[1])
	}
	t.Logf("without %+v, with BLAS %+v", first[0], first[1])
}

// TestBLASIsMeasured: in the default setting a worker loads, whatever the measurement says on a toy.
func TestBLASIsMeasured(t *testing.T) {
	for _, kind := range []toygguf.Spec{{Kind: toygguf.Llama}, {Kind: toygguf.Mamba}, {Kind: toygguf.Bert}} {
		spec := engine.LoadSpec{Path: toy(t, kind), CPUBLAS: "auto"}
		if kind.Kind == toygguf.Bert {
			spec.Mode = "embedding"
		}
		if m, _ := load(t, spec); m.Info().Backend != "cpu" {
			t.Errorf("info %+v", m.Info())
		}
	}
}
