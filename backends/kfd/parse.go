package kfd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"hearth/backends"
)

// parseProps reads a KFD `properties` file: one "key value" pair a line, decimal. Unknown keys are kept. A line that
// does not parse is reported and skipped, so that one odd key does not hide a GPU. Keys with several values (a cache's
// sibling_map) are not numbers and are skipped.
func parseProps(b []byte) (map[string]uint64, error) {
	props := map[string]uint64{}
	var bad []error
	for i, line := range strings.Split(string(b), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			bad = append(bad, fmt.Errorf("line %d is not a key and a value", i+1))
			continue
		}
		v, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			// ROCr reads with %llu, which takes a minus sign; no known key is negative.
			bad = append(bad, fmt.Errorf("line %d: %s is %q, not a number", i+1, fields[0], clip(fields[1])))
			continue
		}
		props[fields[0]] = v
	}
	const most = 4 // a broken file would fill the report
	if len(bad) > most {
		bad = append(bad[:most], fmt.Errorf("and %d more lines", len(bad)-most))
	}
	return props, errors.Join(bad...)
}

func bankOf(p map[string]uint64) Bank {
	return Bank{HeapType: p["heap_type"], SizeBytes: p["size_in_bytes"], WidthBits: p["width"], ClockMaxMHz: p["mem_clk_max"]}
}

// Flags of a link's properties.
const (
	linkNonCoherent = 1 << 1
	linkNoAtomics32 = 1 << 2
	linkNoAtomics64 = 1 << 3
	linkNoP2P       = 1 << 4
)

func linkOf(p map[string]uint64, peerToPeer bool) Link {
	flags := p["flags"]
	return Link{
		To: int(min(p["node_to"], 1<<16)), Type: p["type"], Weight: p["weight"], MaxMBs: p["max_bandwidth"], MaxLatencyNs: p["max_latency"],
		NonCoherent: flags&linkNonCoherent != 0, NoAtomics: flags&(linkNoAtomics32|linkNoAtomics64) != 0,
		NoP2P: flags&linkNoP2P != 0, PeerToPeer: peerToPeer,
	}
}

// uuidOf spells a serial as ROCr does; empty for 0.
func uuidOf(uniqueID uint64) string {
	if uniqueID == 0 {
		return ""
	}
	return fmt.Sprintf("GPU-%016x", uniqueID)
}

// parseMeminfo returns MemTotal and MemAvailable of /proc/meminfo in bytes.
func parseMeminfo(b []byte) (total, available backends.Optional[uint64]) {
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 54) // 2^54 KiB still fits in bytes
		if err != nil {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			total = backends.Some(kib << 10)
		case "MemAvailable:":
			available = backends.Some(kib << 10)
		}
	}
	return total, available
}

// parseKFDMajor finds "NNN kfd" among the character devices of /proc/devices.
func parseKFDMajor(b []byte) backends.Optional[uint64] {
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && fields[1] == "kfd" {
			if n, err := strconv.ParseUint(fields[0], 10, 32); err == nil {
				return backends.Some(n)
			}
		}
	}
	return backends.Optional[uint64]{}
}

// idTable maps PCI device id and revision to a marketing name, as libdrm's amdgpu.ids does.
type idTable map[[2]uint32]string

// parseIDs reads amdgpu.ids: lines "DEVICE, REVISION, NAME" in hex; a first line with a version and comments are skipped.
func parseIDs(b []byte) idTable {
	t := idTable{}
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(line, ",", 3)
		if len(fields) != 3 || strings.HasPrefix(line, "#") {
			continue
		}
		dev, err1 := strconv.ParseUint(strings.TrimSpace(fields[0]), 16, 16)
		rev, err2 := strconv.ParseUint(strings.TrimSpace(fields[1]), 16, 16)
		if name := strings.TrimSpace(fields[2]); err1 == nil && err2 == nil && name != "" {
			t[[2]uint32{uint32(dev), uint32(rev)}] = name
		}
	}
	return t
}

func clip(s string) string {
	const most = 40
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
