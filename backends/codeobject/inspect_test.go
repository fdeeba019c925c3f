package codeobject

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hearth/backends"
	"hearth/backends/sysroot"
)

func inspect(t *testing.T, file []byte) Library {
	t.Helper()
	lib, err := Inspect(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func names(targets []Target) string {
	var out []string
	for _, t := range targets {
		out = append(out, t.String())
	}
	return strings.Join(out, " ")
}

func TestInspectFormats(t *testing.T) {
	t.Parallel()
	a, b := ids("gfx1030", "gfx1100", "gfx90a:sramecc+:xnack-"), ids("gfx1030", "gfx1100", "gfx90a:sramecc+:xnack-")
	plain := bundleOf(3*pageSize+17, a...)
	for _, c := range []struct {
		name string
		data []byte
		want Library
	}{
		{"bundles", pages(plain, bundleOf(100, b...)), Library{Bundles: 2, Formats: []string{"bundle"}}},
		{"ccob v1 zlib", pages(ccobOf(t, 1, methodZlib, plain), ccobOf(t, 1, methodZstd, plain)), Library{Bundles: 2, Formats: []string{"ccob-v1-zlib", "ccob-v1-zstd"}}},
		{"ccob v2 zstd", pages(ccobOf(t, 2, methodZstd, plain), ccobOf(t, 2, methodZstd, plain)), Library{Bundles: 2, Formats: []string{"ccob-v2-zstd"}}},
		{"ccob v3 zlib", ccobOf(t, 3, methodZlib, plain), Library{Bundles: 1, Formats: []string{"ccob-v3-zlib"}}},
		{"mixed", pages(plain, ccobOf(t, 3, methodZstd, plain)), Library{Bundles: 2, Formats: []string{"bundle", "ccob-v3-zstd"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lib := inspect(t, libraryOf(fatbin(c.data)))
			if got, want := names(lib.Targets), "gfx1030 gfx1100 gfx90a:sramecc+:xnack-"; got != want {
				t.Errorf("targets %q, want %q", got, want)
			}
			if lib.Bundles != c.want.Bundles || !slices.Equal(lib.Formats, c.want.Formats) || lib.Unknown != "" {
				t.Errorf("got %d bundles, %q, unknown %q; want %d, %q", lib.Bundles, lib.Formats, lib.Unknown, c.want.Bundles, c.want.Formats)
			}
		})
	}
}

func TestInspectSpecial(t *testing.T) {
	t.Parallel()
	wrongName := bundleOf(100, ids("gfx1100")...)
	binary.LittleEndian.PutUint32(wrongName[pageSize+48:], machOf("gfx1030"))
	cut := ccobOf(t, 2, methodZstd, bundleOf(9000, ids("gfx1100")...))
	binary.LittleEndian.PutUint32(cut[8:], 1<<30) // reaches outside
	huge := bundleOf(10, ids("gfx1100")...)
	binary.LittleEndian.PutUint64(huge[len(bundleMagic):], 1<<60)
	for _, c := range []struct {
		name    string
		file    []byte
		targets string
		unknown string
	}{
		{"kpack section", libraryOf(fatbin(make([]byte, pageSize)), synthSection{name: ".rocm_kpack_ref", kind: 1, data: []byte{0x81}}), "", ".kpack"},
		{"kpack wrapper", libraryOf(fatbin(nil), synthSection{name: ".hipFatBinSegment", kind: 1, data: []byte("KPIH\x01\x00\x00\x00")}), "", ".kpack"},
		{"no section", libraryOf(synthSection{name: ".text", kind: 1}), "", "no .hip_fatbin"},
		{"zeros", libraryOf(fatbin(make([]byte, 3*pageSize))), "", "holds no bundle"},
		{"partial", libraryOf(fatbin(pages(bundleOf(10, ids("gfx1100", "gfx1030")...), bundleOf(10, ids("gfx1100")...)))), "gfx1100", ""},
		{"generic and spirv", libraryOf(fatbin(bundleOf(10, append(ids("gfx11-generic", "gfx9-4-generic:xnack+"), "hip-spirv64-amd-amdhsa--amdgcnspirv")...))), "amdgcnspirv gfx11-generic gfx9-4-generic:xnack+", ""},
		{"old id", libraryOf(fatbin(bundleOf(10, "host-x86_64-unknown-linux", "hip-amdgcn-amd-amdhsa-gfx906"))), "gfx906", ""},
		{"wrong header", libraryOf(fatbin(wrongName)), "gfx1100", "is for gfx1030"},
		{"too long", libraryOf(fatbin(cut)), "", "reaches outside"},
		{"too many entries", libraryOf(fatbin(huge)), "", "entries"},
		{"bad then good", libraryOf(fatbin(pages(huge, bundleOf(10, ids("gfx1201")...)))), "gfx1201", "entries"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lib := inspect(t, c.file)
			if got := names(lib.Targets); got != c.targets {
				t.Errorf("targets %q, want %q", got, c.targets)
			}
			if (lib.Unknown == "") != (c.unknown == "") || !strings.Contains(lib.Unknown, c.unknown) {
				t.Errorf("unknown %q, want %q", lib.Unknown, c.unknown)
			}
		})
	}
}

// Version 1 bundles do not say their size, so the walk needs the wrappers' relocations or a search.
func TestInspectWrappers(t *testing.T) {
	t.Parallel()
	le := binary.LittleEndian
	first := ccobOf(t, 1, methodZstd, bundleOf(5000, ids("gfx1100")...))
	data := pages(first, make([]byte, 5*pageSize), ccobOf(t, 1, methodZstd, bundleOf(10, ids("gfx1100", "gfx1030")...)))
	second := len(data) - 1
	for second%pageSize != 0 || !isBundle(data[second:]) {
		second--
	}
	const fatAddr, segAddr = 0xc36000, 0x900000
	var rela []byte
	for i, target := range []uint64{fatAddr, fatAddr + uint64(second)} {
		rela = le.AppendUint64(le.AppendUint64(le.AppendUint64(rela, segAddr+uint64(i)*24+8), 8), target)
	}
	rela = le.AppendUint64(le.AppendUint64(le.AppendUint64(rela, 0x1000), 8), 0x2000) // another section's
	lib := inspect(t, libraryOf(fatbin(data),
		synthSection{name: ".hipFatBinSegment", kind: 1, addr: segAddr, size: 48},
		synthSection{name: ".rela.dyn", kind: 4, data: rela}))
	if lib.Bundles != 2 || names(lib.Targets) != "gfx1100" || names(lib.Partial) != "gfx1030" {
		t.Errorf("got %+v", lib)
	}
}

func TestInspectObject(t *testing.T) {
	t.Parallel()
	object := func(flags uint32, note string) []byte {
		desc := append([]byte("\x82\xadamdhsa.target\xd9"), append([]byte{byte(len(note))}, note...)...)
		le := binary.LittleEndian
		n := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 7), uint32(len(desc))), 32)
		n = append(n, "AMDGPU\x00\x00"...)
		n = append(n, desc...)
		n = append(n, make([]byte, int(align(uint64(len(n)), 4))-len(n))...)
		f := libraryOf(synthSection{name: ".note", kind: typeNote, data: n})
		le.PutUint16(f[18:], machineAMDGPU)
		le.PutUint32(f[48:], flags)
		f[8] = 2
		return f
	}
	for _, c := range []struct {
		name          string
		file          []byte
		want, unknown string
	}{
		{"agree", object(0x41, "amdgcn-amd-amdhsa--gfx1100"), "gfx1100", ""},
		{"features", object(0x3f|2<<8|3<<10, "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"), "gfx90a:sramecc+:xnack-", ""},
		{"note alone", object(0xfe, "amdgcn-amd-amdhsa--gfx1250"), "gfx1250", ""},
		{"neither", object(0xfe, "x"), "", "processor number 0xfe"},
		{"differ", object(0x41, "amdgcn-amd-amdhsa--gfx1030"), "gfx1100", "metadata gfx1030"},
	} {
		lib := inspect(t, c.file)
		if names(lib.Targets) != c.want || !strings.Contains(lib.Unknown, c.unknown) || (c.unknown == "") != (lib.Unknown == "") {
			t.Errorf("%s: %q unknown %q, want %q, %q", c.name, names(lib.Targets), lib.Unknown, c.want, c.unknown)
		}
	}
}

