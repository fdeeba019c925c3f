package telemetry

import (
	"encoding/binary"
	"errors"
	"fmt"

	"hearth/backends"
)

// Metrics is what hearth takes from a gpu_metrics table, the firmware's own snapshot. Fields that the table's version
// lacks, or that the GPU marks as not supported (all ones), are unknown.
type Metrics struct {
	Version     string                     `json:"version"` // "1.3"
	EdgeC       backends.Optional[float64] `json:"edge_c,omitzero"`
	HotspotC    backends.Optional[float64] `json:"hotspot_c,omitzero"`
	MemoryC     backends.Optional[float64] `json:"memory_c,omitzero"`
	Busy        backends.Optional[float64] `json:"busy,omitzero"`        // 0..1
	MemoryBusy  backends.Optional[float64] `json:"memory_busy,omitzero"` // 0..1, of the memory controller
	SocketWatts backends.Optional[float64] `json:"socket_watts,omitzero"`
	GFXMHz      backends.Optional[uint64]  `json:"gfx_mhz,omitzero"`
	MemoryMHz   backends.Optional[uint64]  `json:"memory_mhz,omitzero"`
	LinkWidth   backends.Optional[uint64]  `json:"link_width,omitzero"` // lanes
	LinkGTs     backends.Optional[float64] `json:"link_gts,omitzero"`   // 10^9 transfers per second and lane
	// Throttled says whether anything holds the clocks back; Reasons name it where the bits are the same on all chips.
	Throttled backends.Optional[bool] `json:"throttled,omitzero"`
	Reasons   []string                `json:"reasons,omitempty"`
}

// Errors of ParseMetrics.
var (
	ErrMetricsShort   = errors.New("gpu_metrics is shorter than it says")
	ErrMetricsVersion = errors.New("gpu_metrics has a version that is not known")
)

// layout holds byte offsets into one version of the table; 0 means that the field is not there. They follow from the
// structs in the kernel's kgd_pp_interface.h by the rules of C, and the size must match before any is used.
type layout struct {
	size                     int
	edge, hotspot, memory    int  // u16
	centi                    bool // temperatures in 0.01 degrees, as APUs give them
	busy, memoryBusy         int  // u16, percent
	watts, milliwatts        int  // u16 W, u32 mW
	gfx, uclk                int  // u16 MHz
	width, speed             int  // u16 lanes, u16 in 0.1 GT/s
	widthByte, speedByte     int  // the same as u8
	throttle, throttleCommon int  // u32 with each chip's own bits, u64 with common bits
}

func layoutOf(format, content byte) (layout, bool) {
	// Versions 1.1 to 1.3 grow at the end only.
	dgpu := layout{edge: 4, hotspot: 6, memory: 8, busy: 16, memoryBusy: 18, watts: 22, gfx: 54, uclk: 58, throttle: 68, width: 74, speed: 76}
	apu := layout{centi: true, edge: 4, gfx: 76, uclk: 80, throttle: 108}
	switch [2]byte{format, content} {
	case [2]byte{1, 0}:
		return layout{size: 80, edge: 16, hotspot: 18, memory: 20, busy: 28, memoryBusy: 30, watts: 34, gfx: 54, uclk: 58, throttle: 68, widthByte: 74, speedByte: 75}, true
	case [2]byte{1, 1}:
		dgpu.size = 96
		return dgpu, true
	case [2]byte{1, 2}:
		dgpu.size = 104
		return dgpu, true
	case [2]byte{1, 3}:
		dgpu.size, dgpu.throttleCommon = 120, 112
		return dgpu, true
	case [2]byte{1, 4}:
		return layout{size: 288, hotspot: 4, memory: 6, watts: 10, busy: 12, memoryBusy: 14, throttle: 40, width: 48, speed: 50, gfx: 240, uclk: 280}, true
	case [2]byte{1, 5}:
		return layout{size: 360, hotspot: 4, memory: 6, watts: 10, busy: 12, memoryBusy: 14, throttle: 104, width: 112, speed: 114, gfx: 312, uclk: 352}, true
	case [2]byte{1, 6}:
		return layout{size: 384, hotspot: 4, memory: 6, watts: 10, busy: 12, memoryBusy: 14, throttle: 128, width: 136, speed: 138, gfx: 336, uclk: 376}, true
	case [2]byte{2, 0}:
		return layout{size: 120, centi: true, edge: 16, gfx: 80, uclk: 84, throttle: 112}, true
	case [2]byte{2, 1}:
		apu.size = 120
		return apu, true
	case [2]byte{2, 2}:
		apu.size, apu.throttleCommon = 128, 120
		return apu, true
	case [2]byte{2, 3}:
		apu.size, apu.throttleCommon = 152, 120
		return apu, true
	case [2]byte{2, 4}:
		apu.size, apu.throttleCommon = 168, 120
		return apu, true
	case [2]byte{3, 0}:
		return layout{size: 264, centi: true, edge: 4, busy: 42, milliwatts: 112, gfx: 174, uclk: 186}, true
	}
	return layout{}, false
}

