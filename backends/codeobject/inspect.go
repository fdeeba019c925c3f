package codeobject

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Library is what a file says about its GPU code.
type Library struct {
	// Targets are those that every bundle has, sorted. Code of one kernel more or less does not make a GPU supported.
	Targets []Target `json:"targets"`
	// Partial are targets that some bundles lack.
	Partial []Target `json:"partial,omitempty"`
	// Bundles counts the offload bundles that were read; Formats says how they are stored ("bundle", "ccob-v2-zstd",
	// "code-object").
	Bundles int      `json:"bundles"`
	Formats []string `json:"formats,omitempty"`
	// Unknown is why the list may not be all, empty when it is: kernels in archives beside the library, a bundle that
	// could not be read.
	Unknown string `json:"unknown,omitempty"`
	// Needed are the shared libraries the file asks for (DT_NEEDED).
	Needed []string `json:"needed,omitempty"`
}

const (
	pageSize = 4096
	// maxBundles bounds the walk; ggml's plugin has 140, rocBLAS a few.
	maxBundles = 8192
	// maxScan bounds the search for the next bundle where sizes do not tell: bytes of the section.
	maxScan = 256 << 20
)

// Inspect reads the targets of a HIP library, of a bundle in a file of its own, or of a single code object, of size bytes. An error means that the file
// cannot be read or is no ELF file; a library whose code cannot be listed is no error, see Library.Unknown.
func Inspect(r io.ReaderAt, size int64) (Library, error) {
	var head [len(bundleMagic)]byte
	if n, _ := r.ReadAt(head[:], 0); isBundle(head[:n]) {
		w := walker{}
		defer w.unpack.close()
		w.walkBundles(io.NewSectionReader(r, 0, size), nil)
		return w.result(), nil
	}
	f, err := parseELF(r, size)
	if err != nil {
		return Library{}, err
	}
	if f.machine == machineAMDGPU {
		return inspectObject(f)
	}
	if f.machine != machineX8664 {
		return Library{}, formatErr("ELF machine %d", f.machine)
	}
	w := walker{file: f}
	defer w.unpack.close()
	w.lib.Needed, err = f.needed()
	if err != nil {
		w.unsure("the needed libraries cannot be read: %v", err)
	}
	w.walk()
	return w.result(), nil
}

// inspectObject answers for a file that is one code object, as rocBLAS has beside it: by e_flags, with the metadata
// note as a witness.
func inspectObject(f *elfFile) (Library, error) {
	t, ok := targetOfFlags(f.flags, f.abi)
	lib := Library{Formats: []string{"code-object"}, Bundles: 1}
	for _, s := range f.sections {
		if s.kind != typeNote {
			continue
		}
		note, err := f.bytes(s, 16*maxStrings)
		if err != nil {
			return Library{}, err
		}
		named, found := noteTarget(note)
		switch {
		case found && !ok:
			t, ok = named, true
		case found && named.Processor != t.Processor:
			lib.Unknown = fmt.Sprintf("e_flags say %s, the metadata %s", t, named)
		}
	}
	if !ok {
		lib.Unknown = fmt.Sprintf("unknown processor number %#x", f.flags&0xff)
		return lib, nil
	}
	lib.Targets = []Target{t}
	return lib, nil
}

// walker collects the bundles of one library.
type walker struct {
	file   *elfFile
	lib    Library
	unpack decompressor
	counts map[Target]int
}

// unsure notes the first reason why the list may be short.
func (w *walker) unsure(format string, args ...any) {
	if w.lib.Unknown == "" {
		w.lib.Unknown = fmt.Sprintf(format, args...)
	}
}

// walk finds the library's bundles.
func (w *walker) walk() {
	if w.kpack() {
		w.unsure("the kernels lie in .kpack archives beside the library")
		return
	}
	s, ok := w.file.section(".hip_fatbin")
	if !ok {
		w.unsure("the file has no .hip_fatbin section")
		return
	}
	fat, err := w.file.reader(s)
	if err != nil {
		w.unsure("%v", err)
		return
	}
	w.walkBundles(fat, w.starts(s))
	if w.lib.Bundles == 0 {
		w.unsure("the .hip_fatbin section holds no bundle")
	}
}

// walkBundles reads the bundles in fat, one after the other. starts, when not empty, are all their offsets.
func (w *walker) walkBundles(fat *io.SectionReader, starts []int64) {
	w.counts = map[Target]int{}
	var at int64
	for w.lib.Bundles < maxBundles {
		start, ok := next(fat, starts, at)
		if !ok {
			break
		}
		end, err := w.bundle(fat, start)
		if err != nil {
			w.unsure("bundle at %#x: %v", start, err)
		}
		if err != nil || end <= start {
			end = start + 1 // the size is not known: search on
		}
		at = end
	}
}

// kpack says whether the library keeps its kernels in archives of their own.
func (w *walker) kpack() bool {
	if _, ok := w.file.section(".rocm_kpack_ref"); ok {
		return true
	}
	s, ok := w.file.section(".hipFatBinSegment")
	if !ok {
		return false
	}
	b, err := w.file.bytes(s, maxStrings)
	return err == nil && bytes.HasPrefix(b, []byte("KPIH")) // 0x4b504948, little-endian
}

