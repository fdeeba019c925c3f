package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/survey"
	"hearth/backends/sysroot"
	"hearth/backends/telemetry"
	"hearth/configs"
)

// devicesDeadline bounds the list with the child that lists Vulkan's devices: a first start of a driver takes seconds.
const devicesDeadline = time.Minute

// devicesFlags are the flags of one invocation.
type devicesFlags struct {
	watch, noProbe bool
	interval       time.Duration
	samples        int
}

// deviceRow is one entry of `hearth devices --json`.
type deviceRow struct {
	backends.Device
	// Budget is what weights and KV cache may take now.
	Budget backends.Budget `json:"budget"`
}

func (a *app) devicesCmd() *cobra.Command {
	var f devicesFlags
	c := a.jsonFlag(&cobra.Command{
		Use:   "devices",
		Short: "list the GPUs of this machine, or watch them",
		Long: `Lists GPUs with what each backend could do on them: HIP by the code in the engine bundle's plugin, Vulkan by what the
plugin lists in a child process. BUDGET is what a model may take. Nothing is computed; hearth doctor explains what is missing.

--watch prints memory, load, power, temperature and clocks until it is interrupted. It reads files and starts nothing.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			if f.watch {
				return a.watchDevices(cmd.Context(), cfg, f)
			}
			return a.listDevices(cmd.Context(), cfg, f)
		},
	})
	c.Flags().BoolVar(&f.watch, "watch", false, "print what the GPUs do, again and again")
	c.Flags().DurationVar(&f.interval, "interval", telemetry.DefaultInterval, "time between the lines of --watch")
	c.Flags().IntVar(&f.samples, "samples", 0, "end --watch after so many; 0: never")
	c.Flags().BoolVar(&f.noProbe, "no-probe", false, "read files only: without Vulkan")
	configs.AddFlags(c.Flags(), "engine.")
	return c
}

// listDevices prints the list with the faces of each device.
func (a *app) listDevices(ctx context.Context, cfg *configs.Config, f devicesFlags) error {
	ctx, cancel := context.WithTimeout(ctx, devicesDeadline)
	defer cancel()
	look, err := a.lookAtDevices(ctx, cfg, f)
	if err != nil {
		return err
	}
	rows := make([]deviceRow, len(look.Devices))
	for i, d := range look.Devices {
		rows[i] = deviceRow{d, backends.BudgetFor(backends.BudgetInput{Kind: d.Kind, Memory: d.Memory, MemAvailable: look.System.MemAvailable})}
	}
	if a.json {
		return a.printJSON(map[string]any{"devices": rows, "problems": look.System.Problems, "notes": look.Notes})
	}
	if len(rows) == 0 {
		a.printf("no AMD GPU is visible; models run on the CPU\n")
	} else {
		a.printDevices(rows)
	}
	for _, n := range look.Notes {
		a.printf("note: %s\n", n)
	}
	return nil
}

// lookAtDevices is a survey with the bundle in use; without a bundle it is what the kernel says, and a note.
func (a *app) lookAtDevices(ctx context.Context, cfg *configs.Config, f devicesFlags) (survey.Survey, error) {
	root, err := a.deviceRoot(cfg)
	if err != nil {
		return survey.Survey{}, err
	}
	b, err := a.bundle(cfg)
	if err == nil {
		c, cerr := a.surveyConfig(ctx, cfg, root, b, slog.New(slog.DiscardHandler)) // what is missing stands in the list
		if cerr != nil {
			return survey.Survey{}, cerr
		}
		if f.noProbe {
			c.Command = nil
		}
		return survey.New(c).Look(ctx)
	}
	sys, kerr := kfd.Read(ctx, root)
	if kerr != nil {
		return survey.Survey{}, fmt.Errorf("read devices: %w", kerr)
	}
	return survey.Survey{Devices: sys.Devices(backends.Environ(a.env)), System: sys, Notes: []string{"no engine bundle is known, so neither HIP's code nor Vulkan was looked at: " + err.Error()}}, nil
}

func (a *app) printDevices(rows []deviceRow) {
	out := [][]string{{"", "NAME", "TARGET", "KIND", "PCI", "MEMORY", "BUDGET", "HIP", "VULKAN"}}
	var why []string
	for _, d := range rows {
		hip, vulkan := "-", "-"
		if d.HIP != nil {
			hip = face(d.HIP.Name, string(d.HIP.Support.Class), d.HIP.Blocked)
			why = append(why, blocks(d.Index, backends.HIP, d.HIP.Blocked)...)
		}
		if d.Vulkan != nil {
			vulkan = face(d.Vulkan.Name, strings.TrimSpace(d.Vulkan.Driver+" "+d.Vulkan.DriverInfo), d.Vulkan.Blocked)
			why = append(why, blocks(d.Index, backends.Vulkan, d.Vulkan.Blocked)...)
		}
		out = append(out, []string{fmt.Sprint(d.Index), d.Name, dash(d.GFX), dash(string(d.Kind)), dash(string(d.PCI)), deviceMemory(d.Device), bytesOrUnknown(d.Budget.Bytes), hip, vulkan})
	}
	table(a.out, out)
	for _, line := range why {
		a.printf("%s\n", line)
	}
}

// face is one backend's cell: its name for the device and how it supports it, or "no".
func face(name, support string, blocked []backends.Block) string {
	if len(blocked) > 0 {
		return "no"
	}
	return dash(strings.TrimSpace(name + " " + support))
}

// blocks spells out each "no" of the table.
func blocks(index int, backend string, blocked []backends.Block) []string {
	var out []string
	for _, b := range blocked {
		out = append(out, fmt.Sprintf("%d %s: %s", index, backend, b.Text))
	}
	return out
}

// deviceMemory is the VRAM, on an integrated GPU with the system memory that it may map.
func deviceMemory(d backends.Device) string {
	text := bytesOrUnknown(d.Memory.VRAMTotal)
	if gtt, ok := d.Memory.GTTTotal.Get(); ok && d.Kind == backends.KindIntegrated {
		text += " + " + size(int64(gtt)) + " mapped"
	}
	return text
}

func bytesOrUnknown(n backends.Optional[uint64]) string {
	v, ok := n.Get()
	if !ok {
		return "unknown"
	}
	return size(int64(v))
}

// sampler watches the GPUs below root.
func (a *app) sampler(ctx context.Context, root sysroot.FS, log *slog.Logger) (*telemetry.Sampler, error) {
	sys, err := kfd.Read(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("read devices: %w", err)
	}
	return telemetry.New(telemetry.Config{Root: root, Logger: log}, sys.Cards, sys.Devices(backends.Environ(a.env))), nil
}

// watchDevices prints readings until ctx ends or there are enough.
func (a *app) watchDevices(ctx context.Context, cfg *configs.Config, f devicesFlags) error {
	if f.interval <= 0 {
		return &usageError{"--interval must be positive", "hearth devices --watch --interval 2s"}
	}
	root, err := a.deviceRoot(cfg)
	if err != nil {
		return err
	}
	s, err := a.sampler(ctx, root, a.logger(cfg)) // a spill is told on standard error
	if err != nil {
		return err
	}
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		readings := s.Sample(ctx)
		if len(readings) == 0 && !a.json {
			a.printf("no GPU with an amdgpu driver is visible\n")
			return nil
		}
		if a.json {
			err = a.printJSON(map[string]any{"readings": append([]telemetry.Reading{}, readings...)})
		} else {
			a.printReadings(readings)
		}
		if err != nil || n == f.samples {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (a *app) printReadings(readings []telemetry.Reading) {
	if terminal(a.out) {
		a.printf("\x1b[H\x1b[2J") // home, clear
	}
	rows := [][]string{{"PCI", "NAME", "VRAM", "GTT", "BUSY", "POWER", "TEMP", "GFX", "MEMORY", "LINK", "STATE"}}
	for _, r := range readings {
		rows = append(rows, []string{
			string(r.PCI), r.Name, usedOf(r.Memory.VRAMUsed, r.Memory.VRAMTotal), usedOf(r.Memory.GTTUsed, r.Memory.GTTTotal),
			figure(r.Busy, 100, "%.0f%%"), figure(r.Watts, 1, "%.0f W"), hottest(r.Temperatures),
			figure(asFloat(r.GFXMHz), 1, "%.0f MHz"), figure(asFloat(r.MemoryMHz), 1, "%.0f MHz"), link(r), readingState(r),
		})
	}
	table(a.out, rows)
}

func usedOf(used, total backends.Optional[uint64]) string {
	return bytesOrUnknown(used) + " of " + bytesOrUnknown(total)
}

func figure(v backends.Optional[float64], times float64, format string) string {
	n, ok := v.Get()
	if !ok {
		return "-"
	}
	return fmt.Sprintf(format, n*times)
}

func asFloat(v backends.Optional[uint64]) backends.Optional[float64] {
	n, ok := v.Get()
	if !ok {
		return backends.Optional[float64]{}
	}
	return backends.Some(float64(n))
}

func hottest(all []telemetry.Temperature) string {
	if len(all) == 0 {
		return "-"
	}
	top := all[0].Celsius
	for _, t := range all {
		top = max(top, t.Celsius)
	}
	return fmt.Sprintf("%.0f C", top)
}

func link(r telemetry.Reading) string {
	lanes, ok := r.LinkWidth.Get()
	if !ok {
		return "-"
	}
	return strings.TrimSpace(fmt.Sprintf("x%d %s", lanes, figure(r.LinkGTs, 1, "%g GT/s")))
}

// readingState is what a person should notice.
func readingState(r telemetry.Reading) string {
	var words []string
	if r.Suspended {
		words = append(words, "suspended")
	}
	if r.Throttled.Or(false) {
		words = append(words, strings.TrimSpace("throttled "+strings.Join(r.Reasons, ", ")))
	}
	if n := r.Spilled.Or(0); n > 0 {
		words = append(words, "VRAM spills "+size(int64(n)))
	}
	if len(r.Problems) > 0 {
		words = append(words, fmt.Sprintf("%d files unreadable", len(r.Problems)))
	}
	return dash(strings.Join(words, "; "))
}
