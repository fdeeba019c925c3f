package telemetry

import (
	"strconv"
	"strings"

	"hearth/backends"
)

// ParseClocks reads a pp_dpm_* file, one level a line with a star at the active one ("1: 2482Mhz *"; "S:" is a sleep
// level), and returns the active and the highest clock in MHz.
func ParseClocks(b []byte) (active, highest backends.Optional[uint64]) {
	for line := range strings.Lines(string(b)) {
		_, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		digits := strings.TrimSuffix(strings.ToLower(fields[0]), "mhz")
		mhz, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || len(digits) == len(fields[0]) {
			continue
		}
		if mhz > highest.Or(0) {
			highest = backends.Some(mhz)
		}
		if strings.Contains(rest, "*") {
			active = backends.Some(mhz)
		}
	}
	return active, highest
}

// ParseLinkSpeed reads "16.0 GT/s PCIe" into 10^9 transfers per second; unknown for "Unknown".
func ParseLinkSpeed(s string) backends.Optional[float64] {
	number, _, ok := strings.Cut(s, "GT/s")
	if !ok {
		return backends.Optional[float64]{}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(v > 0 && v < 1000) {
		return backends.Optional[float64]{}
	}
	return backends.Some(v)
}

// Client is the GPU memory of one open render node of a process, in bytes.
type Client struct {
	PCI  backends.PCI              `json:"pci"`
	ID   uint64                    `json:"id"` // unique for the device; one client may have several descriptors
	VRAM backends.Optional[uint64] `json:"vram,omitzero"`
	GTT  backends.Optional[uint64] `json:"gtt,omitzero"`
	// EvictedVRAM is memory that should lie in VRAM and was moved out.
	EvictedVRAM backends.Optional[uint64] `json:"evicted_vram,omitzero"`
}

// ParseFDInfo reads /proc/PID/fdinfo/FD of a render node; ok is false for other descriptors. Old kernels say
// drm-memory-vram, new ones drm-resident-vram.
func ParseFDInfo(b []byte) (c Client, ok bool) {
	amdgpu, hasID := false, false
	for line := range strings.Lines(string(b)) {
		key, value, found := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !found {
			continue
		}
		switch key {
		case "drm-driver":
			amdgpu = value == "amdgpu"
		case "drm-pdev":
			if addr, err := backends.ParsePCI(value); err == nil {
				c.PCI = addr
			}
		case "drm-client-id":
			if id, err := strconv.ParseUint(value, 10, 64); err == nil {
				c.ID, hasID = id, true
			}
		case "drm-memory-vram", "drm-resident-vram":
			c.VRAM = kibibytes(value, c.VRAM)
		case "drm-memory-gtt", "drm-resident-gtt":
			c.GTT = kibibytes(value, c.GTT)
		case "amd-evicted-vram":
			c.EvictedVRAM = kibibytes(value, c.EvictedVRAM)
		}
	}
	return c, amdgpu && hasID
}

// kibibytes reads "1234 KiB" (or MiB, or bytes without a unit); otherwise what was known before stays.
func kibibytes(s string, before backends.Optional[uint64]) backends.Optional[uint64] {
	fields := strings.Fields(s)
	if len(fields) == 0 || len(fields) > 2 {
		return before
	}
	v, err := strconv.ParseUint(fields[0], 10, 40)
	if err != nil {
		return before
	}
	shift := 0
	if len(fields) == 2 {
		switch fields[1] {
		case "KiB":
			shift = 10
		case "MiB":
			shift = 20
		default:
			return before
		}
	}
	return backends.Some(v << shift)
}