// ParseMetrics reads a gpu_metrics table. Only versions whose layout is known, and whose size is the one that the layout
// gives, are read: newer ones are ErrMetricsVersion, not guesses.
func ParseMetrics(b []byte) (Metrics, error) {
	if len(b) < 4 {
		return Metrics{}, ErrMetricsShort
	}
	size, format, content := int(binary.LittleEndian.Uint16(b)), b[2], b[3]
	if size > len(b) {
		return Metrics{}, ErrMetricsShort
	}
	l, ok := layoutOf(format, content)
	if !ok || l.size != size {
		return Metrics{}, fmt.Errorf("%w: %d.%d of %d bytes", ErrMetricsVersion, format, content, size)
	}
	t := table(b)
	m := Metrics{Version: fmt.Sprintf("%d.%d", format, content)}
	degrees := 1.0
	if l.centi {
		degrees = 0.01
	}
	m.EdgeC, m.HotspotC, m.MemoryC = t.scaled(l.edge, degrees), t.scaled(l.hotspot, degrees), t.scaled(l.memory, degrees)
	m.Busy, m.MemoryBusy = ratio(t.u16(l.busy)), ratio(t.u16(l.memoryBusy))
	m.SocketWatts = t.scaled(l.watts, 1)
	if mw, ok := t.u32(l.milliwatts).Get(); ok {
		m.SocketWatts = backends.Some(float64(mw) / 1000)
	}
	m.GFXMHz, m.MemoryMHz = t.u16(l.gfx), t.u16(l.uclk)
	m.LinkWidth, m.LinkGTs = t.u16(l.width), t.scaled(l.speed, 0.1)
	if l.widthByte > 0 {
		m.LinkWidth, m.LinkGTs = backends.Some(uint64(b[l.widthByte])), backends.Some(float64(b[l.speedByte])/10)
	}
	t.throttling(l, &m)
	return m, nil
}

// table reads fields by offset; the caller has checked that the layout fits.
type table []byte

func (t table) u16(at int) backends.Optional[uint64] {
	if at == 0 {
		return backends.Optional[uint64]{}
	}
	if v := binary.LittleEndian.Uint16(t[at:]); v != 0xffff {
		return backends.Some(uint64(v))
	}
	return backends.Optional[uint64]{}
}

func (t table) u32(at int) backends.Optional[uint64] {
	if at == 0 {
		return backends.Optional[uint64]{}
	}
	if v := binary.LittleEndian.Uint32(t[at:]); v != 0xffffffff {
		return backends.Some(uint64(v))
	}
	return backends.Optional[uint64]{}
}

func (t table) scaled(at int, unit float64) backends.Optional[float64] {
	if v, ok := t.u16(at).Get(); ok {
		return backends.Some(float64(v) * unit)
	}
	return backends.Optional[float64]{}
}

// ratio turns a percentage into 0..1; more than 100 is not a percentage.
func ratio(percent backends.Optional[uint64]) backends.Optional[float64] {
	if v, ok := percent.Get(); ok && v <= 100 {
		return backends.Some(float64(v) / 100)
	}
	return backends.Optional[float64]{}
}

func (t table) throttling(l layout, m *Metrics) {
	if l.throttleCommon > 0 {
		bits := binary.LittleEndian.Uint64(t[l.throttleCommon:])
		if bits != 1<<64-1 {
			m.Throttled, m.Reasons = backends.Some(bits != 0), ThrottleReasons(bits)
			return
		}
	}
	if bits, ok := t.u32(l.throttle).Get(); ok {
		m.Throttled = backends.Some(bits != 0)
	}
}

// ThrottleReasons names the groups of the chip-independent throttle bits (the driver's SMU_THROTTLER_* numbers): power
// limits are bits 0 to 15, current limits 16 to 31, temperatures 32 to 55.
func ThrottleReasons(bits uint64) []string {
	var reasons []string
	for _, g := range []struct {
		name string
		mask uint64
	}{
		{"power", 0xffff},
		{"current", 0xffff << 16},
		{"memory temperature", 1 << 34},
		{"voltage regulator temperature", 0xf<<38 | 3<<44},
		{"temperature", 0xff_ffff << 32 &^ (1<<34 | 0xf<<38 | 3<<44)},
		{"other", 0xff << 56},
	} {
		if bits&g.mask != 0 {
			reasons = append(reasons, g.name)
		}
	}
	return reasons
}
