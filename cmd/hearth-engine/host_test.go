package main

import (
	"os"
	"strings"
	"testing"

	"hearth/engine"
	"hearth/internal/toygguf"
)

// TestHostMemoryChangesNoAnswer lets conversations take turns that together do not fit the pool: with host memory they come back
// from there, and say the same.
func TestHostMemoryChangesNoAnswer(t *testing.T) {
	for _, flash := range []string{"off", "on"} {
		t.Run("flash attention "+flash, func(t *testing.T) {
			hostMemoryChangesNoAnswer(t, 6, 3, engine.LoadSpec{FlashAttention: flash})
		})
	}
	t.Run("vulkan", func(t *testing.T) {
		icd := os.Getenv("HEARTH_TEST_VK_DRIVER_FILES")
		if _, err := os.Stat(icd); err != nil {
			t.Skip("no Vulkan driver for tests")
		}
		hostMemoryChangesNoAnswer(t, 4, 2, engine.LoadSpec{Backend: "vulkan", GPULayers: -1, FlashAttention: "on", KVLayout: "unified"},
			"VK_DRIVER_FILES="+icd, "GGML_VK_VISIBLE_DEVICES=0")
	})
}

// hostMemoryChangesNoAnswer is so many conversations in so many rounds.
func hostMemoryChangesNoAnswer(t *testing.T, talks, rounds int, spec engine.LoadSpec, env ...string) {
	t.Helper()
	spec.Path = toy(t, toygguf.Spec{Kind: toygguf.Llama, LogitScale: 8, Layers: 4, Embd: 128})
	spec.Context, spec.Cells, spec.MaxSequences = 1024, 1024, 8
	run := func(host int64) (answers []answer, cached int, stats engine.Stats) {
		spec.HostCache = host
		m, p := load(t, spec, env...)
		for _, f := range m.Info().Features {
			if strings.HasPrefix(f.Reason, "not checked") { // a software driver on a busy machine
				t.Skip(f.Reason)
			}
		}
		for round := range rounds {
			cached = 0
			for i := range talks {
				r := greedy(words(300+40*round, i), 24)
				r.Logprobs, r.TopLogprobs = true, 2
				a := mustAsk(t, m, r)
				answers = append(answers, a)
				cached += a.usage.CachedTokens
			}
		}
		for _, f := range m.Info().Features {
			if f.Name == "host tier" && !f.On {
				t.Errorf("it is off: %s", f.Reason)
			}
		}
		return answers, cached, p.Status()[0].Stats
	}
	want, _, none := run(0)
	got, cached, stats := run(64 << 20)
	for i := range want {
		n := same(got[i].tokens[0], want[i].tokens[0])
		if n == len(want[i].tokens[0]) {
			continue
		}
		// Cells in other places change the order of sums, so two tokens that are equally likely may change places.
		if a, b := want[i].lps[n].Top, got[i].lps[n].Top; a[0].Logprob-a[1].Logprob > 0.05 || b[0].Token != a[1].Token {
			t.Errorf("answer %d differs from token %d on: %v, %v", i, n, a, b)
		}
	}
	if none.HostSaves > 0 || stats.HostLoads < uint64(talks) || cached < talks*300 || stats.HostLimit != 64<<20 || stats.HostBytes > stats.HostLimit {
		t.Errorf("%d tokens were cached in the last round; without %+v, with %+v", cached, none, stats)
	}
}

// Models whose memory cannot move say nothing of it and work all the same.
func TestHostMemoryIsForPureAttention(t *testing.T) {
	for name, spec := range kinds() {
		t.Run(name, func(t *testing.T) {
			m, p := load(t, engine.LoadSpec{Path: toy(t, spec), Context: 512, MaxSequences: 4, HostCache: 64 << 20})
			mustAsk(t, m, greedy(words(100, 1), 8))
			if got := p.Status()[0].Stats.HostLimit > 0; got != (name == "dense") {
				t.Errorf("host memory: %v", got)
			}
		})
	}
}
