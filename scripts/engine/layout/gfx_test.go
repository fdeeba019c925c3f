package layout

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// offloadBundle writes the header of a clang offload bundle with the given entry ids.
func offloadBundle(ids ...string) []byte {
	out := []byte(bundleMagic)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(ids)))
	for _, id := range ids {
		out = binary.LittleEndian.AppendUint64(out, 4096)
		out = binary.LittleEndian.AppendUint64(out, 0)
		out = binary.LittleEndian.AppendUint64(out, uint64(len(id)))
		out = append(out, id...)
	}
	return out
}

func TestParseOffloadBundle(t *testing.T) {
	got, err := parseOffloadBundle(offloadBundle("host-x86_64-unknown-linux-gnu-", "hipv4-amdgcn-amd-amdhsa--gfx1100",
		"hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", "hip-amdgcn-amd-amdhsa--gfx1030"))
	if want := []string{"gfx1030", "gfx1100", "gfx90a:sramecc+:xnack-"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("targets %q, %v", got, err)
	}
	if _, err := parseOffloadBundle([]byte("CCOB\x02\x00")); !errors.Is(err, errCompressed) {
		t.Errorf("error %v, want errCompressed", err)
	}
	whole := offloadBundle("hipv4-amdgcn-amd-amdhsa--gfx1100")
	for n := range whole {
		if _, err := parseOffloadBundle(whole[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes were accepted", n, len(whole))
		}
	}
	absurd := binary.LittleEndian.AppendUint64([]byte(bundleMagic), 1<<60)
	if _, err := parseOffloadBundle(absurd); err == nil {
		t.Error("2^60 entries were accepted")
	}
}

func FuzzParseOffloadBundle(f *testing.F) {
	f.Add(offloadBundle("hipv4-amdgcn-amd-amdhsa--gfx1100"))
	f.Add([]byte("CCOB"))
	f.Fuzz(func(t *testing.T, data []byte) {
		targets, err := parseOffloadBundle(data)
		if err != nil && targets != nil {
			t.Errorf("both %q and %v", targets, err)
		}
	})
}

// hipELF is a 64-bit ELF file with one section, .hip_fatbin.
func hipELF(content []byte) []byte {
	const names = "\x00.hip_fatbin\x00.shstrtab\x00"
	le := binary.LittleEndian
	var out []byte
	out = append(out, 0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	out = le.AppendUint16(out, 3)  // shared object
	out = le.AppendUint16(out, 62) // x86-64
	out = le.AppendUint32(out, 1)
	out = le.AppendUint64(out, 0)
	out = le.AppendUint64(out, 0)
	out = le.AppendUint64(out, uint64(64+len(content)+len(names))) // section headers
	out = le.AppendUint32(out, 0)
	for _, v := range []uint16{64, 0, 0, 64, 3, 2} {
		out = le.AppendUint16(out, v)
	}
	out = append(out, content...)
	out = append(out, names...)
	section := func(name, kind uint32, offset, size int) {
		out = le.AppendUint32(out, name)
		out = le.AppendUint32(out, kind)
		for _, v := range []uint64{0, 0, uint64(offset), uint64(size), 0, 1, 0} {
			out = le.AppendUint64(out, v)
		}
	}
	section(0, 0, 0, 0)
	section(1, 1, 64, len(content))
	section(13, 3, 64+len(content), len(names))
	return out
}

func TestGFXTargets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libggml-hip.so")
	if err := os.WriteFile(path, hipELF(offloadBundle("hipv4-amdgcn-amd-amdhsa--gfx1201")), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := GFXTargets(path); err != nil || !slices.Equal(got, []string{"gfx1201"}) {
		t.Errorf("targets %q, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("not ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := GFXTargets(path); err == nil {
		t.Error("a file that is not ELF was accepted")
	}
}
