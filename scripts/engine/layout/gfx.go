package layout

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// errCompressed says that the device code is packed (CCOB) and its targets are not told here.
var errCompressed = errors.New("device code is compressed")

// bundleMagic opens an uncompressed clang offload bundle.
const bundleMagic = "__CLANG_OFFLOAD_BUNDLE__"

// GFXTargets reads which gfx targets a HIP library has device code for, from the first offload bundle of its
// .hip_fatbin section and without loading it. All bundles of a library name the same targets, because they come from
// one compiler command line.
func GFXTargets(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read gfx targets: %w", err)
	}
	defer f.Close()
	section := f.Section(".hip_fatbin")
	if section == nil {
		return nil, fmt.Errorf("read gfx targets: %s has no .hip_fatbin section", path)
	}
	// The header is below 1 KiB for 11 targets; 64 KiB is room for every target there is.
	head := make([]byte, 64<<10)
	n, err := section.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read gfx targets: %w", err)
	}
	targets, err := parseOffloadBundle(head[:n])
	if err != nil {
		return nil, fmt.Errorf("read gfx targets of %s: %w", path, err)
	}
	return targets, nil
}

// parseOffloadBundle reads the entry table: magic, u64 count, then count times {u64 offset, u64 size, u64 length, id},
// little endian; an id is KIND-TRIPLE--TARGET[:feature...].
func parseOffloadBundle(data []byte) ([]string, error) {
	if bytes.HasPrefix(data, []byte("CCOB")) {
		return nil, errCompressed
	}
	rest, ok := bytes.CutPrefix(data, []byte(bundleMagic))
	if !ok {
		return nil, errors.New("no offload bundle at the start of .hip_fatbin")
	}
	short := errors.New("offload bundle header is cut short")
	if len(rest) < 8 {
		return nil, short
	}
	count := binary.LittleEndian.Uint64(rest)
	rest = rest[8:]
	if count > 1000 {
		return nil, fmt.Errorf("offload bundle claims %d entries", count)
	}
	var targets []string
	for range count {
		if len(rest) < 24 {
			return nil, short
		}
		length := binary.LittleEndian.Uint64(rest[16:])
		rest = rest[24:]
		if length > 256 || uint64(len(rest)) < length {
			return nil, short
		}
		id := string(rest[:length])
		rest = rest[length:]
		if i := strings.LastIndex(id, "--gfx"); i >= 0 && !strings.HasPrefix(id, "host") {
			targets = append(targets, id[i+2:])
		}
	}
	slices.Sort(targets)
	return slices.Compact(targets), nil
}
