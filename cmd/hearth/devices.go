package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/sysroot"
)

func (a *app) devicesCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:   "devices",
		Short: "list the GPUs of this machine",
		Long:  "Lists AMD GPUs as the kernel describes them. Nothing is loaded and no GPU is woken.",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// sysfs files of a hung GPU may block; the user should not wait for them.
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			sys, err := kfd.Read(ctx, sysroot.Host())
			if err != nil {
				return fmt.Errorf("read devices: %w", err)
			}
			devices := sys.Devices(backends.Environ(a.env))
			if a.json {
				if devices == nil {
					devices = []backends.Device{}
				}
				problems := sys.Problems
				if problems == nil {
					problems = []backends.Problem{}
				}
				return a.printJSON(map[string]any{"devices": devices, "problems": problems})
			}
			if len(devices) == 0 {
				a.printf("no AMD GPU is visible; models run on the CPU\n")
				return nil
			}
			rows := [][]string{{"", "NAME", "TARGET", "KIND", "PCI", "VRAM", "HIP"}}
			for _, d := range devices {
				rows = append(rows, []string{fmt.Sprint(d.Index), d.Name, dash(d.GFX), dash(string(d.Kind)), dash(string(d.PCI)), vram(d), hipState(d)})
			}
			table(a.out, rows)
			return nil
		},
	})
}

func vram(d backends.Device) string {
	n, ok := d.Memory.VRAMTotal.Get()
	if !ok {
		return "unknown"
	}
	return size(int64(n))
}

// hipState says whether HIP could use the GPU, and why not.
func hipState(d backends.Device) string {
	switch {
	case d.HIP == nil:
		return "not visible"
	case d.HIP.Usable():
		return "yes"
	}
	var why []string
	for _, b := range d.HIP.Blocked {
		why = append(why, b.Text)
	}
	return strings.Join(why, "; ")
}
