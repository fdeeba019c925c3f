package llama_test

import (
	"errors"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

func TestStepGreedy(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 512, Batch: 128, SeqMax: 2, OutputsMax: 4, KVUnified: true})
	b := newBatch(t, 128, 1)
	gen := func(seq llama.SeqID) []llama.Token {
		p := prompt(20, 1)
		tok := llama.Argmax(feed(t, c, b, seq, 0, p))
		out := []llama.Token{tok}
		for i := range 15 {
			tok = llama.Argmax(feed(t, c, b, seq, len(p)+i, []llama.Token{tok}))
			out = append(out, tok)
		}
		return out
	}
	one, two := gen(0), gen(1)
	for i := range one {
		if one[i] != two[i] {
			t.Fatalf("same prompt, different text: %v and %v", one, two)
		}
	}
}

func TestDecodeThenSync(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 512, Batch: 64, SeqMax: 4, KVUnified: true})
	b := newBatch(t, 64, 1)
	want := feed(t, c, b, 0, 0, prompt(10, 1))
	b.Reset()
	for i, tok := range prompt(10, 1) {
		row, err := b.Add(tok, llama.Pos(i), 1, i >= 8)
		if err != nil || row != max(0, i-8) {
			t.Fatalf("row %d, %v", row, err)
		}
	}
	if err := c.Decode(b); err != nil {
		t.Fatal(err)
	}
	rows, err := c.Sync()
	if err != nil || rows.Len() != 2 {
		t.Fatalf("%d rows, %v", rows.Len(), err)
	}
	if d := maxDiff(rows.Logits(1), want); d > 0.02 {
		t.Errorf("logits differ by %g", d)
	}
}

// The range [0,p1) of a sequence can be shared, and the copy continues on its own.
func TestSeqCpSharesPartialRanges(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 512, Batch: 128, SeqMax: 4, KVUnified: true})
	b := newBatch(t, 128, 1)
	p := prompt(100, 3)
	feed(t, c, b, 0, 0, p)
	if err := c.SeqCp(0, 1, 0, 60); err != nil {
		t.Fatal(err)
	}
	if lo, hi := c.PosMin(1), c.PosMax(1); lo != 0 || hi != 59 {
		t.Fatalf("copy holds %d..%d", lo, hi)
	}
	shared := feed(t, c, b, 1, 60, p[60:80])
	fresh := feed(t, c, b, 2, 0, p[:80])
	if d := maxDiff(shared, fresh); d > 0.02 {
		t.Errorf("logits over a shared prefix differ by %g", d)
	}
	if err := c.SeqRm(0, -1, -1); err != nil {
		t.Fatal(err)
	}
	if c.PosMax(0) != -1 || c.PosMax(1) != 79 {
		t.Errorf("after removing the source: %d, %d", c.PosMax(0), c.PosMax(1))
	}
}

// Sharing costs no cells: two sequences of 200 share a pool of 256.
func TestSharedCellsAreCountedOnce(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 256, Batch: 128, SeqMax: 4, KVUnified: true})
	b := newBatch(t, 128, 1)
	feed(t, c, b, 0, 0, prompt(200, 1))
	if err := c.SeqCp(0, 1, -1, -1); err != nil {
		t.Fatal(err)
	}
	// 56 cells are free: 28 for each.
	feed(t, c, b, 0, 200, prompt(28, 2))
	feed(t, c, b, 1, 200, prompt(28, 3))
	b.Reset()
	add(t, b, 300, 228, 1, true)
	if _, err := c.Step(b); !errors.Is(err, llama.ErrNoKVSlot) {
		t.Fatalf("a full pool took one more: %v", err)
	}
	if c.PosMax(0) != 227 || c.PosMax(1) != 227 {
		t.Error("the refused step changed the memory")
	}
	if err := c.SeqRm(0, 227, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Step(b); err != nil {
		t.Errorf("one cell was freed and one asked: %v", err)
	}
}

func TestParkingIDs(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 256, Batch: 64, SeqMax: 2, KVUnified: true})
	b := newBatch(t, 64, 1)
	p := prompt(32, 5)
	feed(t, c, b, 0, 0, p)
	if c.MaxSeqID() != llama.MaxSeqs() {
		t.Fatalf("MaxSeqID %d", c.MaxSeqID())
	}
	park := llama.SeqID(c.MaxSeqID() - 1)
	if err := c.SeqCp(0, park, -1, -1); err != nil {
		t.Fatal(err)
	}
	if err := c.SeqRm(0, -1, -1); err != nil {
		t.Fatal(err)
	}
	if err := c.SeqCp(park, 1, 0, 31); err != nil {
		t.Fatal(err)
	}
	got := feed(t, c, b, 1, 31, p[31:])
	c.Clear(false)
	want := feed(t, c, b, 1, 0, p)
	if d := maxDiff(got, want); d > 0.02 {
		t.Errorf("logits after parking differ by %g", d)
	}
}

