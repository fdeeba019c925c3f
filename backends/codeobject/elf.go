package codeobject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrFormat is behind every error about a file that is not what it should be.
var ErrFormat = errors.New("unexpected format")

func formatErr(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

const (
	machineX8664  = 62
	machineAMDGPU = 224
	typeNote      = 7
	maxSections   = 1 << 16
	maxStrings    = 1 << 20
)

// section is an ELF section inside the file's bounds.
type section struct {
	name               string
	kind               uint32
	addr, offset, size uint64
	link               uint32
}

// elfFile is the part of a 64-bit little-endian ELF file that matters here.
type elfFile struct {
	r        io.ReaderAt
	size     int64
	machine  uint16
	abi      byte // e_ident[8]; for AMDGPU 2, 3, 4: code object version 4, 5, 6
	flags    uint32
	sections []section
}

// parseELF reads header and section table. debug/elf is not used because it makes no promise about hostile files.
func parseELF(r io.ReaderAt, size int64) (*elfFile, error) {
	var h [64]byte
	if err := readAt(r, size, h[:], 0); err != nil {
		return nil, err
	}
	if string(h[:4]) != "\x7fELF" || h[4] != 2 || h[5] != 1 {
		return nil, formatErr("not a 64-bit little-endian ELF file")
	}
	le := binary.LittleEndian
	f := &elfFile{r: r, size: size, machine: le.Uint16(h[18:]), abi: h[8], flags: le.Uint32(h[48:])}
	shoff, entsize := le.Uint64(h[40:]), le.Uint16(h[58:])
	count, strIndex := uint64(le.Uint16(h[60:])), uint64(le.Uint16(h[62:]))
	if shoff == 0 {
		return f, nil // stripped of its section table
	}
	if entsize != 64 {
		return nil, formatErr("section headers of %d bytes", entsize)
	}
	if count == 0 || strIndex == 0xffff { // the real numbers stand in section 0
		var first [64]byte
		if err := readAt(r, size, first[:], shoff); err != nil {
			return nil, err
		}
		if count == 0 {
			count = le.Uint64(first[32:])
		}
		if strIndex == 0xffff {
			strIndex = uint64(le.Uint32(first[40:]))
		}
	}
	if count > maxSections || strIndex >= count {
		return nil, formatErr("%d sections, names in number %d", count, strIndex)
	}
	table := make([]byte, count*64)
	if err := readAt(r, size, table, shoff); err != nil {
		return nil, err
	}
	return f, f.readSections(table, strIndex)
}

func (f *elfFile) readSections(table []byte, strIndex uint64) error {
	le := binary.LittleEndian
	names := make([]uint32, len(table)/64)
	f.sections = make([]section, len(names))
	for i := range f.sections {
		e := table[i*64:]
		names[i] = le.Uint32(e)
		f.sections[i] = section{kind: le.Uint32(e[4:]), addr: le.Uint64(e[16:]), offset: le.Uint64(e[24:]), size: le.Uint64(e[32:]), link: le.Uint32(e[40:])}
	}
	str := f.sections[strIndex]
	strings, err := f.bytes(str, maxStrings)
	if err != nil {
		return fmt.Errorf("section names: %w", err)
	}
	for i := range f.sections {
		f.sections[i].name = cString(strings, uint64(names[i]))
	}
	return nil
}

func (f *elfFile) section(name string) (section, bool) {
	for _, s := range f.sections {
		if s.name == name {
			return s, true
		}
	}
	return section{}, false
}

// bytes reads a section of at most most bytes.
func (f *elfFile) bytes(s section, most uint64) ([]byte, error) {
	const typeNoBits = 8
	if s.kind == typeNoBits {
		return nil, nil
	}
	if s.size > most {
		return nil, formatErr("section %s has %d bytes, more than %d", s.name, s.size, most)
	}
	// Checked before the allocation: a short file must not cost a large buffer.
	if s.offset > uint64(f.size) || s.size > uint64(f.size)-s.offset {
		return nil, formatErr("section %s lies outside the file", s.name)
	}
	b := make([]byte, s.size)
	return b, readAt(f.r, f.size, b, s.offset)
}

// reader gives random access to a section, cut to what the file holds.
func (f *elfFile) reader(s section) (*io.SectionReader, error) {
	if s.offset > uint64(f.size) {
		return nil, formatErr("section %s lies outside the file", s.name)
	}
	return io.NewSectionReader(f.r, int64(s.offset), int64(min(s.size, uint64(f.size)-s.offset))), nil
}

// needed lists DT_NEEDED, the libraries the file wants.
func (f *elfFile) needed() ([]string, error) {
	dyn, ok := f.section(".dynamic")
	if !ok || int(dyn.link) >= len(f.sections) {
		return nil, nil
	}
	entries, err := f.bytes(dyn, maxStrings)
	if err != nil {
		return nil, err
	}
	strtab, err := f.bytes(f.sections[dyn.link], 16*maxStrings)
	if err != nil {
		return nil, err
	}
	var libs []string
	const tagNull, tagNeeded, mostLibs = 0, 1, 256
	for ; len(entries) >= 16 && len(libs) < mostLibs; entries = entries[16:] {
		switch binary.LittleEndian.Uint64(entries) {
		case tagNull:
			return libs, nil
		case tagNeeded:
			if name := cString(strtab, binary.LittleEndian.Uint64(entries[8:])); name != "" {
				libs = append(libs, name)
			}
		}
	}
	return libs, nil
}

// cString is the NUL-terminated string at offset, "" outside the table.
func cString(table []byte, offset uint64) string {
	if offset >= uint64(len(table)) {
		return ""
	}
	s, _, _ := strings.Cut(string(table[offset:min(uint64(len(table)), offset+4096)]), "\x00")
	return s
}

// readAt fills b from offset, or says why not.
func readAt(r io.ReaderAt, size int64, b []byte, offset uint64) error {
	if offset > uint64(size) || uint64(len(b)) > uint64(size)-offset {
		return formatErr("%d bytes at offset %d of a file of %d bytes", len(b), offset, size)
	}
	_, err := io.ReadFull(io.NewSectionReader(r, int64(offset), int64(len(b))), b)
	return err
}
