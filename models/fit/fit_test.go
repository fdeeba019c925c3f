package fit

import (
	"errors"
	"path/filepath"
	"testing"

	"hearth/internal/toygguf"
	"hearth/models/gguf"
)

func open(t *testing.T, s toygguf.Spec) *gguf.File {
	t.Helper()
	p := filepath.Join(t.TempDir(), "toy.gguf")
	if err := toygguf.Write(p, s); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func of(t *testing.T, f *gguf.File, r Request) Estimate {
	t.Helper()
	e, err := Of(f, r)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestKVCache(t *testing.T) {
	f := open(t, toygguf.Spec{Kind: toygguf.Llama}) // 4 layers, 2 KV heads of 32
	const cell = 4 * 2 * 32 * 2                     // elements of K and V in one cell
	for _, c := range []struct {
		r    Request
		want uint64
	}{
		{Request{Cells: 4096}, 4096 * cell * 2},
		{Request{Cells: 8192}, 8192 * cell * 2},
		{Request{Cells: 4096, KVTypeK: "q8_0", KVTypeV: "q8_0", FlashAttention: true}, 4096 * cell / 32 * 34},
		{Request{Cells: 4096, KVTypeK: "f32", KVTypeV: "f32"}, 4096 * cell * 4},
	} {
		e := of(t, f, c.r)
		if e.Device.KV != c.want || e.Host.KV != 0 {
			t.Errorf("%+v: device %d, host %d, want %d", c.r, e.Device.KV, e.Host.KV, c.want)
		}
		c.r.HostLayers = AllOnHost
		if e = of(t, f, c.r); e.Host.KV != c.want || e.Device.Total() != 0 || e.Offloaded != 0 {
			t.Errorf("on host %+v: %+v", c.r, e)
		}
	}
}

// Window layers keep every cell unless they are to keep windows only; a recurrent state costs the same whatever the context, once for
// each sequence.
func TestWindowsAndStates(t *testing.T) {
	gemma := open(t, toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, SWA: 512})
	llama := open(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 6})
	small, large := of(t, gemma, Request{Cells: 8192}).Device.KV, of(t, gemma, Request{Cells: 16384}).Device.KV
	if large != 2*small || small != of(t, llama, Request{Cells: 8192}).Device.KV {
		t.Errorf("windows: %d for 8192 cells, %d for 16384", small, large)
	}
	mamba := open(t, toygguf.Spec{Kind: toygguf.Mamba})
	one := of(t, mamba, Request{Cells: 4096}).Device.KV
	if many := of(t, mamba, Request{Cells: 16384, Sequences: 8}).Device.KV; one == 0 || many != 8*one {
		t.Errorf("states: %d for one sequence, %d for eight", one, many)
	}
}

// Small windows: one for each sequence and room for an evaluation, which streams have each. TestWindowCacheMemory in
// cmd/hearth-engine compares the sum with what a load takes.
func TestSmallWindows(t *testing.T) {
	gemma := open(t, toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, SWA: 512}) // 5 layers with windows; 2 KV heads of 32
	const layer = 2 * 32 * 2 * 2                                              // bytes of K and V of one cell in one layer
	for _, c := range []struct {
		r       Request
		windows uint64 // cells
	}{
		{Request{Cells: 16384}, 16384},
		{Request{Cells: 16384, Windows: true, FlashAttention: true}, 1024},
		{Request{Cells: 16384, Windows: true, FlashAttention: true, Sequences: 4}, 2560},
		{Request{Cells: 16384, Windows: true, FlashAttention: true, Sequences: 4, Streams: true}, 4 * 1024},
		{Request{Cells: 2048, Windows: true, FlashAttention: true, Sequences: 32}, 2048},
	} {
		want := layer * (uint64(c.r.Cells) + 5*c.windows)
		if e := of(t, gemma, c.r); e.Device.KV != want || e.Cells != c.r.Cells {
			t.Errorf("%+v: %d bytes for %d cells, want %d", c.r, e.Device.KV, e.Cells, want)
		}
	}
	if n, arch, err := Window(gemma); n != 512 || arch != "gemma3" || err != nil {
		t.Errorf("window %d of %s, %v", n, arch, err)
	}
	if n, _, err := Window(open(t, toygguf.Spec{Kind: toygguf.Llama})); n != 0 || err != nil {
		t.Errorf("window %d of a model without one, %v", n, err)
	}
}

