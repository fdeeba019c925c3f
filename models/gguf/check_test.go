package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hearth/internal/toygguf"
)

// toy returns the bytes of a small well-formed model.
func toy(t testing.TB) []byte {
	t.Helper()
	p := filepath.Join(t.TempDir(), "toy.gguf")
	err := toygguf.Write(p, toygguf.Spec{Kind: toygguf.Llama, Vocab: toygguf.MinVocab, Embd: 32, Layers: 1, Heads: 2, HeadsKV: 1, Context: 2048})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// header writes a GGUF v3 header of the given counts and body.
func header(tensors, keys uint64, body ...any) []byte {
	b := []byte("GGUF\x03\x00\x00\x00")
	b = binary.LittleEndian.AppendUint64(b, tensors)
	b = binary.LittleEndian.AppendUint64(b, keys)
	for _, v := range body {
		switch v := v.(type) {
		case string:
			b = binary.LittleEndian.AppendUint64(b, uint64(len(v)))
			b = append(b, v...)
		case uint32:
			b = binary.LittleEndian.AppendUint32(b, v)
		case uint64:
			b = binary.LittleEndian.AppendUint64(b, v)
		case []byte:
			b = append(b, v...)
		}
	}
	return b
}

func pad(b []byte, n int) []byte { return append(b, make([]byte, n)...) }

func TestCheckRefuses(t *testing.T) {
	const huge = uint64(1) << 60
	arch := []any{"general.architecture", typeString, "llama"}
	tensor := func(ne0, ne1 uint64, typ uint32, off uint64) []any {
		return append(arch, "blk.0.w", uint32(2), ne0, ne1, typ, off)
	}
	cases := []struct {
		name  string
		file  []byte
		kind  error
		field string
	}{
		{"empty", nil, ErrTruncated, ""},
		{"four bytes", []byte("GGUF"), ErrTruncated, ""},
		{"html", []byte("<html>404"), ErrNotGGUF, ""},
		{"long html", bytes.Repeat([]byte("<html>"), 100), ErrNotGGUF, ""},
		{"big endian", pad([]byte("GGUF\x00\x00\x00\x03"), 64), ErrUnsupported, "version"},
		{"version 1", pad([]byte("GGUF\x01\x00\x00\x00"), 64), ErrUnsupported, "version"},
		{"version 9", pad([]byte("GGUF\x09\x00\x00\x00"), 64), ErrUnsupported, "version"},
		{"absurd tensors", pad(header(huge, 0), 64), ErrMalformed, "tensor_count"},
		{"more tensors than bytes", pad(header(1000, 0), 64), ErrTruncated, "tensor_count"},
		{"absurd keys", pad(header(0, huge), 64), ErrMalformed, "metadata_kv_count"},
		{"more keys than bytes", pad(header(0, 1000), 64), ErrTruncated, "metadata_kv_count"},
		{"key longer than the file", pad(header(0, 1, huge), 64), ErrTruncated, "metadata[0].key"},
		{"empty key", pad(header(0, 1, ""), 64), ErrMalformed, "metadata[0].key"},
		{"duplicate key", pad(header(0, 2, append(arch, arch...)...), 64), ErrMalformed, "metadata[1].key"},
		{"unknown type", pad(header(0, 1, "k", uint32(77)), 64), ErrUnsupported, "k"},
		{"string longer than the file", pad(header(0, 1, "k", typeString, huge), 64), ErrTruncated, "k"},
		{"bool of 2", pad(header(0, 1, "k", typeBool, []byte{2}), 64), ErrMalformed, "k"},
		{"absurd array", pad(header(0, 1, "k", typeArray, typeUint32, huge), 64), ErrTruncated, "k.length"},
		{"absurd array of strings", pad(header(0, 1, "k", typeArray, typeString, huge), 64), ErrTruncated, "k.length"},
		{"array of arrays", pad(header(0, 1, "k", typeArray, typeArray, uint64(1)), 64), ErrUnsupported, "k.type"},
		{"string in an array", pad(header(0, 1, "k", typeArray, typeString, uint64(1), huge), 64), ErrTruncated, "k"},
		{"too many layers", pad(header(0, 1, "x.attention.head_count", typeArray, typeUint8, uint64(maxLayerArray+1)), maxLayerArray+64),
			ErrMalformed, "x.attention.head_count.length"},
		{"absurd layers", pad(header(0, 1, "llama.block_count", typeUint32, uint32(1<<31)), 64), ErrMalformed, "llama.block_count"},
		{"alignment 3", pad(header(0, 1, "general.alignment", typeUint32, uint32(3)), 64), ErrMalformed, "general.alignment"},
		{"alignment 0", pad(header(0, 1, "general.alignment", typeUint32, uint32(0)), 64), ErrMalformed, "general.alignment"},
		{"architecture of a number", pad(header(0, 1, "general.architecture", typeUint32, uint32(0)), 64), ErrMalformed, "general.architecture"},
		{"absurd split", pad(header(0, 1, "split.tensors.count", typeUint64, huge), 64), ErrMalformed, "split.tensors.count"},
		{"negative split", pad(header(0, 1, "split.count", typeInt32, uint32(1<<31)), 64), ErrMalformed, "split.count"},
		{"long tensor name", pad(header(1, 1, append(arch, strings.Repeat("n", 64))...), 256), ErrMalformed, "tensor[0].name"},
		{"no dims", pad(header(1, 1, append(arch, "w", uint32(0))...), 256), ErrMalformed, "tensor[0].n_dims"},
		{"nine dims", pad(header(1, 1, append(arch, "w", uint32(9))...), 256), ErrMalformed, "tensor[0].n_dims"},
		{"dims overflow", pad(header(1, 1, tensor(1<<33, 1<<33, 0, 0)...), 256), ErrMalformed, "tensor[0].dims[1]"},
		{"dim of zero", pad(header(1, 1, tensor(0, 1, 0, 0)...), 256), ErrMalformed, "tensor[0].dims[0]"},
		{"removed type", pad(header(1, 1, tensor(32, 1, 4, 0)...), 256), ErrUnsupported, "tensor[0].type"},
		{"unknown tensor type", pad(header(1, 1, tensor(32, 1, 999, 0)...), 256), ErrUnsupported, "tensor[0].type"},
		{"row not of blocks", pad(header(1, 1, tensor(33, 1, 2, 0)...), 256), ErrMalformed, "tensor[0].dims[0]"},
		{"larger than the file", pad(header(1, 1, tensor(1<<20, 1<<10, 0, 0)...), 256), ErrTruncated, "tensor[0].dims"},
		{"offset past the end", pad(header(1, 1, tensor(32, 1, 0, 1<<40)...), 256), ErrTruncated, "tensor[0].offset"},
		{"offset that wraps", pad(header(1, 1, tensor(32, 1, 0, ^uint64(31))...), 256), ErrTruncated, "tensor[0].offset"},
		{"offset not aligned", pad(header(1, 1, tensor(32, 1, 0, 8)...), 512), ErrMalformed, "tensor[0].offset"},
		{"data cut by one", pad(header(1, 1, tensor(32, 1, 0, 0)...), 127), ErrTruncated, "tensor[0].offset"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := CheckReader(bytes.NewReader(c.file), int64(len(c.file)), "m.gguf")
			fe, ok := errors.AsType[*FormatError](err)
			if !ok {
				t.Fatalf("got %v, want a FormatError", err)
			}
			if !errors.Is(err, c.kind) || fe.Field != c.field {
				t.Errorf("got %v in %q, want %v in %q: %v", fe.Kind, fe.Field, c.kind, c.field, err)
			}
			if !strings.HasPrefix(err.Error(), "m.gguf: ") {
				t.Errorf("%q does not name the file", err)
			}
		})
	}
}

