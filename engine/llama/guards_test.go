package llama_test

import (
	"errors"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

// Every case here aborts the process, or worse, when it reaches llama.cpp.
func TestDecodeGuards(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 512, Batch: 32, SeqMax: 4, OutputsMax: 4, KVUnified: true})
	b := newBatch(t, 64, 4)
	feed(t, c, b, 0, 0, prompt(10, 1))
	cases := []struct {
		name  string
		fill  func()
		want  error
		entry int
	}{
		{"empty", func() {}, llama.ErrInvalidBatch, -1},
		{"over n_batch", func() {
			for i := range 33 {
				add(t, b, 300, llama.Pos(i), 1, false)
			}
		}, llama.ErrInvalidBatch, -1},
		{"over n_outputs_max", func() {
			for i := range 5 {
				add(t, b, 300, llama.Pos(i), 1, true)
			}
		}, llama.ErrInvalidBatch, -1},
		{"token too large", func() { add(t, b, 300, 0, 1, false); add(t, b, 1024, 1, 1, true) }, llama.ErrRange, 1},
		{"negative token", func() { add(t, b, -1, 0, 1, true) }, llama.ErrRange, 0},
		{"sequence too large", func() { add(t, b, 300, 0, 4, true) }, llama.ErrRange, 0},
		{"negative sequence", func() { add(t, b, 300, 0, -1, true) }, llama.ErrRange, 0},
		{"negative position", func() { add(t, b, 300, -1, 1, true) }, llama.ErrRange, 0},
		{"gap", func() { add(t, b, 300, 11, 0, true) }, llama.ErrPosition, 0},
		{"repeat", func() { add(t, b, 300, 9, 0, true) }, llama.ErrPosition, 0},
		{"gap inside", func() { add(t, b, 300, 0, 1, false); add(t, b, 300, 2, 1, true) }, llama.ErrPosition, 1},
		{"decreasing", func() { add(t, b, 300, 1, 1, false); add(t, b, 300, 0, 1, true) }, llama.ErrPosition, 1},
		{"shared gap", func() {
			if _, err := b.AddShared(300, 10, []llama.SeqID{0, 1, 2}, true); err != nil {
				t.Fatal(err)
			}
			if _, err := b.AddShared(300, 12, []llama.SeqID{1, 2}, true); err != nil {
				t.Fatal(err)
			}
		}, llama.ErrPosition, 1},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			b.Reset()
			tc.fill()
			_, err := c.Step(b)
			var e *llama.Error
			if !errors.Is(err, tc.want) || !errors.As(err, &e) || e.Index != tc.entry {
				t.Errorf("Step: %v (index %d), want %v at %d", err, e.Index, tc.want, tc.entry)
			}
			if err := c.Decode(b); !errors.Is(err, tc.want) {
				t.Errorf("Decode: %v, want %v", err, tc.want)
			}
		})
	}
	if c.PosMax(0) != 9 || c.PosMax(1) != -1 {
		t.Error("a refused batch changed the memory")
	}
	feed(t, c, b, 0, 10, prompt(5, 1)) // still alive
}

func TestStreamGuards(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 1024, Batch: 64, SeqMax: 4})
	b := newBatch(t, 64, 2)
	feed(t, c, b, 0, 0, prompt(10, 1))
	if c.MaxSeqID() != 4 || c.NCtxSeq() != 256 {
		t.Errorf("MaxSeqID %d, NCtxSeq %d", c.MaxSeqID(), c.NCtxSeq())
	}
	if err := c.SeqCp(0, 1, 0, 5); !errors.Is(err, llama.ErrUnsupported) {
		t.Errorf("part of a stream: %v", err)
	}
	if err := c.SeqCp(0, 4, -1, -1); !errors.Is(err, llama.ErrRange) {
		t.Errorf("stream past the last: %v", err)
	}
	b.Reset()
	if _, err := b.AddShared(300, 10, []llama.SeqID{0, 1}, true); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Step(b); !errors.Is(err, llama.ErrUnsupported) {
		t.Errorf("shared entry over streams: %v", err)
	}
	if err := c.SeqCp(0, 1, -1, -1); err != nil {
		t.Fatal(err)
	}
	one, two := feed(t, c, b, 0, 10, prompt(3, 4)), feed(t, c, b, 1, 10, prompt(3, 4))
	if d := maxDiff(one, two); d > 0.02 {
		t.Errorf("logits over a copied stream differ by %g", d)
	}
}

func TestMemoryGuards(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 256, Batch: 32, SeqMax: 2, KVUnified: true})
	b := newBatch(t, 32, 1)
	feed(t, c, b, 0, 0, prompt(10, 1))
	blob := make([]byte, 1<<16)
	n, err := c.SeqStateGet(blob, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"cp to itself":      c.SeqCp(0, 0, -1, -1),
		"cp from 256":       c.SeqCp(256, 0, -1, -1),
		"cp to -1":          c.SeqCp(0, -1, -1, -1),
		"rm -1":             c.SeqRm(-1, -1, -1),
		"keep 999":          c.SeqKeep(999),
		"add 256":           c.SeqAdd(256, -1, -1, 1),
		"restore to parked": c.SeqStateSet(blob[:n], 100, 0),
		"device unset":      c.SeqStateSet(blob[:n], 0, llama.StateOnDevice),
	} {
		if !errors.Is(err, llama.ErrRange) {
			t.Errorf("%s: %v, want ErrRange", name, err)
		}
	}
	if err := c.SeqStateSet(nil, 0, 0); !errors.Is(err, llama.ErrState) {
		t.Errorf("no blob: %v", err)
	}
	if c.PosMax(256) != -1 || c.PosMin(-5) != -1 {
		t.Error("a position of an impossible sequence")
	}
	if c.PosMax(0) != 9 {
		t.Errorf("a refused call changed the memory: %d", c.PosMax(0))
	}
	swa := newContext(t, toy(t, toygguf.Spec{Kind: toygguf.Gemma3, SWA: 64}), llama.ContextParams{Ctx: 1024, Batch: 32, KVUnified: true})
	if err := swa.SeqAdd(0, -1, -1, 1); !errors.Is(err, llama.ErrUnsupported) {
		t.Errorf("shift of a sliding window: %v", err)
	}
}

