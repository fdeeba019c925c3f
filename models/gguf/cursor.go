package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// GGUF value types, as stored.
const (
	typeUint8 uint32 = iota
	typeInt8
	typeUint16
	typeInt16
	typeUint32
	typeInt32
	typeFloat32
	typeBool
	typeString
	typeArray
	typeUint64
	typeInt64
	typeFloat64
)

// width is the size in bytes of a scalar type, 0 for others.
func width(t uint32) int64 {
	switch t {
	case typeUint8, typeInt8, typeBool:
		return 1
	case typeUint16, typeInt16:
		return 2
	case typeUint32, typeInt32, typeFloat32:
		return 4
	case typeUint64, typeInt64, typeFloat64:
		return 8
	}
	return 0
}

// cursor reads little-endian fields from a file and refuses to go past its end. Nothing is allocated by a length that
// the remaining bytes do not cover.
type cursor struct {
	name string
	size int64
	pos  int64
	r    *bufio.Reader
}

func newCursor(r io.ReaderAt, size int64, name string) *cursor {
	return &cursor{name: name, size: size, r: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 64<<10)}
}

func (c *cursor) left() uint64 { return uint64(c.size - c.pos) }

func (c *cursor) bad(field string, kind error, format string, args ...any) error {
	return c.badAt(c.pos, field, kind, format, args...)
}

func (c *cursor) badAt(at int64, field string, kind error, format string, args ...any) error {
	return &FormatError{Path: c.name, Field: field, Offset: at, Kind: kind, Reason: fmt.Sprintf(format, args...)}
}

func (c *cursor) whole(kind error, format string, args ...any) error {
	return &FormatError{Path: c.name, Kind: kind, Reason: fmt.Sprintf(format, args...)}
}

func (c *cursor) bytes(b []byte, field string) error {
	if uint64(len(b)) > c.left() {
		return c.bad(field, ErrTruncated, "needs %d bytes, the file ends after %d", len(b), c.left())
	}
	n, err := io.ReadFull(c.r, b)
	if err != nil {
		return c.readFailed(field, err)
	}
	c.pos += int64(n)
	return nil
}

// readFailed turns an early end (the file shrank while it was read) into a FormatError and keeps other causes.
func (c *cursor) readFailed(field string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return c.bad(field, ErrTruncated, "the file became shorter while it was read")
	}
	return fmt.Errorf("%s: read %s: %w", c.name, field, err)
}

func (c *cursor) skip(n uint64, field string) error {
	if n > c.left() {
		return c.bad(field, ErrTruncated, "needs %d bytes, the file ends after %d", n, c.left())
	}
	for n > 0 {
		d, err := c.r.Discard(int(min(n, 1<<30)))
		c.pos += int64(d)
		n -= uint64(d)
		if err != nil {
			return c.readFailed(field, err)
		}
	}
	return nil
}

func (c *cursor) u32(field string) (uint32, error) {
	var b [4]byte
	err := c.bytes(b[:], field)
	return binary.LittleEndian.Uint32(b[:]), err
}

func (c *cursor) u64(field string) (uint64, error) {
	var b [8]byte
	err := c.bytes(b[:], field)
	return binary.LittleEndian.Uint64(b[:]), err
}

// count reads an element count and refuses one that the rest of the file, at least each bytes an element, cannot hold.
func (c *cursor) count(field string, each, limit uint64) (uint64, error) {
	n, err := c.u64(field)
	switch {
	case err != nil:
		return 0, err
	case n > limit:
		return 0, c.bad(field, ErrMalformed, "is %d, at most %d are allowed", n, limit)
	case n > c.left()/each:
		return 0, c.bad(field, ErrTruncated, "is %d, the remaining %d bytes cannot hold that many", n, c.left())
	}
	return n, nil
}

// str reads a string of at most limit bytes.
func (c *cursor) str(field string, limit uint64) (string, error) {
	n, err := c.u64(field)
	switch {
	case err != nil:
		return "", err
	case n > c.left():
		return "", c.bad(field, ErrTruncated, "is %d bytes long, the file ends after %d", n, c.left())
	case n > limit:
		return "", c.bad(field, ErrMalformed, "is %d bytes long, at most %d are allowed", n, limit)
	}
	b := make([]byte, n)
	if err := c.bytes(b, field); err != nil {
		return "", err
	}
	return string(b), nil
}

// value is what a scalar was: its integer value (unsigned and non-negative signed types), or a string's length.
type value struct {
	n     uint64
	isInt bool
}

func (c *cursor) scalar(field string, t uint32) (value, error) {
	if t == typeString {
		n, err := c.u64(field)
		if err != nil {
			return value{}, err
		}
		return value{n: n}, c.skip(n, field)
	}
	w := width(t)
	if w == 0 {
		return value{}, c.bad(field, ErrUnsupported, "has the unknown value type %d", t)
	}
	var b [8]byte
	if err := c.bytes(b[:w], field); err != nil {
		return value{}, err
	}
	v := value{n: binary.LittleEndian.Uint64(b[:])}
	switch t {
	case typeUint8, typeUint16, typeUint32, typeUint64:
		v.isInt = true
	case typeInt8, typeInt16, typeInt32, typeInt64:
		v.isInt = b[w-1]&0x80 == 0
	case typeBool:
		if b[0] > 1 {
			return v, c.bad(field, ErrMalformed, "is a boolean of value %d", b[0])
		}
	}
	return v, nil
}

// maxLayerArray bounds the arrays that the parser keeps in memory, 16 bytes an element; llama.cpp allows 512 layers.
const maxLayerArray = 1 << 16

// perLayer tells the keys whose arrays the parser keeps although it skips large ones.
func perLayer(key string) bool {
	for _, s := range []string{".feed_forward_length", ".attention.head_count", ".attention.head_count_kv", ".attention.sliding_window_pattern"} {
		if strings.HasSuffix(key, s) {
			return true
		}
	}
	return false
}

// array skips an array. Arrays of arrays exist in the format's text and in no model; they are refused because every
// level multiplies the work that a small header can ask for.
func (c *cursor) array(field string) error {
	t, err := c.u32(field + ".type")
	if err != nil {
		return err
	}
	n, err := c.u64(field + ".length")
	if err != nil {
		return err
	}
	switch {
	case n > maxLayerArray && perLayer(field):
		return c.bad(field+".length", ErrMalformed, "is %d, at most %d layers are possible", n, maxLayerArray)
	case t == typeString:
		if n > c.left()/8 {
			return c.bad(field+".length", ErrTruncated, "is %d, the remaining %d bytes cannot hold that many", n, c.left())
		}
		for range n {
			l, err := c.u64(field)
			if err != nil {
				return err
			}
			if err := c.skip(l, field); err != nil {
				return err
			}
		}
		return nil
	case width(t) == 0:
		return c.bad(field+".type", ErrUnsupported, "is an array of value type %d", t)
	case n > c.left()/uint64(width(t)):
		return c.bad(field+".length", ErrTruncated, "is %d, the remaining %d bytes cannot hold that many", n, c.left())
	}
	return c.skip(n*uint64(width(t)), field)
}
