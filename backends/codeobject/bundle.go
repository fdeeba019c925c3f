package codeobject

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

const (
	bundleMagic = "__CLANG_OFFLOAD_BUNDLE__"
	// Bounds on a bundle's head: real ones have a dozen entries with ids of 40 bytes.
	maxEntries = 1000
	maxIDLen   = 256
)

// entry is one code object of a bundle; offset counts from the bundle's start.
type entry struct {
	id           string
	offset, size uint64
}

// parseBundle reads the head of an uncompressed bundle: magic, count, and for each entry offset, size, length of the id
// and the id itself. It stops reading after the last id.
func parseBundle(r io.Reader) ([]entry, error) {
	var head [len(bundleMagic) + 8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, truncated(err)
	}
	if string(head[:len(bundleMagic)]) != bundleMagic {
		return nil, formatErr("no offload bundle")
	}
	count := binary.LittleEndian.Uint64(head[len(bundleMagic):])
	if count > maxEntries {
		return nil, formatErr("bundle of %d entries", count)
	}
	entries := make([]entry, 0, count)
	for range count {
		var b [24]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, truncated(err)
		}
		idLen := binary.LittleEndian.Uint64(b[16:])
		if idLen > maxIDLen {
			return nil, formatErr("bundle entry with an id of %d bytes", idLen)
		}
		id := make([]byte, idLen)
		if _, err := io.ReadFull(r, id); err != nil {
			return nil, truncated(err)
		}
		entries = append(entries, entry{id: string(id), offset: binary.LittleEndian.Uint64(b[:]), size: binary.LittleEndian.Uint64(b[8:])})
	}
	return entries, nil
}

func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return formatErr("bundle ends in its head")
	}
	return err
}

// extent is how many bytes a bundle takes, the end of its last code object. ok is false when that does not fit in 63 bits.
func extent(entries []entry) (end uint64, ok bool) {
	for _, e := range entries {
		if e.offset > 1<<62 || e.size > 1<<62 {
			return 0, false
		}
		end = max(end, e.offset+e.size)
	}
	return end, true
}

// isBundle says whether b starts a bundle of either kind.
func isBundle(b []byte) bool {
	return bytes.HasPrefix(b, []byte(bundleMagic)) || bytes.HasPrefix(b, []byte(ccobMagic))
}
