package gguf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hearth/internal/toygguf"
)

func write(t *testing.T, s toygguf.Spec) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "toy.gguf")
	if err := toygguf.Write(p, s); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSummarizeKinds(t *testing.T) {
	cases := []struct {
		spec toygguf.Spec
		want Summary
	}{
		{toygguf.Spec{Kind: toygguf.Llama, Context: 4096}, Summary{
			Kind: KindChat, Architecture: "llama", Layers: 4, Heads: 4, HeadsKV: 2, EmbeddingLength: 128, ContextLength: 4096,
			VocabularySize: 1024, ChatTemplate: true,
			KVBytesPerToken: 4 * 2 * 2 * 32 * 2, // layers x (K+V) x heads_kv x head x f16
		}},
		{toygguf.Spec{Kind: toygguf.Llama, ChatTemplate: "-"}, Summary{
			Kind: KindChat, Architecture: "llama", Layers: 4, Heads: 4, HeadsKV: 2, EmbeddingLength: 128, ContextLength: 131072,
			VocabularySize: 1024, KVBytesPerToken: 1024,
		}},
		{toygguf.Spec{Kind: toygguf.Gemma3}, Summary{
			Kind: KindChat, Architecture: "gemma3", Layers: 12, Heads: 4, HeadsKV: 2, EmbeddingLength: 128, ContextLength: 131072,
			VocabularySize: 1024, ChatTemplate: true, SlidingWindow: 512,
			KVBytesPerToken: 2 * 2 * 2 * 32 * 2, // only the two layers of full attention grow
		}},
		{toygguf.Spec{Kind: toygguf.Bert}, Summary{
			Kind: KindEmbedding, Architecture: "bert", Layers: 4, Heads: 4, HeadsKV: 4, EmbeddingLength: 128, ContextLength: 512,
			VocabularySize: 1024,
		}},
		{toygguf.Spec{Kind: toygguf.Bert, Pooling: toygguf.PoolingRank}, Summary{
			Kind: KindRerank, Architecture: "bert", Layers: 4, Heads: 4, HeadsKV: 4, EmbeddingLength: 128, ContextLength: 512,
			VocabularySize: 1024,
		}},
	}
	for _, c := range cases {
		t.Run(string(c.want.Kind)+"-"+c.want.Architecture, func(t *testing.T) {
			f, err := Open(write(t, c.spec))
			if err != nil {
				t.Fatal(err)
			}
			got, err := f.Summarize()
			if err != nil {
				t.Fatal(err)
			}
			if got.Parameters == 0 || got.BitsPerWeight < 1 || got.Quantization == "" || got.Title == "" {
				t.Errorf("incomplete: %+v", got)
			}
			got.Parameters, got.BitsPerWeight, got.Quantization, got.Title, got.License = 0, 0, "", "", ""
			if got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestSummarizeStates(t *testing.T) {
	for kind, hybrid := range map[toygguf.Kind]bool{toygguf.Mamba: false, toygguf.Jamba: true} {
		f, err := Open(write(t, toygguf.Spec{Kind: kind}))
		if err != nil {
			t.Fatal(err)
		}
		s, err := f.Summarize()
		if err != nil || !s.Recurrent && !s.Hybrid || s.Hybrid != hybrid {
			t.Errorf("%s: recurrent %v, hybrid %v, %v", kind, s.Recurrent, s.Hybrid, err)
		}
	}
}

func TestParts(t *testing.T) {
	got, err := Parts("/d/big-00002-of-00003.gguf")
	want := []string{"/d/big-00001-of-00003.gguf", "/d/big-00002-of-00003.gguf", "/d/big-00003-of-00003.gguf"}
	if err != nil || len(got) != 3 || got[0] != want[0] || got[2] != want[2] {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"x-00001-of-99999.gguf", "x-00004-of-00003.gguf", "x-00000-of-00003.gguf"} {
		if _, err := Parts(bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if p, _ := Parts("plain.gguf"); len(p) != 1 || p[0] != "plain.gguf" {
		t.Errorf("got %q", p)
	}
}

func TestOpenSplit(t *testing.T) {
	dir := t.TempDir()
	whole := write(t, toygguf.Spec{Kind: toygguf.Llama})
	first := filepath.Join(dir, "m-00001-of-00002.gguf")
	if err := os.Rename(whole, first); err != nil {
		t.Fatal(err)
	}
	// The name promises two parts, the file says it is whole.
	if _, err := Open(first); !errors.Is(err, ErrMalformed) {
		t.Errorf("a whole file under the name of a part: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "none.gguf")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrNotGGUF) {
		t.Errorf("directory: %v", err)
	}
}

// splitPart writes part no of count, with one tensor of 32 f32.
func splitPart(t *testing.T, dir string, no, count, says uint32) string {
	t.Helper()
	b := header(1, 4,
		"general.architecture", typeString, "llama",
		"split.no", typeUint32, no, "split.count", typeUint32, says, "split.tensors.count", typeUint32, count,
		"blk."+string(rune('0'+no))+".w", uint32(1), uint64(32), uint32(0), uint64(0))
	b = pad(b, 32-len(b)%32+128)
	p := filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", no+1, count))
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOpenAllParts(t *testing.T) {
	dir := t.TempDir()
	first := splitPart(t, dir, 0, 2, 2)
	if _, err := Open(first); !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), "m-00002-of-00002.gguf is missing") {
		t.Errorf("missing part: %v", err)
	}
	second := splitPart(t, dir, 1, 2, 2)
	f, err := Open(second)
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.Summarize()
	if err != nil || len(f.Parts) != 2 || f.Parts[0] != first || s.Parameters != 64 {
		t.Errorf("parts %q, %d parameters, %v", f.Parts, s.Parameters, err)
	}
	splitPart(t, dir, 1, 2, 3)
	if _, err := Open(first); !errors.Is(err, ErrMalformed) {
		t.Errorf("a part of another split: %v", err)
	}
}
