package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/sysroot"
)

// Reading is what one GPU said at one moment. What it does not say is unknown.
type Reading struct {
	At   time.Time    `json:"at"`
	PCI  backends.PCI `json:"pci"`
	Name string       `json:"name"`
	// Suspended says that the GPU sleeps. Its sensors are then left alone, since reading them would wake it.
	Suspended  bool                       `json:"suspended,omitempty"`
	Memory     backends.Memory            `json:"memory"`
	Busy       backends.Optional[float64] `json:"busy,omitzero"`        // 0..1
	MemoryBusy backends.Optional[float64] `json:"memory_busy,omitzero"` // 0..1
	// Watts is the board's power, on an APU the whole package's; WattsCap the limit that is set.
	Watts        backends.Optional[float64] `json:"watts,omitzero"`
	WattsCap     backends.Optional[float64] `json:"watts_cap,omitzero"`
	Temperatures []Temperature              `json:"temperatures,omitempty"`
	FanRPM       backends.Optional[uint64]  `json:"fan_rpm,omitzero"`
	GFXMHz       backends.Optional[uint64]  `json:"gfx_mhz,omitzero"`
	GFXMaxMHz    backends.Optional[uint64]  `json:"gfx_max_mhz,omitzero"`
	MemoryMHz    backends.Optional[uint64]  `json:"memory_mhz,omitzero"`
	MemoryMaxMHz backends.Optional[uint64]  `json:"memory_max_mhz,omitzero"`
	Throttled    backends.Optional[bool]    `json:"throttled,omitzero"`
	Reasons      []string                   `json:"reasons,omitempty"`
	LinkWidth    backends.Optional[uint64]  `json:"link_width,omitzero"` // lanes of the slot
	LinkGTs      backends.Optional[float64] `json:"link_gts,omitzero"`   // 10^9 transfers per second and lane
	// Spilled is how much more system memory the GPU maps than at its lowest, while its VRAM is full; 0 when it is not.
	// Only discrete GPUs spill.
	Spilled  backends.Optional[uint64] `json:"spilled,omitzero"`
	Problems []backends.Problem        `json:"problems,omitempty"`
}

// Temperature is one sensor. Sensor is "edge", "junction" (the hottest spot) or "mem".
type Temperature struct {
	Sensor   string                     `json:"sensor"`
	Celsius  float64                    `json:"celsius"`
	Critical backends.Optional[float64] `json:"critical,omitzero"`
}

// read collects a reading of a card; it never fails. root must bound its calls.
func read(ctx context.Context, root sysroot.FS, card kfd.Card, name string) Reading {
	c := collector{ctx: ctx, root: root, dir: card.Path}
	c.r = Reading{PCI: card.PCI, Name: name, Suspended: c.text("power/runtime_status") == "suspended"}
	c.r.Memory = backends.Memory{
		VRAMTotal: c.uint("mem_info_vram_total"), VRAMUsed: c.uint("mem_info_vram_used"),
		VisibleTotal: c.uint("mem_info_vis_vram_total"), VisibleUsed: c.uint("mem_info_vis_vram_used"),
		GTTTotal: c.uint("mem_info_gtt_total"), GTTUsed: c.uint("mem_info_gtt_used"),
	}
	c.link()
	if c.r.Suspended {
		return c.r
	}
	c.r.Busy, c.r.MemoryBusy = ratio(c.uint("gpu_busy_percent")), ratio(c.uint("mem_busy_percent"))
	c.r.GFXMHz, c.r.GFXMaxMHz = ParseClocks(c.bytes("pp_dpm_sclk"))
	c.r.MemoryMHz, c.r.MemoryMaxMHz = ParseClocks(c.bytes("pp_dpm_mclk"))
	c.hwmon()
	c.metrics()
	return c.r
}

// collector reads the files of one card.
type collector struct {
	ctx  context.Context
	root sysroot.FS
	dir  string
	r    Reading
}

// problem keeps a failure that is not plain absence: kernels and chips differ in what they export.
func (c *collector) problem(name string, err error) {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	c.r.Problems = append(c.r.Problems, backends.Problem{Path: name, Err: err})
}

func (c *collector) bytes(file string) []byte {
	if c.ctx.Err() != nil {
		return nil // one slow card must not use up the time of a scrape file by file
	}
	name := path.Join(c.dir, file)
	b, err := c.root.ReadFile(name)
	c.problem(name, err)
	return b
}

func (c *collector) text(file string) string { return strings.TrimSpace(string(c.bytes(file))) }

func (c *collector) uint(file string) backends.Optional[uint64] {
	b := c.bytes(file)
	if b == nil {
		return backends.Optional[uint64]{}
	}
	s := strings.TrimSpace(string(b))
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		c.problem(path.Join(c.dir, file), fmt.Errorf("%.40q is not a number", s))
		return backends.Optional[uint64]{}
	}
	return backends.Some(v)
}

