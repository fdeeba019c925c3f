package llama_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

// savedState is a sequence of n tokens in another context's pool, between the cells of a second one.
func savedState(t testing.TB, c *llama.Context, b *llama.Batch, seq llama.SeqID, p []llama.Token) []byte {
	t.Helper()
	for i, tok := range p {
		feed(t, c, b, seq, i, []llama.Token{tok})
		feed(t, c, b, seq+1, i, []llama.Token{tok})
	}
	n, err := c.SeqStateSize(seq, 0)
	if err != nil {
		t.Fatal(err)
	}
	blob := make([]byte, n)
	if _, err := c.SeqStateGet(blob, seq, 0); err != nil {
		t.Fatal(err)
	}
	return blob
}

// Parts of a state, brought back one after the other through another id into different places, are the sequence.
func TestStatePartsAreTheSequence(t *testing.T) {
	for name, kv := range map[string]llama.KVType{"f16": llama.KVF16, "q8_0": "q8_0"} {
		t.Run(name, func(t *testing.T) {
			m := toy(t, toygguf.Spec{Kind: toygguf.Llama})
			c := newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 64, SeqMax: 5, KVUnified: true, Flash: llama.FlashOn, TypeK: kv, TypeV: kv})
			b := newBatch(t, 64, 1)
			p := prompt(41, 3)
			blob := savedState(t, c, b, 0, p[:40])
			want := feed(t, c, b, 0, 40, p[40:])
			if err := c.SeqRm(0, -1, -1); err != nil {
				t.Fatal(err)
			}
			for from, step := 0, 7; from < 40; from, step = from+step, step+4 {
				part, err := llama.StatePart([]byte("kept"), blob, from, min(40, from+step))
				if err != nil {
					t.Fatal(err)
				}
				if err := c.SeqStateSet(part[4:], 2, 0); err != nil {
					t.Fatal(err)
				}
				if err := c.SeqCp(2, 3, 0, -1); err != nil {
					t.Fatal(err)
				}
				if err := c.SeqRm(2, -1, -1); err != nil {
					t.Fatal(err)
				}
				feed(t, c, b, 4, int(c.PosMax(4))+1, p[:1]) // another one takes a cell
			}
			if got := c.PosMax(3); got != 39 {
				t.Fatalf("it ends at %d", got)
			}
			if d := maxDiff(feed(t, c, b, 3, 40, p[40:]), want); d > 0.02 {
				t.Errorf("logits differ by %g", d)
			}
		})
	}
}

// A part of everything is the state; streams and windows are what they are.
func TestStatePartOfAll(t *testing.T) {
	m := toy(t, toygguf.Spec{Kind: toygguf.Llama})
	b := newBatch(t, 64, 1)
	for name, p := range map[string]llama.ContextParams{
		"unified": {Ctx: 512, Batch: 64, SeqMax: 4, KVUnified: true, Flash: llama.FlashOn},
		"streams": {Ctx: 1024, Batch: 64, SeqMax: 4, Flash: llama.FlashOn},
	} {
		blob := savedState(t, newContext(t, m, p), b, 1, prompt(20, 3))
		got, err := llama.StatePart(nil, blob, 0, 20)
		if err != nil || !bytes.Equal(got, blob) {
			t.Errorf("%s: a part of everything differs, %v", name, err)
		}
		for _, r := range [][2]int{{0, 21}, {5, 5}, {-1, 3}, {7, 2}} {
			if _, err := llama.StatePart(nil, blob, r[0], r[1]); !errors.Is(err, llama.ErrRange) {
				t.Errorf("%s: cells %v: %v", name, r, err)
			}
		}
		for _, n := range []int{0, 3, 11, 16, 100, len(blob) - 1} {
			if _, err := llama.StatePart(nil, blob[:n], 0, 20); !errors.Is(err, llama.ErrState) {
				t.Errorf("%s: %d of %d bytes: %v", name, n, len(blob), err)
			}
		}
		if _, err := llama.StatePart(nil, append(bytes.Clone(blob), 0), 0, 20); !errors.Is(err, llama.ErrState) {
			t.Errorf("%s: a byte too many: %v", name, err)
		}
	}
	for name, c := range map[string]*llama.Context{
		"transposed": newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 64, SeqMax: 4, KVUnified: true, Flash: llama.FlashOff}),
		"window":     newContext(t, toy(t, toygguf.Spec{Kind: toygguf.Gemma3, SWA: 96}), llama.ContextParams{Ctx: 512, Batch: 64, SeqMax: 4, KVUnified: true, Flash: llama.FlashOn}),
		"hybrid":     newContext(t, toy(t, toygguf.Spec{Kind: toygguf.Jamba}), llama.ContextParams{Ctx: 512, Batch: 64, SeqMax: 4, KVUnified: true, Flash: llama.FlashOn}),
	} {
		if _, err := llama.StatePart(nil, savedState(t, c, b, 1, prompt(20, 3)), 0, 20); !errors.Is(err, llama.ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Damaged states are refused or cut as they are, never read beyond their end.
func TestDamagedStateParts(t *testing.T) {
	m := toy(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 1})
	b := newBatch(t, 64, 1)
	blob := savedState(t, newContext(t, m, llama.ContextParams{Ctx: 256, Batch: 64, SeqMax: 3, KVUnified: true, Flash: llama.FlashOn}), b, 1, prompt(3, 3))
	rng := rand.New(rand.NewPCG(1, 2))
	cut := 0
	for range 50000 {
		state := bytes.Clone(blob[:len(blob)-rng.IntN(2)*rng.IntN(len(blob))])
		for range 1 + rng.IntN(4) {
			state[rng.IntN(min(len(state), 128))%len(state)] ^= byte(1 << rng.IntN(8))
		}
		part, err := llama.StatePart(nil, state, rng.IntN(4), rng.IntN(5))
		if err != nil {
			continue
		}
		cut++
		if len(part) > len(state) {
			t.Fatalf("%d bytes of %d", len(part), len(state))
		}
	}
	if cut == 0 {
		t.Error("no state was cut")
	}
}