func TestCheckToy(t *testing.T) {
	b := toy(t)
	h, err := CheckReader(bytes.NewReader(b), int64(len(b)), "toy")
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != 3 || h.Alignment != 32 || h.Tensors != 12 || h.Keys < 15 {
		t.Errorf("header %+v", h)
	}
	if end := h.DataOffset + h.DataBytes; end > int64(len(b)) || end < int64(len(b))-32 {
		t.Errorf("data ends at %d, the file at %d", end, len(b))
	}
}

// Every prefix of a model is refused, and never by a panic.
func TestCheckEveryTruncation(t *testing.T) {
	b := toy(t)
	h, err := CheckReader(bytes.NewReader(b), int64(len(b)), "toy")
	if err != nil {
		t.Fatal(err)
	}
	end := int(h.DataOffset + h.DataBytes)
	for n := range end {
		if n > int(h.DataOffset)+64 && n < end-64 {
			continue // inside tensor data nothing changes
		}
		if _, err := CheckReader(bytes.NewReader(b[:n]), int64(n), "toy"); !errors.Is(err, ErrTruncated) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
}

// FuzzCheck holds that Check neither panics nor lets the parser panic or fail on what it accepted without saying so.
func FuzzCheck(f *testing.F) {
	f.Add(toy(f))
	f.Add(header(0, 0))
	f.Add(pad(header(1, 1, "general.architecture", typeString, "llama", "w", uint32(1), uint64(32), uint32(0), uint64(0)), 256))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := CheckReader(bytes.NewReader(b), int64(len(b)), "fuzz")
		if err != nil {
			if _, ok := errors.AsType[*FormatError](err); !ok {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		p := filepath.Join(t.TempDir(), "f.gguf")
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(p)
		if err == nil {
			_, err = m.Summarize()
		}
		if _, ok := errors.AsType[*FormatError](err); err != nil && !ok {
			t.Fatalf("untyped error %v", err)
		}
	})
}
