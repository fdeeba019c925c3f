package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"hearth/backends"
)

// This file holds the checks of how well a GPU that works is connected: memory, links, several of them. What decides
// whether it works stands beside the table in rows_kernel.go.

func checkReBAR(f *facts) outcome {
	var off []string
	for _, d := range f.Devices {
		if large, ok := d.Memory.LargeBAR.Get(); ok && !large && d.Kind != backends.KindIntegrated {
			s := describe(d)
			if v, ok := d.Memory.VisibleTotal.Get(); ok {
				s += fmt.Sprintf(": %d of %d MiB visible", v>>20, d.Memory.VRAMTotal.Or(0)>>20)
			}
			off = append(off, s)
		}
	}
	if len(off) > 0 {
		return warning(strings.Join(off, ", "))
	}
	return good("")
}

// checkTTM warns when an APU is the best GPU and its share of the memory is the kernel's default.
func checkTTM(f *facts) outcome {
	total, ok := f.System.MemTotal.Get()
	for _, d := range f.Devices {
		if d.Kind != backends.KindIntegrated {
			return skipped("there is a discrete GPU")
		}
	}
	for _, d := range f.Devices {
		gtt, known := d.Memory.GTTTotal.Get()
		if !ok || !known {
			return unknown("the size of GTT or of the memory is not known")
		}
		if gtt <= total*6/10 && total > 16<<30 {
			return warning(fmt.Sprintf("%s may map %d of %d MiB", d.Name, gtt>>20, total>>20))
		}
	}
	return good("")
}

// A card is taken to spill when its VRAM is this full, in percent, while it maps this much system memory, in bytes:
// drivers keep some tens of MiB there anyway, a desktop on the card up to some hundred.
const (
	spillPercent = 95
	spillBytes   = 1 << 30
)

func checkSpill(f *facts) outcome {
	var full []string
	known := false
	for _, d := range f.Devices {
		used, ok1 := d.Memory.VRAMUsed.Get()
		total, ok2 := d.Memory.VRAMTotal.Get()
		mapped, ok3 := d.Memory.GTTUsed.Get()
		if d.Kind != backends.KindDiscrete || !ok1 || !ok2 || !ok3 {
			continue
		}
		known = true
		if used >= total/100*spillPercent && mapped >= spillBytes {
			full = append(full, fmt.Sprintf("%s: %d of %d MiB of VRAM in use, and %d MiB of system memory", describe(d), used>>20, total>>20, mapped>>20))
		}
	}
	switch {
	case len(full) > 0:
		return warning(strings.Join(full, ", "))
	case !known:
		return skipped("no discrete GPU says how much of its memory is in use")
	}
	return good("")
}

func checkPCIe(f *facts) outcome {
	var slow []string
	for _, c := range f.System.Cards {
		width, ok := c.PCIe.Width.Get()
		if slot, known := c.PCIe.SlotWidth.Get(); known && (!ok || slot < width) {
			width, ok = slot, true
		}
		most, known := c.PCIe.MaxWidth.Get()
		// Below x8 it shows; a sleeping card may have given lanes up.
		if ok && known && width > 0 && width < 8 && width < most && c.Runtime != "suspended" {
			slow = append(slow, fmt.Sprintf("%s has x%d of x%d", c.PCI, width, most))
		}
	}
	if len(slow) > 0 {
		return warning(strings.Join(slow, ", "))
	}
	return good("")
}

func checkIOMMU(f *facts) outcome {
	discrete := 0
	for _, d := range f.Devices {
		if d.Kind == backends.KindDiscrete && d.RenderNode != "" {
			discrete++
		}
	}
	if discrete < 2 {
		return skipped("fewer than two discrete GPUs")
	}
	for _, p := range f.cmdline {
		switch p {
		case "iommu=pt", "iommu=off", "amd_iommu=off", "intel_iommu=off", "iommu.passthrough=1":
			return good(p)
		}
	}
	if len(f.cmdline) == 0 {
		return unknown("/proc/cmdline is not readable")
	}
	return warning("neither iommu=pt nor iommu=off is on the kernel command line")
}

func checkSysfs(f *facts) outcome {
	if f.SystemErr != nil {
		return bad("the walk was cut off: " + f.SystemErr.Error())
	}
	var problems []backends.Problem
	problems = append(problems, f.System.Problems...)
	for _, d := range f.Devices {
		problems = append(problems, d.Problems...)
	}
	problems = slices.DeleteFunc(problems, func(p backends.Problem) bool { return errors.Is(p, fs.ErrNotExist) }) // not every kernel has every file
	if len(problems) == 0 {
		return good("")
	}
	return warning(fmt.Sprintf("%s, the first: %s", count(len(problems), "file"), problems[0].Error()))
}
