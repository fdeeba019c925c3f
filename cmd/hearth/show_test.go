package main

import (
	"path/filepath"
	"testing"

	"hearth/internal/toygguf"
	"hearth/models/fit"
	"hearth/models/gguf"
)

// A second estimate is for models that may keep windows only, where that saves anything.
func TestShowEstimatesWindows(t *testing.T) {
	for _, c := range []struct {
		name    string
		spec    toygguf.Spec
		setting string
		cells   int
		windows bool
	}{
		{"window model", toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, SWA: 512}, "auto", 32768, true},
		{"unset", toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, SWA: 512}, "", 32768, true},
		{"windows of all sequences are the whole context", toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, SWA: 512}, "auto", 4096, false},
		{"all cells asked for", toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, SWA: 512}, "full", 32768, false},
		{"no windows", toygguf.Spec{Kind: toygguf.Llama, Layers: 6}, "auto", 32768, false},
	} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := toygguf.Write(path, c.spec); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		r := fit.Request{Cells: c.cells, Sequences: 8, FlashAttention: true}
		all, err := fit.Of(f, r)
		if err != nil {
			t.Fatal(err)
		}
		e, err := withWindows(f, r, c.setting, all)
		if err != nil || (e != nil) != c.windows || (e != nil && e.Device.KV*2 > all.Device.KV) {
			t.Errorf("%s: %+v, %v", c.name, e, err)
		}
	}
}
