package doctor

import (
	"fmt"
	"slices"
	"strings"

	"hearth/backends"
)

// judgeCode fills the HIP face of each device with what the bundle's code objects and kernel files say.
func (f *facts) judgeCode() {
	b := f.env.Bundle
	if !b.Has(backends.HIP) {
		return
	}
	for i := range f.devices {
		d := &f.devices[i]
		if d.HIP == nil || d.GFX == "" {
			continue
		}
		d.HIP.Support = b.Support(d.HIP.GFX)
		switch s := d.HIP.Support; {
		case s.Class == backends.SupportNone || s.Class == backends.SupportOverride:
			d.HIP.Blocked = append(d.HIP.Blocked, backends.Block{Code: backends.BlockNoCode, Text: s.Reason})
		case s.BLAS.Known() && !s.BLAS.Or(true):
			d.HIP.Blocked = append(d.HIP.Blocked, backends.Block{
				Code: backends.BlockNoBLAS, Text: fmt.Sprintf("rocBLAS in the bundle has no kernel files for %s and aborts at the first matrix product", d.HIP.GFX),
			})
		}
	}
}

// Support says how the bundle's HIP plugin covers a target, as ROCr reports it.
func (b *Bundle) Support(gfx string) backends.Support {
	targets, ok := b.GFXTargets.Get()
	if !ok {
		return backends.Support{Class: backends.SupportUnknown, Reason: "the HIP plugin does not say which targets it holds"}
	}
	s := backends.Support{Class: backends.SupportNone}
	generic := backends.GFXGeneric(gfx)
	switch {
	case slices.Contains(targets, gfx):
		s = backends.Support{Class: backends.SupportNative, Target: gfx, Reason: "the HIP plugin has code for " + gfx}
	case generic != "" && slices.Contains(targets, generic):
		s = backends.Support{Class: backends.SupportGeneric, Target: generic, Reason: "the HIP plugin has code for " + generic}
	case slices.Contains(targets, "amdgcnspirv"):
		s = backends.Support{Class: backends.SupportSPIRV, Target: "amdgcnspirv", Reason: "the HIP plugin has portable code, compiled at load"}
	default:
		s.Reason = fmt.Sprintf("the HIP plugin has no code for %s (it has %s)", gfx, strings.Join(targets, " "))
		candidates, _ := backends.GFXOverrides(gfx)
		for _, c := range candidates {
			if slices.Contains(targets, c) {
				s.Class, s.Target, s.Override = backends.SupportOverride, c, backends.OverrideValue(c)
				break
			}
		}
	}
	want := gfx
	if s.Class == backends.SupportOverride {
		want = s.Target
	}
	if blas, ok := b.BLASTargets.Get(); ok {
		s.BLAS = backends.Some(slices.Contains(blas, want) || slices.Contains(b.BLASFallback, want))
	}
	return s
}
