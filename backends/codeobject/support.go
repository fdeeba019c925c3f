package codeobject

import (
	"fmt"
	"slices"
	"strings"

	"hearth/backends"
)

// Support says how the library covers a GPU. gpu is the target as ROCr reports it; a bare "gfx90a" leaves XNACK at its
// default, off, and SRAM ECC open.
func (l Library) Support(gpu Target) backends.Support {
	if hit, ok := l.find(gpu.Processor, gpu); ok {
		return backends.Support{Class: backends.SupportNative, Target: hit.String(), Reason: "the library has code for " + hit.String()}
	}
	if generic := backends.GFXGeneric(gpu.Processor); generic != "" {
		if hit, ok := l.find(generic, gpu); ok {
			return backends.Support{Class: backends.SupportGeneric, Target: hit.String(), Reason: "the library has code for the family, " + hit.String()}
		}
	}
	if hit, ok := l.find(SPIRV, Target{}); ok {
		return backends.Support{Class: backends.SupportSPIRV, Target: hit.String(), Reason: "the library has portable code that is compiled at load"}
	}
	if l.Unknown != "" {
		return backends.Support{Class: backends.SupportUnknown, Reason: l.Unknown}
	}
	missing := fmt.Sprintf("no code object for %s", gpu)
	if i := slices.IndexFunc(l.Targets, func(t Target) bool { return t.Processor == gpu.Processor }); i >= 0 {
		missing = fmt.Sprintf("the code object for %s needs other features than %s has", l.Targets[i], gpu)
	} else if slices.ContainsFunc(l.Partial, func(t Target) bool { return t.Processor == gpu.Processor }) {
		missing = fmt.Sprintf("only part of the kernels have code for %s", gpu)
	}
	targets, risky := backends.GFXOverrides(gpu.Processor)
	for _, as := range targets {
		hit, ok := l.find(as, Target{Processor: as})
		if !ok {
			continue
		}
		reason := fmt.Sprintf("%s; code for %s has the same instructions", missing, hit)
		if risky {
			reason += ", though hangs and page faults are on record"
		}
		return backends.Support{Class: backends.SupportOverride, Target: hit.String(), Override: backends.OverrideValue(as), Reason: reason}
	}
	return backends.Support{Class: backends.SupportNone, Reason: missing + "; the library has " + l.list()}
}

// find looks for code for processor that runs in gpu's features.
func (l Library) find(processor string, gpu Target) (Target, bool) {
	xnack := gpu.XNACK
	if xnack == Any {
		xnack = Off // the driver's default
	}
	for _, t := range l.Targets {
		if t.Processor == processor && fits(t.XNACK, xnack) && fits(t.SRAMECC, gpu.SRAMECC) {
			return t, true
		}
	}
	return Target{}, false
}

// fits says whether code compiled for state runs on a GPU in state gpu. An unknown state of the GPU gets the benefit of
// the doubt.
func fits(code, gpu Feature) bool { return code == Any || gpu == Any || code == gpu }

func (l Library) list() string {
	if len(l.Targets) == 0 {
		return "no GPU code"
	}
	names := make([]string, len(l.Targets))
	for i, t := range l.Targets {
		names[i] = t.String()
	}
	return strings.Join(names, ", ")
}

// Apply gives each row's HIP face its verdict and blocks the faces that cannot run: no code for the target that ROCr
// reports (an override in force counts), or no rocBLAS files for it. blas is nil when the plugin needs none or nobody
// looked. Rows without a HIP face stay as they are. The result is a new slice; rows are not changed.
func Apply(rows []backends.Device, lib Library, blas KernelFiles) []backends.Device {
	rows = slices.Clone(rows)
	for i := range rows {
		if rows[i].HIP == nil {
			continue
		}
		face := *rows[i].HIP
		face.Blocked = slices.Clone(face.Blocked)
		target, err := ParseTarget(face.GFX)
		if err != nil {
			face.Support = backends.Support{Class: backends.SupportUnknown, Reason: "the GPU's gfx target is unknown"}
			rows[i].HIP = &face
			continue
		}
		face.Support = lib.Support(target)
		switch face.Support.Class {
		case backends.SupportNone:
			face.Blocked = append(face.Blocked, backends.Block{Code: backends.BlockNoCode, Text: face.Support.Reason + "; use Vulkan, or a HIP plugin built for this target"})
		case backends.SupportOverride:
			face.Blocked = append(face.Blocked, backends.Block{Code: backends.BlockNoCode,
				Text: fmt.Sprintf("%s; use Vulkan, or ask for the override %s", face.Support.Reason, face.Support.Override)})
		}
		if blas != nil {
			covered := blas.Covers(target.Processor)
			face.Support.BLAS = backends.Some(covered)
			if !covered {
				face.Blocked = append(face.Blocked, backends.Block{Code: backends.BlockNoBLAS,
					Text: fmt.Sprintf("rocBLAS has no kernel files for %s (it has %s) and would end the process at the first matrix product", target.Processor, strings.Join(blas.Processors(), ", "))})
			}
		}
		rows[i].HIP = &face
	}
	return rows
}