func TestSlidingWindowPosMin(t *testing.T) {
	m := toy(t, toygguf.Spec{Kind: toygguf.Gemma3, SWA: 64})
	b := newBatch(t, 64, 1)
	for _, full := range []bool{false, true} {
		c := newContext(t, m, llama.ContextParams{Ctx: 1024, Batch: 64, UBatch: 64, SeqMax: 2, KVUnified: true, SWAFull: full})
		feed(t, c, b, 0, 0, prompt(600, 1))
		if lo := c.PosMin(0); full != (lo == 0) {
			t.Errorf("swa_full %v: the smallest position is %d", full, lo)
		}
		if c.PosMax(0) != 599 {
			t.Errorf("swa_full %v: largest position %d", full, c.PosMax(0))
		}
	}
}

func TestRecurrentMemory(t *testing.T) {
	for _, k := range []toygguf.Kind{toygguf.Mamba, toygguf.Jamba} {
		t.Run(string(k), func(t *testing.T) {
			m := toy(t, toygguf.Spec{Kind: k})
			c := newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 64, SeqMax: 4, KVUnified: true})
			b := newBatch(t, 64, 1)
			p := prompt(40, 2)
			feed(t, c, b, 0, 0, p)
			if c.MaxSeqID() != 4 {
				t.Errorf("MaxSeqID %d, want 4: recurrent state has no parking", c.MaxSeqID())
			}
			if err := c.SeqRm(0, 20, -1); !errors.Is(err, llama.ErrPartial) {
				t.Errorf("half a state was removed: %v", err)
			}
			if c.PosMax(0) != 39 {
				t.Errorf("the refused removal left %d", c.PosMax(0))
			}
			// A spare id is an instant checkpoint.
			if err := c.SeqCp(0, 3, -1, -1); err != nil {
				t.Fatal(err)
			}
			one := feed(t, c, b, 0, 40, prompt(5, 9))
			two := feed(t, c, b, 3, 40, prompt(5, 9))
			if d := maxDiff(one, two); d > 0.02 {
				t.Errorf("logits from the checkpoint differ by %g", d)
			}
			if err := c.SeqRm(3, -1, -1); err != nil {
				t.Errorf("a whole sequence was not removed: %v", err)
			}
		})
	}
}

func TestStateRoundTrip(t *testing.T) {
	for _, k := range []toygguf.Kind{toygguf.Llama, toygguf.Gemma3, toygguf.Jamba, toygguf.Mamba} {
		t.Run(string(k), func(t *testing.T) {
			m := toy(t, toygguf.Spec{Kind: k})
			c := newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 64, SeqMax: 4, KVUnified: true})
			b := newBatch(t, 64, 1)
			feed(t, c, b, 0, 0, prompt(50, 2))
			n, err := c.SeqStateSize(0, 0)
			if err != nil || n <= 0 {
				t.Fatalf("size %d, %v", n, err)
			}
			blob := make([]byte, n)
			if got, err := c.SeqStateGet(blob, 0, 0); err != nil || got != n {
				t.Fatalf("%d bytes of %d, %v", got, n, err)
			}
			if err := c.SeqStateSet(blob, 2, 0); err != nil {
				t.Fatal(err)
			}
			if c.PosMax(2) != 49 {
				t.Errorf("restored up to %d", c.PosMax(2))
			}
			one := feed(t, c, b, 0, 50, prompt(3, 7))
			two := feed(t, c, b, 2, 50, prompt(3, 7))
			if d := maxDiff(one, two); d > 0.02 {
				t.Errorf("logits after restore differ by %g", d)
			}
			if err := c.SeqStateSet(blob[:n/2], 2, 0); !errors.Is(err, llama.ErrState) {
				t.Errorf("half a blob: %v", err)
			}
			if _, err := c.SeqStateGet(blob[:10], 0, 0); !errors.Is(err, llama.ErrState) {
				t.Errorf("small buffer: %v", err)
			}
		})
	}
}

