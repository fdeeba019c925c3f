package telemetry_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"hearth/backends"
	"hearth/backends/telemetry"
)

// put is one field of a synthetic table.
type put struct {
	at, bytes int
	value     uint64
}

func metricsTable(size int, format, content byte, fields ...put) []byte {
	b := make([]byte, size)
	for i := 4; i < size; i++ {
		b[i] = 0xff // not supported
	}
	binary.LittleEndian.PutUint16(b, uint16(size))
	b[2], b[3] = format, content
	for _, f := range fields {
		for i := range f.bytes {
			b[f.at+i] = byte(f.value >> (8 * i))
		}
	}
	return b
}

// v13 is an RX 7900 XTX under load, held back by its power limit and hot memory.
func v13() []byte {
	return metricsTable(120, 1, 3, put{4, 2, 62}, put{6, 2, 91}, put{8, 2, 94}, put{16, 2, 99}, put{18, 2, 77}, put{22, 2, 339},
		put{54, 2, 2300}, put{58, 2, 1249}, put{68, 4, 0x12}, put{74, 2, 16}, put{76, 2, 160}, put{112, 8, 1<<34 | 1})
}

func TestParseMetrics(t *testing.T) {
	t.Parallel()
	f := func(o backends.Optional[float64]) float64 { return o.Or(-1) }
	u := func(o backends.Optional[uint64]) int { return int(o.Or(1 << 40)) }
	const none = 1 << 40
	for _, c := range []struct {
		name                             string
		table                            []byte
		edge, hot, mem, busy, membusy, w float64
		gfx, uclk, width                 int
		gts                              float64
		throttled                        string
		reasons                          []string
	}{
		{"1.3", v13(), 62, 91, 94, 0.99, 0.77, 339, 2300, 1249, 16, 16, "true", []string{"power", "memory temperature"}},
		{"1.3 nothing supported", metricsTable(120, 1, 3), -1, -1, -1, -1, -1, -1, none, none, none, -1, "unknown", nil},
		{"1.0", metricsTable(80, 1, 0, put{16, 2, 50}, put{28, 2, 5}, put{34, 2, 20}, put{54, 2, 300}, put{68, 4, 0}, put{74, 1, 8}, put{75, 1, 80}), 50, -1, -1, 0.05, -1, 20, 300, none, 8, 8, "false", nil},
		{"1.1", metricsTable(96, 1, 1, put{4, 2, 40}, put{68, 4, 1}), 40, -1, -1, -1, -1, -1, none, none, none, -1, "true", nil},
		{"1.4 MI300", metricsTable(288, 1, 4, put{4, 2, 55}, put{6, 2, 44}, put{10, 2, 600}, put{12, 2, 100}, put{240, 2, 2100}, put{280, 2, 1300}), -1, 55, 44, 1, -1, 600, 2100, 1300, none, -1, "unknown", nil},
		{"1.5", metricsTable(360, 1, 5, put{10, 2, 1}, put{104, 4, 2}, put{352, 2, 9}), -1, -1, -1, -1, -1, 1, none, 9, none, -1, "true", nil},
		{"1.6", metricsTable(384, 1, 6, put{136, 2, 16}, put{138, 2, 320}, put{336, 2, 7}), -1, -1, -1, -1, -1, -1, 7, none, 16, 32, "unknown", nil},
		{"2.4 APU", metricsTable(168, 2, 4, put{4, 2, 5150}, put{76, 2, 2700}, put{108, 4, 5}, put{120, 8, 0}), 51.5, -1, -1, -1, -1, -1, 2700, none, none, -1, "false", nil},
		{"2.0", metricsTable(120, 2, 0, put{16, 2, 4000}, put{80, 2, 400}), 40, -1, -1, -1, -1, -1, 400, none, none, -1, "unknown", nil},
		{"3.0 Strix Halo", metricsTable(264, 3, 0, put{4, 2, 6525}, put{42, 2, 88}, put{112, 4, 119500}, put{174, 2, 2850}, put{186, 2, 1000}), 65.25, -1, -1, 0.88, -1, 119.5, 2850, 1000, none, -1, "unknown", nil},
		{"busy above 100 is no percentage", metricsTable(120, 1, 3, put{16, 2, 300}), -1, -1, -1, -1, -1, -1, none, none, none, -1, "unknown", nil},
	} {
		m, err := telemetry.ParseMetrics(c.table)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := []float64{f(m.EdgeC), f(m.HotspotC), f(m.MemoryC), f(m.Busy), f(m.MemoryBusy), f(m.SocketWatts), f(m.LinkGTs)}
		if want := []float64{c.edge, c.hot, c.mem, c.busy, c.membusy, c.w, c.gts}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
		if u(m.GFXMHz) != c.gfx || u(m.MemoryMHz) != c.uclk || u(m.LinkWidth) != c.width || m.Throttled.String() != c.throttled || !slices.Equal(m.Reasons, c.reasons) {
			t.Errorf("%s: %+v", c.name, m)
		}
	}
	for name, c := range map[string]struct {
		table []byte
		want  error
	}{
		"empty": {nil, telemetry.ErrMetricsShort}, "cut": {v13()[:100], telemetry.ErrMetricsShort}, "newer": {metricsTable(400, 1, 9), telemetry.ErrMetricsVersion},
		"other size": {metricsTable(128, 1, 3), telemetry.ErrMetricsVersion}, "zero": {make([]byte, 64), telemetry.ErrMetricsVersion},
	} {
		if _, err := telemetry.ParseMetrics(c.table); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestParseText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][2]int{
		"0: 500Mhz\n1: 132Mhz *\n2: 2482Mhz\n": {132, 2482}, "S: 19Mhz *\n0: 500Mhz\n": {19, 500}, "0: 500Mhz\n": {-1, 500},
		"": {-1, -1}, "0: 16.0GT/s, x16 619Mhz *\n": {-1, -1}, "N/A": {-1, -1}, "0:\n": {-1, -1}, "0: 99999999999Mhz *": {-1, -1}} {
		active, highest := telemetry.ParseClocks([]byte(in))
		got := [2]int{-1, -1}
		for i, o := range []backends.Optional[uint64]{active, highest} {
			if v, ok := o.Get(); ok {
				got[i] = int(v)
			}
		}
		if got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
	for in, want := range map[string]float64{"16.0 GT/s PCIe": 16, "2.5 GT/s": 2.5, "Unknown": -1, "": -1, "NaN GT/s": -1, "-1 GT/s": -1} {
		if got := telemetry.ParseLinkSpeed(in).Or(-1); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

func FuzzMetrics(f *testing.F) {
	f.Add(v13())
	f.Add(metricsTable(264, 3, 0))
	f.Add(metricsTable(288, 1, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := telemetry.ParseMetrics(b)
		if err != nil {
			return
		}
		for _, r := range []backends.Optional[float64]{m.Busy, m.MemoryBusy} {
			if v, ok := r.Get(); ok && (v < 0 || v > 1) {
				t.Errorf("ratio %v", v)
			}
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("0: 500Mhz\n1: 132Mhz *\n"))
	f.Add([]byte("drm-driver: amdgpu\ndrm-client-id: 1\ndrm-resident-vram: 9 KiB\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		active, highest := telemetry.ParseClocks(b)
		if active.Known() && active.Or(0) > highest.Or(0) {
			t.Errorf("active %v, highest %v", active, highest)
		}
		telemetry.ParseLinkSpeed(string(b))
		telemetry.ParseFDInfo(b)
	})
}
