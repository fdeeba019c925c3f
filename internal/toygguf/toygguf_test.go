package toygguf_test

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"hearth/internal/toygguf"
)

var kinds = []toygguf.Kind{toygguf.Llama, toygguf.Gemma3, toygguf.Jamba, toygguf.Mamba, toygguf.Bert}

// reader walks a GGUF header; it fails the test on a short read.
type reader struct {
	t   *testing.T
	b   []byte
	off int
}

func (r *reader) take(n int) []byte {
	r.t.Helper()
	if r.off+n > len(r.b) {
		r.t.Fatalf("file ends at %d, wanted %d bytes at %d", len(r.b), n, r.off)
	}
	r.off += n
	return r.b[r.off-n : r.off]
}
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) str() string { return string(r.take(int(r.u64()))) }

func (r *reader) value(typ uint32) any {
	switch typ {
	case 4, 5, 6:
		return r.u32()
	case 7:
		return r.take(1)[0]
	case 8:
		return r.str()
	case 9:
		et, n := r.u32(), r.u64()
		vs := make([]any, n)
		for i := range vs {
			vs[i] = r.value(et)
		}
		return vs
	}
	r.t.Fatalf("value type %d at %d", typ, r.off)
	return nil
}

func TestFileIsWellFormed(t *testing.T) {
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			if err := toygguf.Write(path, toygguf.Spec{Kind: k, Layers: 2}); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r := &reader{t: t, b: b}
			if m, v := r.u32(), r.u32(); m != 0x46554747 || v != 3 {
				t.Fatalf("magic %x version %d", m, v)
			}
			nTensors, nKV := r.u64(), r.u64()
			kv := map[string]any{}
			for range nKV {
				key := r.str()
				kv[key] = r.value(r.u32())
			}
			if kv["general.architecture"] != string(k) {
				t.Errorf("architecture %v", kv["general.architecture"])
			}
			if n := len(kv["tokenizer.ggml.tokens"].([]any)); n != 1024 {
				t.Errorf("%d tokens, want 1024", n)
			}
			end := uint64(0)
			for range nTensors {
				name, n := r.str(), uint64(4)
				for range r.u32() {
					n *= r.u64()
				}
				r.u32()
				if off := r.u64(); off != end {
					t.Errorf("%s at %d, want %d", name, off, end)
				}
				end += (n + 31) / 32 * 32
			}
			data := (r.off + 31) / 32 * 32
			if got := uint64(len(b) - data); got != end {
				t.Errorf("%d bytes of tensor data, want %d", got, end)
			}
		})
	}
}

func TestSameSpecSameBytes(t *testing.T) {
	sum := func(s toygguf.Spec) [32]byte {
		t.Helper()
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := toygguf.Write(path, s); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(b)
	}
	s := toygguf.Spec{Kind: toygguf.Jamba, Layers: 2, Extra: map[string]string{"a": "1", "b": "2", "c": "3"}}
	if one, two := sum(s), sum(s); one != two {
		t.Error("two writes differ")
	}
	other := s
	other.Seed = 2
	if sum(s) == sum(other) {
		t.Error("the seed has no effect")
	}
}

func TestImpossibleSpec(t *testing.T) {
	for name, s := range map[string]toygguf.Spec{
		"kind":  {Kind: "gpt9"},
		"vocab": {Kind: toygguf.Llama, Vocab: 10},
		"heads": {Kind: toygguf.Llama, Embd: 100, Heads: 3},
		"neg":   {Kind: toygguf.Llama, FF: -1},
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := toygguf.Write(path, s); !errors.Is(err, toygguf.ErrSpec) {
			t.Errorf("%s: %v, want ErrSpec", name, err)
		}
	}
}

func TestWord(t *testing.T) {
	for i, want := range map[int]string{0: "a", 25: "z", 26: "aa", 27: "ab", 26 + 676: "aaa"} {
		if got := toygguf.Word(i); got != want {
			t.Errorf("Word(%d) = %q, want %q", i, got, want)
		}
	}
}