// starts lists the offsets in the section that the wrappers point to, sorted. The pointers are filled in at load, so
// they stand in the relocations.
func (w *walker) starts(fat section) []int64 {
	const sizeRela, relative, mostRela, sizeWrapper = 24, 8, 64 << 20, 24
	segment, ok1 := w.file.section(".hipFatBinSegment")
	rela, ok2 := w.file.section(".rela.dyn")
	if !ok1 || !ok2 {
		return nil
	}
	b, err := w.file.bytes(rela, mostRela)
	if err != nil {
		return nil
	}
	var starts []int64
	le := binary.LittleEndian
	for ; len(b) >= sizeRela; b = b[sizeRela:] {
		at, info, addend := le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:])
		inSegment := at >= segment.addr && at-segment.addr < segment.size && (at-segment.addr)%sizeWrapper == 8
		if inSegment && info&0xffffffff == relative && addend >= fat.addr && addend-fat.addr < fat.size {
			starts = append(starts, int64(addend-fat.addr))
		}
	}
	slices.Sort(starts)
	return slices.Compact(starts)
}

// next finds the first bundle at or after at: where the wrappers say, else by looking at each page.
func next(fat *io.SectionReader, starts []int64, at int64) (int64, bool) {
	if len(starts) > 0 {
		i, _ := slices.BinarySearch(starts, at)
		if i == len(starts) {
			return 0, false
		}
		return starts[i], true
	}
	at = int64(align(uint64(at), pageSize))
	// Bundles follow each other, so the first look nearly always hits and costs one small read.
	var head [len(bundleMagic)]byte
	if n, _ := fat.ReadAt(head[:], at); isBundle(head[:n]) {
		return at, true
	}
	const chunk = 1 << 20
	buf := make([]byte, chunk)
	for end := min(fat.Size(), at+maxScan); at < end; at += chunk {
		n, err := fat.ReadAt(buf, at)
		for page := 0; page < n; page += pageSize {
			if isBundle(buf[page:n]) {
				return at + int64(page), true
			}
		}
		if err != nil {
			break
		}
	}
	return 0, false
}

// bundle reads the bundle at start and returns the offset behind it, or start when its size is not known.
func (w *walker) bundle(fat *io.SectionReader, start int64) (end int64, err error) {
	var head [32]byte
	n, err := fat.ReadAt(head[:], start)
	if err != nil && !errors.Is(err, io.EOF) {
		return start, err
	}
	rest := io.NewSectionReader(fat, start, fat.Size()-start)
	if !bytes.HasPrefix(head[:n], []byte(ccobMagic)) {
		entries, err := parseBundle(rest)
		if err != nil {
			return start, err
		}
		size, ok := extent(entries)
		if !ok || size > uint64(rest.Size()) {
			return start, formatErr("code objects reach outside the section")
		}
		return start + int64(size), w.add("bundle", entries, rest)
	}
	h, err := parseCCOB(head[:n])
	if err != nil {
		return start, err
	}
	if h.total > uint64(rest.Size()) || h.headerSize > uint64(rest.Size()) {
		return start, formatErr("compressed bundle of %d bytes reaches outside the section", h.total)
	}
	end = start + int64(h.total)
	size := rest.Size() - int64(h.headerSize)
	if h.total > 0 {
		size = int64(h.total - h.headerSize)
	}
	entries, err := w.unpack.entries(h, io.NewSectionReader(rest, int64(h.headerSize), size))
	if err != nil {
		return end, err
	}
	method := map[uint16]string{methodZlib: "zlib", methodZstd: "zstd"}[h.method]
	return end, w.add(fmt.Sprintf("ccob-v%d-%s", h.version, method), entries, nil)
}

// add counts a bundle's targets. plain, when given, is the bundle itself: the first one's code objects are checked
// against their own headers.
func (w *walker) add(format string, entries []entry, plain io.ReaderAt) error {
	if !slices.Contains(w.lib.Formats, format) {
		w.lib.Formats = append(w.lib.Formats, format)
	}
	w.lib.Bundles++
	seen := map[Target]bool{}
	for _, e := range entries {
		t, ok, err := entryTarget(e.id)
		if err != nil {
			return err
		}
		if !ok || e.size == 0 || seen[t] {
			continue
		}
		seen[t] = true
		w.counts[t]++
		if plain != nil && w.lib.Bundles == 1 {
			w.verify(t, e, plain)
		}
	}
	return nil
}

// verify compares an entry's name with the processor in its ELF header.
func (w *walker) verify(t Target, e entry, plain io.ReaderAt) {
	var h [64]byte
	if n, _ := plain.ReadAt(h[:], int64(e.offset)); n < len(h) || string(h[:4]) != "\x7fELF" {
		return // SPIR-V, or code that is compressed once more
	}
	le := binary.LittleEndian
	if le.Uint16(h[18:]) != machineAMDGPU {
		return
	}
	if found, ok := targetOfFlags(le.Uint32(h[48:]), h[8]); ok && found.Processor != t.Processor {
		w.unsure("the code object named %s is for %s", t.Processor, found.Processor)
	}
}

// result splits the targets into those of every bundle and the rest.
func (w *walker) result() Library {
	w.lib.Targets = []Target{}
	for t, n := range w.counts {
		if n == w.lib.Bundles {
			w.lib.Targets = append(w.lib.Targets, t)
		} else {
			w.lib.Partial = append(w.lib.Partial, t)
		}
	}
	order := func(a, b Target) int { return strings.Compare(a.String(), b.String()) }
	slices.SortFunc(w.lib.Targets, order)
	slices.SortFunc(w.lib.Partial, order)
	return w.lib
}
