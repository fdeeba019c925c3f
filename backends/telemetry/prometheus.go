package telemetry

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"hearth/backends"
)

// Collector gives a Sampler's newest readings to Prometheus as hearth_device_* gauges, in base units, labelled with PCI
// address and name. A figure that a GPU does not have is left out, never 0. It reads no file: a scrape costs nothing and
// cannot hang on a sensor.
func (s *Sampler) Collector() prometheus.Collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hearth_device_"+name, help, append([]string{"pci", "name"}, labels...), nil)
	}
	return &collectorOf{s: s,
		memTotal:   d("memory_total_bytes", "Memory of the GPU: vram, visible (VRAM that the CPU can map), gtt (system memory that the GPU may map).", "memory"),
		memUsed:    d("memory_used_bytes", "Memory in use by all processes.", "memory"),
		busy:       d("busy_ratio", "Share of time that the engine was busy: gfx, or memory controller.", "engine"),
		power:      d("power_watts", "Power of the board, of the whole package on an APU."),
		powerLimit: d("power_limit_watts", "Power limit that is set."),
		temp:       d("temperature_celsius", "Temperature.", "sensor"),
		fan:        d("fan_rpm", "Fan speed in revolutions per minute."),
		clock:      d("clock_hertz", "Clock: gfx or memory.", "clock"),
		throttled:  d("throttled", "1 while power, current or temperature limits hold the clocks back."),
		linkWidth:  d("link_width_lanes", "PCIe lanes in use, of the card or its slot, whichever is fewer."),
		linkSpeed:  d("link_transfers_per_second", "PCIe speed of a lane in transfers per second."),
		spilled:    d("vram_spilled_bytes", "System memory that the GPU took in addition while its VRAM was full."),
		suspended:  d("suspended", "1 while the GPU is powered down; its sensors are then not read."),
		problems:   d("read_problems", "Files that could not be read in the newest sample."),
		sampled:    d("sample_timestamp_seconds", "When the newest sample was taken, in seconds since 1970."),
	}
}

type collectorOf struct {
	s                                                            *Sampler
	memTotal, memUsed, busy, power, powerLimit, temp, fan, clock *prometheus.Desc
	throttled, linkWidth, linkSpeed, spilled, suspended          *prometheus.Desc
	problems, sampled                                            *prometheus.Desc
}

// Describe sends all descriptions.
func (c *collectorOf) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.memTotal, c.memUsed, c.busy, c.power, c.powerLimit, c.temp, c.fan, c.clock,
		c.throttled, c.linkWidth, c.linkSpeed, c.spilled, c.suspended, c.problems, c.sampled} {
		out <- d
	}
}

// Collect sends what the newest readings know.
func (c *collectorOf) Collect(out chan<- prometheus.Metric) {
	for _, r := range c.s.Latest() {
		c.reading(out, r)
	}
}

func (c *collectorOf) reading(out chan<- prometheus.Metric, r Reading) {
	send := func(d *prometheus.Desc, v backends.Optional[float64], labels ...string) {
		if n, ok := v.Get(); ok {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, append([]string{string(r.PCI), r.Name}, labels...)...)
		}
	}
	m := r.Memory
	send(c.memTotal, float(m.VRAMTotal), "vram")
	send(c.memUsed, float(m.VRAMUsed), "vram")
	send(c.memTotal, float(m.VisibleTotal), "visible")
	send(c.memUsed, float(m.VisibleUsed), "visible")
	send(c.memTotal, float(m.GTTTotal), "gtt")
	send(c.memUsed, float(m.GTTUsed), "gtt")
	send(c.busy, r.Busy, "gfx")
	send(c.busy, r.MemoryBusy, "memory")
	send(c.power, r.Watts)
	send(c.powerLimit, r.WattsCap)
	var sent []string
	for _, t := range r.Temperatures {
		if slices.Contains(sent, t.Sensor) {
			continue // two sensors with one label would fail the whole scrape
		}
		sent = append(sent, t.Sensor)
		send(c.temp, backends.Some(t.Celsius), t.Sensor)
	}
	send(c.fan, float(r.FanRPM))
	send(c.clock, times(float(r.GFXMHz), 1e6), "gfx")
	send(c.clock, times(float(r.MemoryMHz), 1e6), "memory")
	if throttled, ok := r.Throttled.Get(); ok {
		send(c.throttled, backends.Some(oneIf(throttled)))
	}
	send(c.linkWidth, float(r.LinkWidth))
	send(c.linkSpeed, times(r.LinkGTs, 1e9))
	send(c.spilled, float(r.Spilled))
	send(c.suspended, backends.Some(oneIf(r.Suspended)))
	send(c.problems, backends.Some(float64(len(r.Problems))))
	send(c.sampled, backends.Some(float64(r.At.UnixMilli())/1000))
}

func float(v backends.Optional[uint64]) backends.Optional[float64] {
	if n, ok := v.Get(); ok {
		return backends.Some(float64(n))
	}
	return backends.Optional[float64]{}
}

func times(v backends.Optional[float64], factor float64) backends.Optional[float64] {
	if n, ok := v.Get(); ok {
		return backends.Some(n * factor)
	}
	return v
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
