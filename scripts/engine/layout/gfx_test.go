package layout

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// offloadBundle writes the header of a clang offload bundle with the given entry ids.
func offloadBundle(ids ...string) []byte {
	out := []byte("__CLANG_OFFLOAD_BUNDLE__")
	out = binary.LittleEndian.AppendUint64(out, uint64(len(ids)))
	for _, id := range ids {
		out = binary.LittleEndian.AppendUint64(out, 4096)
		out = binary.LittleEndian.AppendUint64(out, 64)
		out = binary.LittleEndian.AppendUint64(out, uint64(len(id)))
		out = append(out, id...)
	}
	// The code objects themselves would start a page in.
	return append(out, make([]byte, 8192-len(out))...)
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
	for name, c := range map[string]struct {
		content []byte
		want    []string
		note    bool
	}{
		"two targets": {offloadBundle("host-x86_64-unknown-linux-gnu-", "hipv4-amdgcn-amd-amdhsa--gfx1201", "hipv4-amdgcn-amd-amdhsa--gfx1100"), []string{"gfx1100", "gfx1201"}, false},
		"broken code": {[]byte("CCOB\x02\x00"), nil, true},
		"no code":     {make([]byte, 64), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, hipELF(c.content), 0o644); err != nil {
				t.Fatal(err)
			}
			got, note, err := GFXTargets(path)
			if err != nil || !slices.Equal(got, c.want) || c.note != (note != "") {
				t.Errorf("targets %q, note %q, error %v", got, note, err)
			}
		})
	}
	if err := os.WriteFile(path, []byte("not ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := GFXTargets(path); err == nil {
		t.Error("a file that is not ELF was accepted")
	}
}
