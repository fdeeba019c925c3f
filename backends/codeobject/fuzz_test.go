package codeobject

import (
	"bytes"
	"testing"
)

// The fuzz targets cover the three parsers that read foreign bytes. None may panic, hang or take much memory, whatever
// the file says about its own sizes.

func FuzzInspect(f *testing.F) {
	plain := bundleOf(100, ids("gfx1100", "gfx90a:xnack-")...)
	f.Add(libraryOf(fatbin(pages(plain, ccobOf(f, 2, methodZstd, plain), ccobOf(f, 1, methodZlib, plain)))))
	f.Add(libraryOf(fatbin(nil), synthSection{name: ".hipFatBinSegment", kind: 1, data: []byte("KPIH")}))
	f.Add(libraryOf(fatbin(plain), synthSection{name: ".dynamic", kind: 6, data: make([]byte, 32), link: 1}, synthSection{name: ".note", kind: typeNote, data: make([]byte, 64)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		lib, err := Inspect(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		// A library with no sure target and nothing unknown would be called unusable; that needs a bundle to say so.
		if len(lib.Targets) == 0 && lib.Unknown == "" && lib.Bundles == 0 {
			t.Errorf("no answer and no reason: %+v", lib)
		}
		lib.Support(Target{Processor: "gfx1100"})
	})
}

func FuzzBundle(f *testing.F) {
	f.Add(bundleOf(10, ids("gfx1100", "gfx11-generic")...))
	f.Add([]byte(bundleMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := parseBundle(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, e := range entries {
			if target, ok, err := entryTarget(e.id); ok && err == nil {
				again, err := ParseTarget(target.String())
				if err != nil || again != target {
					t.Errorf("%q: %v does not survive its own spelling: %v, %v", e.id, target, again, err)
				}
			}
		}
		extent(entries)
	})
}

func FuzzCCOB(f *testing.F) {
	plain := bundleOf(10, ids("gfx1100")...)
	for _, version := range []uint16{1, 2, 3} {
		f.Add(ccobOf(f, version, methodZlib, plain))
		f.Add(ccobOf(f, version, methodZstd, plain))
	}
	var d decompressor
	f.Cleanup(d.close)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseCCOB(b)
		if err != nil {
			return
		}
		if h.headerSize > uint64(len(b)) {
			t.Fatalf("header of %d bytes in %d", h.headerSize, len(b))
		}
		_, _ = d.entries(h, bytes.NewReader(b[h.headerSize:]))
	})
}

func FuzzNote(f *testing.F) {
	f.Add([]byte("\x07\x00\x00\x00\x10\x00\x00\x00\x20\x00\x00\x00AMDGPU\x00\x00\x81\xadamdhsa.target\xa1x"))
	f.Fuzz(func(t *testing.T, b []byte) { noteTarget(b) })
}

func FuzzKernelNames(f *testing.F) {
	f.Add("TensileLibrary_lazy_gfx1100.dat")
	f.Fuzz(func(t *testing.T, name string) {
		for p := range ParseKernelNames([]string{name}) {
			if _, err := ParseTarget(p); err != nil {
				t.Errorf("%q counted for %q", name, p)
			}
		}
	})
}
