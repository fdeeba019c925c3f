package gguf

import (
	"fmt"
	"io"
	"math/bits"
	"os"
	"strings"

	ggufparser "github.com/gpustack/gguf-parser-go"
)

// Bounds that hold whatever the file size. The first three are llama.cpp's own (ggml.h, gguf.cpp); the counts are far
// above any known model (DeepSeek-V3 has 1025 tensors and 64 keys a file) and keep a crafted header cheap.
const (
	maxDims       = 4
	maxTensorName = 63
	maxKey        = 65535
	maxKeys       = 1 << 16
	maxTensors    = 1 << 20
	maxAlignment  = 1 << 20
	maxLayers     = 4096 // the parser walks block_count layers; llama.cpp allows 512
)

// Smallest encodings in bytes, which bound the counts: a key-value pair is a length, one byte of key, a type and one byte
// of value; a tensor is a length, one byte of name, the dimension count, one dimension, a type and an offset.
const (
	minKeyBytes    = 8 + 1 + 4 + 1
	minTensorBytes = 8 + 1 + 4 + 8 + 4 + 8
)

// Header is what Check learned on its way.
type Header struct {
	Version    uint32
	Keys       int
	Tensors    int
	Alignment  uint64
	DataOffset int64 // where tensor data starts, bytes
	DataBytes  int64 // the end of the last tensor, bytes from DataOffset
	// SplitNo and SplitCount place a part of a split model; SplitCount is 0 or 1 for a whole one.
	SplitNo, SplitCount int
}