// A range of a sequence can be saved by way of a copy of that range.
func TestStateOfARange(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 1024, Batch: 256, SeqMax: 4, KVUnified: true})
	b := newBatch(t, 256, 1)
	p := prompt(256, 2)
	want := append([]float32(nil), feed(t, c, b, 0, 0, p)...)
	var blobs [][]byte
	for at := 0; at < 255; at += 64 {
		end := min(at+64, 255) // the last token is decoded again below
		if err := c.SeqCp(0, 3, llama.Pos(at), llama.Pos(end)); err != nil {
			t.Fatal(err)
		}
		n, err := c.SeqStateSize(3, 0)
		if err != nil {
			t.Fatal(err)
		}
		blob := make([]byte, n)
		if _, err := c.SeqStateGet(blob, 3, 0); err != nil {
			t.Fatal(err)
		}
		blobs = append(blobs, blob)
		if err := c.SeqRm(3, -1, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Clear(true); err != nil {
		t.Fatal(err)
	}
	for _, blob := range blobs {
		if err := c.SeqStateSet(blob, 3, 0); err != nil {
			t.Fatal(err)
		}
		if err := c.SeqCp(3, 1, -1, -1); err != nil {
			t.Fatal(err)
		}
		if err := c.SeqRm(3, -1, -1); err != nil {
			t.Fatal(err)
		}
	}
	if lo, hi := c.PosMin(1), c.PosMax(1); lo != 0 || hi != 254 {
		t.Fatalf("restored %d..%d", lo, hi)
	}
	if d := maxDiff(feed(t, c, b, 1, 255, p[255:]), want); d > 0.02 {
		t.Errorf("logits over restored segments differ by %g", d)
	}
}

func TestAbort(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 512, Batch: 64, KVUnified: true})
	b := newBatch(t, 64, 1)
	feed(t, c, b, 0, 0, prompt(10, 1))
	c.Abort()
	b.Reset()
	add(t, b, 300, 10, 0, true)
	if _, err := c.Step(b); !errors.Is(err, llama.ErrAborted) {
		t.Fatalf("aborted step: %v", err)
	}
	if c.PosMax(0) != 9 {
		t.Errorf("the aborted step left position %d", c.PosMax(0))
	}
	c.ResetAbort()
	if _, err := c.Step(b); err != nil {
		t.Errorf("after the abort: %v", err)
	}
}

func TestGraphReuseIsCounted(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 512, Batch: 64, KVUnified: true, Perf: true})
	b := newBatch(t, 64, 1)
	feed(t, c, b, 0, 0, prompt(10, 1))
	for i := range 20 {
		feed(t, c, b, 0, 10+i, prompt(1, i))
	}
	p, err := c.Perf(true)
	if err != nil || p.GraphsReused < 15 || p.Decode < 20 {
		t.Errorf("%+v, %v", p, err)
	}
	if p, _ = c.Perf(false); p.Decode > 1 {
		t.Errorf("after the reset %+v", p)
	}
}

func TestKVTypes(t *testing.T) {
	b := newBatch(t, 64, 1)
	for _, k := range []llama.KVType{llama.KVF32, llama.KVBF16, llama.KVQ8_0, llama.KVQ4_0} {
		c := newContext(t, dense(t), llama.ContextParams{Ctx: 256, Batch: 64, TypeK: k, TypeV: k, Flash: llama.FlashOn})
		feed(t, c, b, 0, 0, prompt(10, 1))
	}
	if _, err := dense(t).NewContext(llama.ContextParams{Ctx: 256, TypeV: llama.KVQ8_0, Flash: llama.FlashOff}); !errors.Is(err, llama.ErrContext) {
		t.Errorf("quantised V without flash attention: %v", err)
	}
}

func TestAdapter(t *testing.T) {
	spec := toygguf.Spec{Kind: toygguf.Llama, Layers: 2}
	m := dense(t)
	path := t.TempDir() + "/lora.gguf"
	if err := toygguf.WriteLoRA(path, spec, 4, 7, 5); err != nil {
		t.Fatal(err)
	}
	a, err := m.LoadAdapter(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c := newContext(t, m, llama.ContextParams{Ctx: 256, Batch: 64, SeqMax: 3, KVUnified: true})
	b := newBatch(t, 64, 1)
	p := prompt(12, 4)
	plain := feed(t, c, b, 0, 0, p)
	if err := c.SetAdapters([]*llama.Adapter{a}, []float32{1}); err != nil {
		t.Fatal(err)
	}
	with := feed(t, c, b, 1, 0, p)
	if maxDiff(plain, with) < 0.05 {
		t.Error("the adapter changes nothing")
	}
	if err := c.SetAdapters(nil, nil); err != nil {
		t.Fatal(err)
	}
	if d := maxDiff(plain, feed(t, c, b, 2, 0, p)); d > 0.02 {
		t.Errorf("without the adapter again, logits differ by %g", d)
	}
	if err := c.SetAdapters([]*llama.Adapter{a}, nil); !errors.Is(err, llama.ErrRange) {
		t.Errorf("adapter without scale: %v", err)
	}
	if _, err := m.LoadAdapter(toyPath(t, spec)); !errors.Is(err, llama.ErrAdapter) {
		t.Errorf("a model as adapter: %v", err)
	}
}