func TestParamGuards(t *testing.T) {
	for name, p := range map[string]llama.ContextParams{
		"SeqMax":                  {SeqMax: 257},
		"Batch":                   {Batch: -1},
		"UBatch":                  {Batch: 64, UBatch: 65},
		"OutputsMax":              {Batch: 64, OutputsMax: 65},
		"OutputsMax under SeqMax": {Batch: 64, OutputsMax: 3, SeqMax: 4},
		"Threads":                 {Threads: -3},
		"TypeK":                   {TypeK: "q2_k"},
		"Pooling":                 {Pooling: 9},
		"Ctx":                     {Ctx: -1},
	} {
		c, err := dense(t).NewContext(p)
		if !errors.Is(err, llama.ErrRange) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			c.Close()
		}
	}
	small := newContext(t, dense(t), llama.ContextParams{Ctx: 256, Batch: 4, UBatch: 2, SeqMax: 4, KVUnified: true})
	feed(t, small, newBatch(t, 4, 1), 3, 0, prompt(4, 1))
	if _, err := llama.NewBatch(0, 1, nil); !errors.Is(err, llama.ErrRange) {
		t.Errorf("empty batch: %v", err)
	}
	b := newBatch(t, 1, 2)
	if _, err := b.AddShared(1, 0, []llama.SeqID{0, 1, 2}, false); !errors.Is(err, llama.ErrRange) {
		t.Errorf("too many sequences: %v", err)
	}
	add(t, b, 1, 0, 0, false)
	if _, err := b.Add(1, 1, 0, false); !errors.Is(err, llama.ErrBatchFull) {
		t.Errorf("full batch: %v", err)
	}
}

func TestEncoderGuard(t *testing.T) {
	m := toy(t, toygguf.Spec{Kind: toygguf.Bert})
	c := newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 64, UBatch: 16, Embeddings: true})
	b := newBatch(t, 64, 1)
	for i := range 17 {
		add(t, b, 6, llama.Pos(i), 0, true)
	}
	// llama.cpp may have raised n_ubatch itself; the guard follows what it says.
	_, err := c.Step(b)
	if tooLong := b.Len() > c.NUBatch(); tooLong != errors.Is(err, llama.ErrInvalidBatch) {
		t.Errorf("%d entries of at most %d: %v", b.Len(), c.NUBatch(), err)
	}
}

// A table of learned positions ends at the training context.
func TestPositionTableGuard(t *testing.T) {
	m := toy(t, toygguf.Spec{Kind: toygguf.Bert, Context: 32, Layers: 1})
	c := newContext(t, m, llama.ContextParams{Ctx: 64, Batch: 64, UBatch: 64, Embeddings: true})
	b := newBatch(t, 64, 1)
	for i := range 33 {
		add(t, b, 6, llama.Pos(i), 0, true)
	}
	var e *llama.Error
	if _, err := c.Step(b); !errors.Is(err, llama.ErrRange) || !errors.As(err, &e) || e.Index != 32 {
		t.Errorf("position 32 of 32: %v", err)
	}
	if i := dense(t).Info(); i.RopeType < 0 {
		t.Errorf("a llama without rotary embedding: %+v", i)
	}
}

func TestClosedHandles(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 256})
	b := newBatch(t, 4, 1)
	add(t, b, 300, 0, 0, true)
	c.Close()
	c.Close()
	if _, err := c.Step(b); !errors.Is(err, llama.ErrClosed) {
		t.Errorf("step on a closed context: %v", err)
	}
	if err := c.SeqRm(0, -1, -1); !errors.Is(err, llama.ErrClosed) {
		t.Errorf("seq_rm on a closed context: %v", err)
	}
	if c.PosMax(0) != -1 {
		t.Error("a closed context has positions")
	}
	d := newContext(t, dense(t), llama.ContextParams{Ctx: 256})
	b.Close()
	b.Close()
	if _, err := d.Step(b); !errors.Is(err, llama.ErrClosed) {
		t.Errorf("step with a closed batch: %v", err)
	}
}

// Two goroutines in one context: the second one must panic, not corrupt memory.
func TestTwoGoroutinesPanic(t *testing.T) {
	c := newContext(t, dense(t), llama.ContextParams{Ctx: 2048, Batch: 2048, UBatch: 2048})
	b := newBatch(t, 2048, 1)
	for i, tok := range prompt(2048, 1) {
		add(t, b, tok, llama.Pos(i), 0, i == 2047)
	}
	started, done := make(chan struct{}), make(chan error)
	go func() {
		close(started)
		_, err := c.Step(b)
		done <- err
	}()
	<-started
	caught := false
	probe := func() {
		defer func() { caught = recover() != nil || caught }()
		c.PosMax(0)
	}
	for !caught {
		select {
		case err := <-done:
			if !caught {
				t.Fatalf("no panic while a step ran (%v)", err)
			}
		default:
			probe()
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