// Check walks the header of the file at path and refuses it when a field does not fit the file. Errors are
// *FormatError, or those of the file system.
func Check(path string) (Header, error) {
	f, err := os.Open(path)
	if err != nil {
		return Header{}, fmt.Errorf("open model: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Header{}, fmt.Errorf("stat model: %w", err)
	}
	if !st.Mode().IsRegular() {
		return Header{}, &FormatError{Path: path, Reason: "is no regular file", Kind: ErrNotGGUF}
	}
	return CheckReader(f, st.Size(), path)
}

// CheckReader is Check on size bytes of r; name is used in errors.
func CheckReader(r io.ReaderAt, size int64, name string) (Header, error) {
	c := &checker{cursor: newCursor(r, size, name)}
	if err := c.header(); err != nil {
		return Header{}, err
	}
	return c.h, nil
}

type checker struct {
	*cursor
	h Header
}

func (c *checker) header() error {
	nTensors, nKeys, err := c.preamble()
	if err != nil {
		return err
	}
	seen := make(map[string]struct{}, min(nKeys, 256))
	for i := range nKeys {
		if err := c.pair(int(i), seen); err != nil {
			return err
		}
	}
	infos := make([]tensor, 0, min(nTensors, 4096))
	names := make(map[string]struct{}, min(nTensors, 4096))
	for i := range nTensors {
		t, err := c.tensor(int(i))
		if err != nil {
			return err
		}
		if _, dup := names[t.name]; dup {
			return c.bad(t.field+".name", ErrMalformed, "%q appears twice", t.name)
		}
		names[t.name] = struct{}{}
		infos = append(infos, t)
	}
	c.h.Keys, c.h.Tensors = int(nKeys), int(nTensors)
	return c.data(infos)
}

// preamble reads magic, version and the two counts.
func (c *checker) preamble() (nTensors, nKeys uint64, err error) {
	var magic [4]byte
	if c.size < 24 {
		if n := min(c.size, 4); n > 0 && c.bytes(magic[:n], "magic") == nil && string(magic[:n]) != "GGUF"[:n] {
			return 0, 0, c.whole(ErrNotGGUF, "starts with %q, not with \"GGUF\"", magic[:n])
		}
		return 0, 0, c.whole(ErrTruncated, "has %d bytes, a header needs 24", c.size)
	}
	if err := c.bytes(magic[:], "magic"); err != nil {
		return 0, 0, err
	}
	switch string(magic[:]) {
	case "GGUF":
	case "FUGG":
		return 0, 0, c.whole(ErrUnsupported, "is a big-endian file")
	default:
		return 0, 0, c.whole(ErrNotGGUF, "starts with %q, not with \"GGUF\"", magic[:])
	}
	v, err := c.u32("version")
	switch {
	case err != nil:
		return 0, 0, err
	case v > 0 && v&0xffff == 0:
		return 0, 0, c.bad("version", ErrUnsupported, "%#x looks like a big-endian file", v)
	case v < 2 || v > 3:
		return 0, 0, c.bad("version", ErrUnsupported, "is %d, versions 2 and 3 are known", v)
	}
	c.h.Version = v
	if nTensors, err = c.count("tensor_count", minTensorBytes, maxTensors); err != nil {
		return 0, 0, err
	}
	nKeys, err = c.count("metadata_kv_count", minKeyBytes, maxKeys)
	return nTensors, nKeys, err
}

// pair reads one key and its value, keeping only what places tensor data.
func (c *checker) pair(i int, seen map[string]struct{}) error {
	field := fmt.Sprintf("metadata[%d]", i)
	key, err := c.str(field+".key", maxKey)
	if err != nil {
		return err
	}
	if key == "" {
		return c.bad(field+".key", ErrMalformed, "is empty")
	}
	if _, dup := seen[key]; dup {
		return c.bad(field+".key", ErrMalformed, "%q appears twice", key)
	}
	seen[key] = struct{}{}
	t, err := c.u32(key + ".type")
	if err != nil {
		return err
	}
	if t == typeArray {
		return c.array(key)
	}
	v, err := c.scalar(key, t)
	if err != nil {
		return err
	}
	if strings.HasSuffix(key, ".block_count") && (!v.isInt || v.n > maxLayers) {
		return c.bad(key, ErrMalformed, "must be an integer up to %d", maxLayers)
	}
	switch key {
	case "general.architecture":
		if t != typeString || v.n == 0 {
			return c.bad(key, ErrMalformed, "must be a non-empty string")
		}
	case "general.alignment":
		if !v.isInt || v.n == 0 || v.n > maxAlignment || bits.OnesCount64(v.n) != 1 {
			return c.bad(key, ErrMalformed, "must be a power of two up to %d", maxAlignment)
		}
		c.h.Alignment = v.n
	case "split.no", "split.count", "split.tensors.count":
		// The parser allocates by split.tensors.count, so it is bounded like tensor_count.
		if !v.isInt || v.n > maxTensors {
			return c.bad(key, ErrMalformed, "must be an integer up to %d", maxTensors)
		}
		switch key {
		case "split.no":
			c.h.SplitNo = int(v.n)
		case "split.count":
			c.h.SplitCount = int(v.n)
		}
	}
	return nil
}

type tensor struct {
	name, field   string
	at            int64 // of the offset field
	offset, bytes uint64
}

// tensor reads one tensor's description and computes its size.
func (c *checker) tensor(i int) (tensor, error) {
	t := tensor{field: fmt.Sprintf("tensor[%d]", i)}
	var err error
	if t.name, err = c.str(t.field+".name", maxTensorName); err != nil {
		return t, err
	}
	nd, err := c.u32(t.field + ".n_dims")
	if err != nil {
		return t, err
	}
	if nd == 0 || nd > maxDims {
		return t, c.bad(t.field+".n_dims", ErrMalformed, "is %d, 1 to %d are allowed", nd, maxDims)
	}
	elements, row := uint64(1), uint64(0)
	for d := range nd {
		ne, err := c.u64(fmt.Sprintf("%s.dims[%d]", t.field, d))
		if err != nil {
			return t, err
		}
		hi, lo := bits.Mul64(elements, ne)
		if ne == 0 || hi != 0 || lo > 1<<62 {
			return t, c.bad(fmt.Sprintf("%s.dims[%d]", t.field, d), ErrMalformed, "is %d, which makes an impossible size", ne)
		}
		if elements = lo; d == 0 {
			row = ne
		}
	}
	typ, err := c.u32(t.field + ".type")
	if err != nil {
		return t, err
	}
	trait, ok := ggufparser.GGMLType(typ).Trait()
	if !ok || trait.BlockSize == 0 {
		return t, c.bad(t.field+".type", ErrUnsupported, "is ggml type %d, which this version does not know", typ)
	}
	if row%trait.BlockSize != 0 {
		return t, c.bad(t.field+".dims[0]", ErrMalformed, "is %d, no multiple of the type's block of %d", row, trait.BlockSize)
	}
	hi, lo := bits.Mul64(elements/trait.BlockSize, trait.TypeSize)
	if hi != 0 || lo > uint64(c.size) {
		return t, c.bad(t.field+".dims", ErrTruncated, "describe more bytes than the file has (%d)", c.size)
	}
	t.bytes = lo
	t.at = c.pos
	if t.offset, err = c.u64(t.field + ".offset"); err != nil {
		return t, err
	}
	return t, nil
}

// data checks that every tensor lies inside the file.
func (c *checker) data(infos []tensor) error {
	if c.h.Alignment == 0 {
		c.h.Alignment = 32 // GGUF's default
	}
	align := int64(c.h.Alignment)
	c.h.DataOffset = (c.pos + align - 1) / align * align
	room := max(c.size-c.h.DataOffset, 0)
	for _, t := range infos {
		switch {
		case t.offset%c.h.Alignment != 0:
			return c.badAt(t.at, t.field+".offset", ErrMalformed, "is %d, no multiple of the alignment %d", t.offset, align)
		case t.offset > uint64(room) || t.bytes > uint64(room)-t.offset:
			return c.badAt(t.at, t.field+".offset", ErrTruncated,
				"%s needs bytes %d to %d of the tensor data, the file has %d", t.name, t.offset, t.offset+t.bytes, room)
		}
		c.h.DataBytes = max(c.h.DataBytes, int64(t.offset+t.bytes))
	}
	return nil
}
