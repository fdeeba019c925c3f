package codeobject

import (
	"fmt"
	"strings"
)

// Feature is the state of a target feature (XNACK, SRAM ECC) in a code object or of a GPU.
type Feature int8

// States of a Feature. Code that does not name a feature runs in either state.
const (
	Any Feature = iota
	On
	Off
)

func (f Feature) suffix(name string) string {
	switch f {
	case On:
		return ":" + name + "+"
	case Off:
		return ":" + name + "-"
	}
	return ""
}

// Target is what a code object was compiled for, or what a GPU is.
type Target struct {
	// Processor is "gfx1100", a generic one such as "gfx11-generic", or SPIRV.
	Processor      string
	XNACK, SRAMECC Feature
}

// SPIRV is the processor of portable code that the runtime compiles when it loads it.
const SPIRV = "amdgcnspirv"

// String spells the target as LLVM does, "gfx90a:sramecc+:xnack-".
func (t Target) String() string {
	return t.Processor + t.SRAMECC.suffix("sramecc") + t.XNACK.suffix("xnack")
}

// MarshalText writes String.
func (t Target) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// ParseTarget reads "gfx90a:sramecc+:xnack-". Features other than the two known ones are errors.
func ParseTarget(s string) (Target, error) {
	parts := strings.Split(s, ":")
	t := Target{Processor: parts[0]}
	if !validProcessor(t.Processor) {
		return Target{}, fmt.Errorf("%q is not a gfx target", clip(s))
	}
	for _, f := range parts[1:] {
		name, state := strings.TrimRight(f, "+-"), Any
		switch {
		case strings.HasSuffix(f, "+"):
			state = On
		case strings.HasSuffix(f, "-"):
			state = Off
		}
		switch {
		case state == Any || len(name) != len(f)-1:
			return Target{}, fmt.Errorf("%q: feature %q has no + or -", clip(s), clip(f))
		case name == "xnack":
			t.XNACK = state
		case name == "sramecc":
			t.SRAMECC = state
		default:
			return Target{}, fmt.Errorf("%q: unknown feature %q", clip(s), clip(f))
		}
	}
	return t, nil
}

func validProcessor(p string) bool {
	if p == SPIRV {
		return true
	}
	rest, ok := strings.CutPrefix(p, "gfx")
	if !ok || rest == "" || len(rest) > 16 || rest[0] < '0' || rest[0] > '9' {
		return false
	}
	rest = strings.TrimSuffix(rest, "-generic")
	for _, c := range rest {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && c != '-' {
			return false
		}
	}
	return true
}

// entryTarget reads a bundle entry's id, such as "hipv4-amdgcn-amd-amdhsa--gfx1100:xnack-" or, from old compilers,
// "hip-amdgcn-amd-amdhsa-gfx906". ok is false for the host's entry.
func entryTarget(id string) (t Target, ok bool, err error) {
	if strings.HasPrefix(id, "host-") {
		return Target{}, false, nil
	}
	// Generic names hold dashes themselves, so the target cannot be what follows the last dash.
	i := strings.LastIndex(id, "gfx")
	if i < 0 {
		i = strings.LastIndex(id, SPIRV)
	}
	if i < 0 {
		return Target{}, false, fmt.Errorf("entry %q names no target", clip(id))
	}
	t, err = ParseTarget(id[i:])
	return t, err == nil, err
}

func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