// scaled reads an integer in fixed units; negative values occur for temperatures.
func (c *collector) scaled(file string, unit float64) backends.Optional[float64] {
	b := c.bytes(file)
	if b == nil {
		return backends.Optional[float64]{}
	}
	s := strings.TrimSpace(string(b))
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		c.problem(path.Join(c.dir, file), fmt.Errorf("%.40q is not a number", s))
		return backends.Optional[float64]{}
	}
	return backends.Some(float64(v) * unit)
}

// link reads the narrower of the card's own link and its slot's: a card with a switch on board reports x16 whatever the
// slot has.
func (c *collector) link() {
	c.r.LinkWidth, c.r.LinkGTs = c.linkOf(c.dir)
	target, err := c.root.ReadLink(c.dir)
	if err != nil {
		return
	}
	// The root port is the first folder below "pciDDDD:BB"; a card that sits there itself has no other.
	parts := strings.Split(target, "/")
	for i, p := range parts {
		if strings.HasPrefix(p, "pci") && i+2 < len(parts) {
			width, speed := c.linkOf(path.Join(path.Dir(c.dir), parts[i+1]))
			c.r.LinkWidth, c.r.LinkGTs = backends.MinKnown(c.r.LinkWidth, width), backends.MinKnown(c.r.LinkGTs, speed)
			return
		}
	}
}

// linkOf reads one PCI function's link. A width of 0 or 255 is how the kernel says that there is none.
func (c *collector) linkOf(dir string) (width backends.Optional[uint64], gts backends.Optional[float64]) {
	in := collector{ctx: c.ctx, root: c.root, dir: dir}
	if lanes, ok := in.uint("current_link_width").Get(); ok && lanes > 0 && lanes <= 32 {
		width = backends.Some(lanes)
	}
	gts = ParseLinkSpeed(in.text("current_link_speed"))
	c.r.Problems = append(c.r.Problems, in.r.Problems...)
	return width, gts
}

// hwmon reads the sensors; the folder's number changes from boot to boot.
func (c *collector) hwmon() {
	if c.ctx.Err() != nil {
		return
	}
	parent := path.Join(c.dir, "hwmon")
	names, err := c.root.ReadDir(parent)
	c.problem(parent, err)
	for _, name := range names {
		at := "hwmon/" + name
		if c.text(at+"/name") != "amdgpu" {
			continue
		}
		for i := 1; i <= 3; i++ {
			c.temperature(fmt.Sprintf("%s/temp%d", at, i), i)
		}
		// Older cards have an average, newer ones the last value alone.
		c.r.Watts = c.scaled(at+"/power1_average", 1e-6)
		if !c.r.Watts.Known() {
			c.r.Watts = c.scaled(at+"/power1_input", 1e-6)
		}
		c.r.WattsCap = c.scaled(at+"/power1_cap", 1e-6)
		c.r.FanRPM = c.uint(at + "/fan1_input")
		if hz, ok := c.uint(at + "/freq1_input").Get(); ok {
			c.r.GFXMHz = backends.Some(hz / 1e6)
		}
		if hz, ok := c.uint(at + "/freq2_input").Get(); ok {
			c.r.MemoryMHz = backends.Some(hz / 1e6)
		}
		return
	}
}

func (c *collector) temperature(prefix string, number int) {
	celsius, ok := c.scaled(prefix+"_input", 1e-3).Get()
	if !ok {
		return
	}
	label := c.text(prefix + "_label")
	if label == "" {
		label = []string{"edge", "junction", "mem"}[number-1] // before labels the order was the same
	}
	c.r.Temperatures = append(c.r.Temperatures, Temperature{Sensor: label, Celsius: celsius, Critical: c.scaled(prefix+"_crit", 1e-3)})
}

// metrics fills what the plain files did not say, and throttling, which only gpu_metrics says.
func (c *collector) metrics() {
	b := c.bytes("gpu_metrics")
	if b == nil {
		return
	}
	m, err := ParseMetrics(b)
	if err != nil {
		c.problem(path.Join(c.dir, "gpu_metrics"), err)
		return
	}
	fill(&c.r.Busy, m.Busy)
	fill(&c.r.MemoryBusy, m.MemoryBusy)
	fill(&c.r.Watts, m.SocketWatts)
	fill(&c.r.GFXMHz, m.GFXMHz)
	fill(&c.r.MemoryMHz, m.MemoryMHz)
	if m.LinkWidth.Or(0) > 0 {
		fill(&c.r.LinkWidth, m.LinkWidth)
	}
	if m.LinkGTs.Or(0) > 0 {
		fill(&c.r.LinkGTs, m.LinkGTs)
	}
	if len(c.r.Temperatures) == 0 {
		for _, t := range []struct {
			sensor string
			value  backends.Optional[float64]
		}{{"edge", m.EdgeC}, {"junction", m.HotspotC}, {"mem", m.MemoryC}} {
			if v, ok := t.value.Get(); ok && v > 0 {
				c.r.Temperatures = append(c.r.Temperatures, Temperature{Sensor: t.sensor, Celsius: v})
			}
		}
	}
	c.r.Throttled, c.r.Reasons = m.Throttled, m.Reasons
}

func fill[T any](to *backends.Optional[T], from backends.Optional[T]) {
	if !to.Known() {
		*to = from
	}
}
