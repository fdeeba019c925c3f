package doctor

import (
	"hearth/backends"
	"hearth/backends/codeobject"
)

// judgeCode fills the HIP face of each device with what the bundle's code objects and kernel files say.
func (s *machine) judgeCode(b *Bundle) {
	if b.Has(backends.HIP) {
		s.Devices = codeobject.Apply(s.Devices, b.library(), b.BLAS)
	}
}

// library is the HIP plugin's code as backends/codeobject reads it. Targets that do not parse make the list unsure.
func (b *Bundle) library() codeobject.Library {
	lib := codeobject.Library{Unknown: b.GFXUnknown}
	for _, s := range b.GFXTargets {
		t, err := codeobject.ParseTarget(s)
		if err != nil {
			lib.Unknown = err.Error()
			continue
		}
		lib.Targets = append(lib.Targets, t)
	}
	return lib
}
