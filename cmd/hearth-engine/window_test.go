package main

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/internal/toygguf"
	"hearth/models/fit"
	"hearth/models/gguf"
)

// windowLayouts are the layouts of the KV cache, and the window cells that 4 sequences with windows of 64 tokens and chunks of 64 have.
func windowLayouts() map[string]int { return map[string]int{"unified": 512, "streams": 256} }

func windowSpec(path, layout, windows string) engine.LoadSpec {
	return engine.LoadSpec{
		Path: path, Context: 2048, MaxSequences: 4, Chunk: 64, FlashAttention: "off", KVLayout: layout, WindowCache: windows,
	}
}

func prompt(tokens []engine.Token) engine.Prompt {
	return engine.Prompt{Segments: []engine.Segment{{Tokens: tokens}}}
}

// TestWindowCacheReuse: a conversation that goes on is reused; one that goes another way behind what its window still covers is
// computed again, and what it says does not depend on that.
func TestWindowCacheReuse(t *testing.T) {
	path := toy(t, toygguf.Spec{Kind: toygguf.Gemma3, SWA: 64, LogitScale: 8, Context: 2048})
	for layout, cells := range windowLayouts() {
		t.Run(layout, func(t *testing.T) {
			full, _ := load(t, windowSpec(path, layout, "full"))
			m, p := load(t, windowSpec(path, layout, "window"))
			if got := m.Info().WindowCells; got != cells || full.Info().WindowCells != 0 {
				t.Errorf("%d cells for windows, want %d; %d where all are kept", got, cells, full.Info().WindowCells)
			}
			toks, err := m.Tokenize(t.Context(), words(1500, 1))
			if err != nil {
				t.Fatal(err)
			}
			// both asks both models, the full one without its cache, and returns how many tokens the other one had cached.
			both := func(what string, tokens []engine.Token) (answer, int) {
				t.Helper()
				r := greedy(prompt(tokens), 20)
				got := mustAsk(t, m, r)
				r.CachePrompt = false
				if want := mustAsk(t, full, r); !slices.Equal(got.tokens[0], want.tokens[0]) {
					t.Errorf("%s: differs from token %d on", what, same(got.tokens[0], want.tokens[0]))
				}
				return got, got.usage.CachedTokens
			}
			first, _ := both("first turn", toks)
			// Another one takes every cell that it no longer sees: a prompt as long as the pool still holds, as decode steps would cost rent.
			r := greedy(words(480, 2), 1)
			r.CachePrompt = false
			mustAsk(t, m, r)
			turn := append(append(slices.Clone(toks), first.tokens[0]...), toks[7:40]...)
			if _, n := both("second turn", turn); n < len(toks) {
				t.Errorf("%d of %d tokens of the conversation were cached", n, len(toks))
			}
			other := append(slices.Clone(toks[:300]), toks[600:700]...) // 300 of its tokens are there, but for their windows
			if _, n := both("another way", other); n != 0 {
				t.Errorf("%d tokens were cached whose window is gone", n)
			}
			if s := p.Status()[0].Stats; s.Mismatches != 0 || p.Status()[0].Restarts != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestWindowCacheOverload asks at once for four times what the pool, or all streams, hold.
func TestWindowCacheOverload(t *testing.T) {
	path := toy(t, toygguf.Spec{Kind: toygguf.Gemma3, SWA: 64, LogitScale: 8})
	for layout, pools := range map[string]int{"unified": 1, "streams": 4} {
		t.Run(layout, func(t *testing.T) {
			spec := windowSpec(path, layout, "window")
			spec.Context = 768
			m, p := load(t, spec)
			var wg sync.WaitGroup
			for i := range 8 * pools { // 8 x 400 tokens for 768 cells
				wg.Go(func() {
					a, err := ask(t.Context(), m, greedy(words(340, i%8), 60))
					if err != nil || len(a.tokens[0]) != 60 {
						t.Errorf("request %d: %d tokens, %v", i, len(a.tokens[0]), err)
					}
				})
			}
			wg.Wait()
			st := p.Status()[0]
			if st.Stats.Mismatches != 0 || st.Restarts != 0 || m.Info().WindowCells == 0 {
				t.Errorf("%+v, %d restarts, %d cells for windows", st.Stats, st.Restarts, m.Info().WindowCells)
			}
			t.Logf("%+v", st.Stats)
		})
	}
}

// TestWindowCacheFollowsTheLayout: a context that is made anew in the other layout has windows of that layout's size.
func TestWindowCacheFollowsTheLayout(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o, err := (&invocation{}).opener(bundleDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	spec := windowSpec(toy(t, toygguf.Spec{Kind: toygguf.Gemma3, SWA: 64, Context: 2048}), "unified", "window")
	spec.Threads, spec.MMap, spec.CPUBLAS = 1, true, "off" // a plugin would stay in this process
	m, err := o.Open(t.Context(), spec, func(string, float64) {})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, l := range []batch.Layout{batch.LayoutStreams, batch.LayoutUnified, batch.LayoutStreams} {
		cfg, err := m.Relayout(l)
		if err != nil {
			t.Fatal(err)
		}
		if want := windowLayouts()[l.String()]; cfg.Layout != l || cfg.Window != 64 || cfg.WindowCells != want || cfg.Validate() != nil {
			t.Errorf("%s: window %d, %d cells, want %d; %v", l, cfg.Window, cfg.WindowCells, want, cfg.Validate())
		}
	}
}

// TestWindowCacheMemory compares what windows save with the front end's estimate of it.
func TestWindowCacheMemory(t *testing.T) {
	path := toy(t, toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, Embd: 256, Heads: 8, HeadsKV: 8, SWA: 512, Context: 16384})
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for layout, context := range map[string]int{"unified": 16384, "streams": 4096} {
		t.Run(layout, func(t *testing.T) {
			anonymous := func(windows string) (int64, int64) {
				t.Helper()
				_, p := load(t, engine.LoadSpec{Path: path, Context: context, MaxSequences: 4, KVLayout: layout, WindowCache: windows})
				e, err := fit.Of(f, fit.Request{
					Cells: 16384, Sequences: 4, FlashAttention: true, Windows: windows == "window", Streams: layout == "streams", HostLayers: fit.AllOnHost,
				})
				if err != nil {
					t.Fatal(err)
				}
				return rssAnon(t, p.Status()[0].PID), int64(e.Host.KV)
			}
			full, fullKV := anonymous("full")
			small, smallKV := anonymous("window")
			saved, want := full-small, fullKV-smallKV
			t.Logf("%d KiB saved, estimated %d KiB of %d", saved>>10, want>>10, fullKV>>10)
			if d := saved - want; want < fullKV/2 || d < -4<<20 || d > 4<<20 {
				t.Errorf("%d KiB saved, estimated %d KiB", saved>>10, want>>10)
			}
		})
	}
}

// rssAnon is the anonymous memory of a process that lies in RAM, in bytes.
func rssAnon(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