func TestWeightsAreAllAccounted(t *testing.T) {
	for kind, copies := range map[toygguf.Kind]int64{toygguf.Llama: 0, toygguf.Gemma3: 1} { // Gemma's output matrix is its input's
		f := open(t, toygguf.Spec{Kind: kind, Vocab: 4096, Layers: 6})
		for host := range 8 {
			e := of(t, f, Request{Cells: 512, HostLayers: host})
			sum, size := int64(e.Device.Weights+e.Host.Weights), f.Size
			if host < 7 {
				size += copies * 4096 * 128 * 4 // the device has a copy of its own
			}
			if sum < size*9/10 || sum > size {
				t.Errorf("%s, %d on host: %d of %d bytes", kind, host, sum, size)
			}
			if e.Layers != 7 || e.Offloaded != 7-host {
				t.Errorf("%s, %d on host: %d of %d offloaded", kind, host, e.Offloaded, e.Layers)
			}
		}
	}
}

// The logits of the rows that are sampled are what a large vocabulary costs.
func TestOutputs(t *testing.T) {
	f := open(t, toygguf.Spec{Kind: toygguf.Llama, Vocab: 4096})
	few := of(t, f, Request{Cells: 512, Outputs: 1})
	all := of(t, f, Request{Cells: 512, Outputs: 512})
	if d := int64(all.Host.Compute) - int64(few.Host.Compute); d < 511*4096*4 || d > 2*512*4096*4+1<<20 {
		t.Errorf("512 rows cost %d bytes more than one", d)
	}
	if def := of(t, f, Request{Cells: 512}); def != of(t, f, Request{Cells: 512, Outputs: 32}) {
		t.Error("the default is not 32 rows")
	}
}

func TestHostLayers(t *testing.T) {
	f := open(t, toygguf.Spec{Kind: toygguf.Llama})
	all := of(t, f, Request{Cells: 4096})
	n, e, err := HostLayers(f, Request{Cells: 4096}, all.Device.Total())
	if err != nil || n != 0 || e != all {
		t.Errorf("with room for all: %d, %+v, %v", n, e, err)
	}
	n, e, err = HostLayers(f, Request{Cells: 4096}, all.Device.Total()-1)
	if err != nil || n < 1 || n > 4 || e.Device.Total() >= all.Device.Total() {
		t.Errorf("one byte short: %d, %+v, %v", n, e, err)
	}
	n, e, err = HostLayers(f, Request{Cells: 4096}, 1)
	if err != nil || n != AllOnHost || e.Device.Total() != 0 {
		t.Errorf("no room: %d, %+v, %v", n, e, err)
	}
}

func TestMaxCells(t *testing.T) {
	f := open(t, toygguf.Spec{Kind: toygguf.Llama})
	want := of(t, f, Request{Cells: 10 * 256})
	n, err := MaxCells(f, Request{}, want.Device.Total(), want.Host.Total(), 256, 1<<17)
	if err != nil || n < 10*256 {
		t.Errorf("got %d, %v", n, err)
	}
	if e := of(t, f, Request{Cells: n + 256}); e.Device.Total() <= want.Device.Total() {
		t.Errorf("%d cells are not the most", n)
	}
	if n, err := MaxCells(f, Request{}, 1, 1, 256, 1<<17); err != nil || n != 0 {
		t.Errorf("no room: %d, %v", n, err)
	}
}

func TestBadRequests(t *testing.T) {
	f := open(t, toygguf.Spec{Kind: toygguf.Llama})
	for _, r := range []Request{{Cells: -1}, {Chunk: -1}, {KVTypeK: "q9"}, {KVTypeV: "Q8_0"}} {
		if _, err := Of(f, r); !errors.Is(err, ErrRequest) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
