package backends

import (
	"fmt"
	"strconv"
	"strings"
)

// GFXName spells KFD's gfx_target_version (major*10000 + minor*100 + stepping) as LLVM does: the major number in
// decimal, minor and stepping as one hex digit each. 110000 is "gfx1100", 90010 "gfx90a". 0 and values that do not fit
// give "".
func GFXName(version uint64) string {
	major, minor, step := version/10000, version/100%100, version%100
	if version == 0 || major > 99 || minor > 15 || step > 15 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", major, minor, step)
}

// GFXVersion splits "gfx90a" into 9, 0, 10; ok is false for generic targets and anything else.
func GFXVersion(name string) (major, minor, step int, ok bool) {
	digits, found := strings.CutPrefix(name, "gfx")
	if !found || len(digits) < 3 || len(digits) > 4 {
		return 0, 0, 0, false
	}
	n := len(digits)
	ma, err1 := strconv.ParseUint(digits[:n-2], 10, 8)
	mi, err2 := strconv.ParseUint(digits[n-2:n-1], 16, 8)
	st, err3 := strconv.ParseUint(digits[n-1:], 16, 8)
	if err1 != nil || err2 != nil || err3 != nil || ma == 0 {
		return 0, 0, 0, false
	}
	return int(ma), int(mi), int(st), true
}

// GFXGeneric is the generic target that covers a GPU ("gfx11-generic" for gfx1100), "" when there is none: gfx908 and
// gfx90a have none, nor has anything before gfx900. The sets are LLVM's.
func GFXGeneric(name string) string {
	switch name {
	case "gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c":
		return "gfx9-generic"
	case "gfx940", "gfx941", "gfx942", "gfx950":
		return "gfx9-4-generic"
	case "gfx1010", "gfx1011", "gfx1012", "gfx1013":
		return "gfx10-1-generic"
	case "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036":
		return "gfx10-3-generic"
	case "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153":
		return "gfx11-generic"
	case "gfx1200", "gfx1201":
		return "gfx12-generic"
	}
	return ""
}

// GFXOverrides lists targets whose code a GPU can run when ROCr is told so (HSA_OVERRIDE_GFX_VERSION), safest first:
// chips of one instruction set. Combinations that run in part and compute wrong results (gfx115x as gfx1100, gfx906 as
// gfx900, anything across generations) are left out on purpose. risky says that hangs and page faults are on record.
func GFXOverrides(name string) (targets []string, risky bool) {
	switch name {
	case "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036":
		return []string{"gfx1030"}, false
	case "gfx1101", "gfx1102":
		return []string{"gfx1100"}, false
	case "gfx1103":
		return []string{"gfx1102", "gfx1100"}, true
	case "gfx1152":
		return []string{"gfx1150"}, false
	case "gfx902", "gfx909", "gfx90c":
		return []string{"gfx900"}, false
	case "gfx1011", "gfx1012":
		return []string{"gfx1010"}, false
	}
	return nil, false
}

// OverrideValue spells a target for HSA_OVERRIDE_GFX_VERSION: "gfx1030" is "10.3.0". Empty for generic targets.
func OverrideValue(name string) string {
	major, minor, step, ok := GFXVersion(name)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", major, minor, step)
}