func TestInspectErrors(t *testing.T) {
	t.Parallel()
	good := libraryOf(fatbin(bundleOf(10, ids("gfx1100")...)))
	arm := slices.Clone(good)
	arm[18] = 183
	for name, file := range map[string][]byte{"empty": nil, "text": []byte(strings.Repeat("hello ", 50)), "32 bit": append([]byte("\x7fELF\x01"), make([]byte, 100)...),
		"arm": arm, "cut": good[:70]} {
		if _, err := Inspect(bytes.NewReader(file), int64(len(file))); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}

func TestNeeded(t *testing.T) {
	t.Parallel()
	le := binary.LittleEndian
	str := []byte("\x00libamdhip64.so.6\x00librocblas.so.4\x00")
	var dyn []byte
	for _, e := range [][2]uint64{{1, 1}, {14, 3}, {1, 18}, {0, 0}, {1, 1}} {
		dyn = le.AppendUint64(le.AppendUint64(dyn, e[0]), e[1])
	}
	lib := inspect(t, libraryOf(fatbin(bundleOf(10, ids("gfx1100")...)), synthSection{name: ".dynstr", kind: 3, data: str}, synthSection{name: ".dynamic", kind: 6, data: dyn, link: 2}))
	if want := []string{"libamdhip64.so.6", "librocblas.so.4"}; !slices.Equal(lib.Needed, want) {
		t.Errorf("needed %q, want %q", lib.Needed, want)
	}
}

// sparseLibrary writes a library shaped like Debian's libggml-hip.so: 140 bundles of 11 entries in 1.26 GB, holes where
// the code would be.
func sparseLibrary(tb testing.TB) *os.File {
	tb.Helper()
	const bundles, size = 140, 1_256_682_976
	targets := ids("gfx1010", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx803", "gfx900", "gfx906", "gfx908", "gfx90a")
	head, offsets, total := libraryHead([]synthSection{{name: ".hip_fatbin", kind: 1, addr: 0xc36000, size: size}})
	f, err := os.Create(filepath.Join(tb.TempDir(), "libggml-hip.so"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(int64(total)); err != nil {
		tb.Skipf("no sparse files here: %v", err)
	}
	if _, err := f.WriteAt(head, 0); err != nil {
		tb.Fatal(err)
	}
	stride := size / bundles / pageSize * pageSize
	object := (stride - pageSize) / (len(targets) - 1)
	for i := range bundles {
		start := int64(offsets[0]) + int64(i*stride)
		b := sparseHead(object, targets)
		if _, err := f.WriteAt(b, start); err != nil {
			tb.Fatal(err)
		}
	}
	return f
}

// sparseHead is the first page of a bundle whose code objects have size bytes each.
func sparseHead(size int, ids []string) []byte {
	b := bundleOf(0, ids...)[:pageSize]
	at := len(bundleMagic) + 8
	offset := uint64(pageSize)
	for _, id := range ids {
		binary.LittleEndian.PutUint64(b[at:], offset)
		if !strings.HasPrefix(id, "host-") {
			binary.LittleEndian.PutUint64(b[at+8:], uint64(size))
			offset += uint64(size)
		}
		at += 24 + len(id)
	}
	return b
}

// TestLargeLibrary holds the promise that 1.2 GB of code objects are classified in under 100 ms.
func TestLargeLibrary(t *testing.T) {
	f := sparseLibrary(t)
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	counted := &countingReader{r: f}
	lib, err := Inspect(counted, info.Size())
	if err != nil || lib.Bundles != 140 || len(lib.Targets) != 10 || lib.Unknown != "" {
		t.Fatalf("%+v, %v", lib, err)
	}
	// Reading little is what makes it fast; how fast, BenchmarkLargeLibrary says.
	if most := info.Size() / 50; counted.n > most {
		t.Errorf("read %d of %d bytes, want at most %d", counted.n, info.Size(), most)
	}
	t.Logf("read %d kB of %d MB", counted.n/1000, info.Size()/1e6)
	if got := lib.Support(Target{Processor: "gfx1201"}); got.Class != backends.SupportNone {
		t.Errorf("gfx1201: %+v", got)
	}
}

// countingReader counts the bytes that were asked for.
type countingReader struct {
	r io.ReaderAt
	n int64
}

func (c *countingReader) ReadAt(p []byte, off int64) (int, error) {
	c.n += int64(len(p))
	return c.r.ReadAt(p, off)
}

func BenchmarkLargeLibrary(b *testing.B) {
	f := sparseLibrary(b)
	info, err := f.Stat()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Inspect(f, info.Size()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRealLibraries reads the HIP libraries and kernel files of an engine bundle, where there is one.
func TestRealLibraries(t *testing.T) {
	t.Parallel()
	const bundle = "../../build/engine/hip/"
	glob := func(pattern string) []string {
		m, err := filepath.Glob(bundle + pattern)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	libraries := append(glob("backends/libggml-hip.so"), glob("lib/librocblas.so.*")...)
	if len(libraries) == 0 {
		t.Skip("no HIP bundle in build/engine/hip")
	}
	for _, name := range libraries {
		start := time.Now()
		lib := inspectFile(t, name)
		t.Logf("%s: %d bundles in %v, %q, targets %s", filepath.Base(name), lib.Bundles, time.Since(start), lib.Formats, names(lib.Targets))
		if len(lib.Targets) == 0 || lib.Unknown != "" {
			t.Errorf("%s: %+v", name, lib)
		}
	}
	absolute, err := filepath.Abs(bundle + "lib")
	if err != nil {
		t.Fatal(err)
	}
	files, folder, err := FindKernelFiles(sysroot.Host(), []string{strings.TrimPrefix(absolute, "/")}, "rocblas", "")
	if err != nil || !files.Covers("gfx1100") || files.Covers("gfx1201") {
		t.Fatalf("kernel files in %q: %v, %v", folder, files, err)
	}
	t.Logf("%s: %v", folder, files.Processors())
	// Each kind of kernel file says by its content what its name says.
	checked := map[string]bool{}
	for _, name := range append(glob("lib/rocblas/*/library/*.hsaco"), glob("lib/rocblas/*/library/*.co")...) {
		for processor := range ParseKernelNames([]string{name}) {
			kind := processor + filepath.Ext(name)
			if checked[kind] {
				continue
			}
			checked[kind] = true
			lib := inspectFile(t, name)
			if len(lib.Targets) != 1 || lib.Targets[0].Processor != processor || lib.Unknown != "" {
				t.Errorf("%s: %+v", filepath.Base(name), lib)
			}
		}
	}
	t.Logf("%d kinds of kernel files", len(checked))
}

func inspectFile(t *testing.T, name string) Library {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	lib, err := Inspect(f, info.Size())
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return lib
}

// A bundle may be a file of its own.
func TestInspectBareBundle(t *testing.T) {
	t.Parallel()
	plain := bundleOf(500, ids("gfx1100")...)
	for _, file := range [][]byte{plain, ccobOf(t, 2, methodZstd, plain)} {
		if lib := inspect(t, file); names(lib.Targets) != "gfx1100" || lib.Unknown != "" {
			t.Errorf("%+v", lib)
		}
	}
}
