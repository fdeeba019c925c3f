package llama_test

import (
	"errors"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

// The partial state of a hybrid is its checkpoint: much smaller than the whole,
// and with it the sequence goes back to where it was taken.
func TestPartialStateIsACheckpoint(t *testing.T) {
	m := toy(t, toygguf.Spec{Kind: toygguf.Jamba})
	c := newContext(t, m, llama.ContextParams{Ctx: 1024, Batch: 64, SeqMax: 2, KVUnified: true})
	b := newBatch(t, 64, 1)
	p := prompt(400, 2)
	feed(t, c, b, 0, 0, p[:300])
	full, err := c.SeqStateSize(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	part, err := c.SeqStateSize(0, llama.StatePartial)
	if err != nil || part*2 > full {
		t.Fatalf("partial state of %d bytes, full %d, %v", part, full, err)
	}
	blob := make([]byte, part)
	if n, err := c.SeqStateGet(blob, 0, llama.StatePartial); err != nil || n != part {
		t.Fatalf("%d bytes, %v", n, err)
	}
	want := feed(t, c, b, 0, 300, p[300:])
	if err := c.SeqStateSet(blob, 0, llama.StatePartial); err != nil {
		t.Fatal(err)
	}
	if err := c.SeqRm(0, 300, -1); err != nil {
		t.Fatal(err)
	}
	if c.PosMax(0) != 299 {
		t.Fatalf("back at %d, want 299", c.PosMax(0))
	}
	if d := maxDiff(feed(t, c, b, 0, 300, p[300:]), want); d > 0.02 {
		t.Errorf("logits from the checkpoint differ by %g", d)
	}
}

func TestOnDeviceState(t *testing.T) {
	const flags = llama.StatePartial | llama.StateOnDevice
	m := toy(t, toygguf.Spec{Kind: toygguf.Jamba})
	c := newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 64, SeqMax: 2, KVUnified: true})
	b := newBatch(t, 64, 1)
	p := prompt(60, 2)
	feed(t, c, b, 0, 0, p[:40])
	n, err := c.SeqStateSize(0, flags)
	if err != nil {
		t.Fatal(err)
	}
	blob := make([]byte, n)
	if _, err := c.SeqStateGet(blob, 0, flags); err != nil {
		t.Fatal(err)
	}
	if err := c.SeqStateSet(blob, 1, flags); !errors.Is(err, llama.ErrRange) {
		t.Errorf("snapshot of another sequence: %v", err)
	}
	want := feed(t, c, b, 0, 40, p[40:])
	if err := c.SeqStateSet(blob, 0, flags); err != nil {
		t.Fatal(err)
	}
	if err := c.SeqRm(0, 40, -1); err != nil {
		t.Fatal(err)
	}
	if d := maxDiff(feed(t, c, b, 0, 40, p[40:]), want); d > 0.02 {
		t.Errorf("logits from the snapshot differ by %g", d)
	}
	if err := c.Clear(false); err != nil {
		t.Fatal(err)
	}
	if err := c.SeqStateSet(blob, 0, flags); !errors.Is(err, llama.ErrRange) {
		t.Errorf("snapshot after clear: %v", err)
	}
}

// A step aborted half-way keeps the micro-batches that were finished, and the
// other sequences; the sequence goes on from PosMax.
func TestAbortKeepsFinishedParts(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 4096, Batch: 2048, UBatch: 64, SeqMax: 2, KVUnified: true})
	b := newBatch(t, 2048, 1)
	feed(t, c, b, 1, 0, prompt(10, 3))
	p := prompt(2048, 1)
	for try := range 300 {
		b.Reset()
		for i, tok := range p {
			add(t, b, tok, llama.Pos(i), 0, i == len(p)-1)
		}
		done := make(chan error)
		go func() {
			_, err := c.Step(b)
			done <- err
		}()
		for range 10 * try { // a little later with every try
			if _, err := dense(t).Tokenize("a b c d e f g h i j k l m", false, false); err != nil {
				t.Fatal(err)
			}
		}
		c.Abort()
		err := <-done
		c.ResetAbort()
		if err != nil && !errors.Is(err, llama.ErrAborted) {
			t.Fatal(err)
		}
		last := c.PosMax(0)
		if (int(last)+1)%64 != 0 {
			t.Fatalf("try %d stopped inside a micro-batch: %d (%v)", try, last, err)
		}
		if c.PosMax(1) != 9 {
			t.Fatalf("the other sequence lost its place: %d", c.PosMax(1))
		}
		if err != nil && last > 0 { // half-way: go on from there
			got := feed(t, c, b, 0, int(last)+1, p[last+1:])
			if len(got) == 0 {
				t.Fatal("no logits after the abort")
			}
			return
		}
		if err := c.SeqRm(0, -1, -1); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("no step was caught half-way")
}
