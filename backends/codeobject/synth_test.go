package codeobject

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// The helpers below write the smallest files that the parsers accept, by the layouts in the compilers' sources.

// bundleOf builds an uncompressed bundle: each target gets a code object of size bytes with a true ELF head.
func bundleOf(size int, ids ...string) []byte {
	le := binary.LittleEndian
	var head bytes.Buffer
	head.WriteString(bundleMagic)
	put := func(v uint64) { head.Write(le.AppendUint64(nil, v)) }
	put(uint64(len(ids)))
	offset := uint64(pageSize)
	var body []byte
	for _, id := range ids {
		n := uint64(size)
		if strings.HasPrefix(id, "host-") {
			n = 0
		}
		put(offset)
		put(n)
		put(uint64(len(id)))
		head.WriteString(id)
		if n > 0 {
			object := make([]byte, n)
			copy(object, objectHead(id))
			body = append(body, object...)
			offset += n
		}
	}
	out := make([]byte, pageSize, pageSize+len(body))
	copy(out, head.Bytes())
	return append(out, body...)
}

// objectHead is a code object's ELF header for an entry's target.
func objectHead(id string) []byte {
	h := make([]byte, 64)
	copy(h, "\x7fELF\x02\x01\x01\x40\x02")
	binary.LittleEndian.PutUint16(h[18:], machineAMDGPU)
	if t, ok, err := entryTarget(id); ok && err == nil {
		binary.LittleEndian.PutUint32(h[48:], machOf(t.Processor))
	}
	return h
}

func machOf(processor string) uint32 {
	for mach := range uint32(0x100) {
		if processorOf(mach) == processor {
			return mach
		}
	}
	return 0
}

// ccobOf compresses a bundle.
func ccobOf(t testing.TB, version, method uint16, plain []byte) []byte {
	t.Helper()
	var body bytes.Buffer
	var w io.WriteCloser
	if method == methodZlib {
		w = zlib.NewWriter(&body)
	} else {
		z, err := zstd.NewWriter(&body)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	h := le.AppendUint16(le.AppendUint16([]byte(ccobMagic), version), method)
	switch version {
	case 1:
		h = le.AppendUint32(h, uint32(len(plain)))
	case 2:
		h = le.AppendUint32(le.AppendUint32(h, uint32(24+body.Len())), uint32(len(plain)))
	case 3:
		h = le.AppendUint64(le.AppendUint64(h, uint64(32+body.Len())), uint64(len(plain)))
	}
	h = le.AppendUint64(h, 0x0123456789abcdef) // hash, not looked at
	return append(h, body.Bytes()...)
}

// pages joins parts, each at a page start.
func pages(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, make([]byte, int(align(uint64(len(out)), pageSize))-len(out))...)
		out = append(out, p...)
	}
	return out
}

// synthSection is a section of a synthetic library; size, when larger than data, makes a hole behind it.
type synthSection struct {
	name string
	kind uint32
	addr uint64
	data []byte
	size uint64
	link uint32
}

// libraryHead lays out an x86-64 ELF file: header, section table and strings in the first pages, then the sections'
// data. It returns the head, and each section's offset in the file.
func libraryHead(sections []synthSection) (head []byte, offsets []uint64, total uint64) {
	le := binary.LittleEndian
	names := []byte{0}
	nameAt := make([]uint32, len(sections))
	for i, s := range sections {
		nameAt[i] = uint32(len(names))
		names = append(append(names, s.name...), 0)
	}
	strName := uint32(len(names))
	names = append(names, ".shstrtab\x00"...)
	count := len(sections) + 2
	tableAt := uint64(64)
	namesAt := tableAt + uint64(count)*64
	at := align(namesAt+uint64(len(names)), pageSize)
	h := make([]byte, 64)
	copy(h, "\x7fELF\x02\x01\x01")
	le.PutUint16(h[16:], 3)
	le.PutUint16(h[18:], machineX8664)
	le.PutUint64(h[40:], tableAt)
	le.PutUint16(h[58:], 64)
	le.PutUint16(h[60:], uint16(count))
	le.PutUint16(h[62:], uint16(count-1))
	table := make([]byte, 64) // section 0
	add := func(name, kind uint32, addr, offset, size uint64, link uint32) {
		e := make([]byte, 64)
		le.PutUint32(e, name)
		le.PutUint32(e[4:], kind)
		le.PutUint64(e[16:], addr)
		le.PutUint64(e[24:], offset)
		le.PutUint64(e[32:], size)
		le.PutUint32(e[40:], link)
		table = append(table, e...)
	}
	for i, s := range sections {
		size := max(s.size, uint64(len(s.data)))
		offsets = append(offsets, at)
		add(nameAt[i], s.kind, s.addr, at, size, s.link)
		at = align(at+size, pageSize)
	}
	add(strName, 3, 0, namesAt, uint64(len(names)), 0)
	head = append(append(h, table...), names...)
	return head, offsets, at
}

// libraryOf is libraryHead with the data in place.
func libraryOf(sections ...synthSection) []byte {
	head, offsets, total := libraryHead(sections)
	out := make([]byte, total)
	copy(out, head)
	for i, s := range sections {
		copy(out[offsets[i]:], s.data)
	}
	return out
}

func fatbin(data []byte) synthSection {
	return synthSection{name: ".hip_fatbin", kind: 1, addr: 0xc36000, data: data}
}

const hostID = "host-x86_64-unknown-linux-gnu-"

func ids(targets ...string) []string {
	out := []string{hostID}
	for _, t := range targets {
		out = append(out, "hipv4-amdgcn-amd-amdhsa--"+t)
	}
	return out
}
