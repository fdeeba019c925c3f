package probe

import (
	"regexp"
	"strings"
)

// Layer names the part of the stack a symptom or a check belongs to: six of them from the bottom up, the container that
// may stand between, and Vulkan beside them.
type Layer string

// Layers, in the order in which a person should repair them.
const (
	LayerKernel    Layer = "kernel"    // amdgpu, KFD, firmware, permissions
	LayerContainer Layer = "container" // docker, podman, LXC, WSL: what stands between the kernel and us
	LayerROCr      Layer = "rocr"      // libhsa-runtime64
	LayerHIP       Layer = "hip"       // libamdhip64
	LayerGFX       Layer = "gfx"       // code objects and the compiler behind them
	LayerLibs      Layer = "libs"      // rocBLAS, hipBLASLt, libdrm
	LayerPlugin    Layer = "plugin"    // llama.cpp's libggml-hip and libggml-vulkan
	LayerVulkan    Layer = "vulkan"    // loader, ICDs, Mesa
)

// Layers lists all layers in repair order: the kernel, the container around us, then the stack upwards, then Vulkan.
func Layers() []Layer {
	return []Layer{LayerKernel, LayerContainer, LayerROCr, LayerHIP, LayerGFX, LayerLibs, LayerPlugin, LayerVulkan}
}

// Symptom is one row of the table: texts that give a cause away.
type Symptom struct {
	ID    string // kebab-case, stable: doctor's checks and tests refer to it
	Layer Layer
	// Any are substrings, one of which is enough; Match is a regular expression used beside them. Versions move words
	// and line numbers, so both hold only the part that stayed the same across the reports.
	Any   []string
	Match string
	// All must be present too, anywhere in the text.
	All []string
	// Harmless marks a text that looks like an error and is none.
	Harmless bool
	// Cause, Fix: one sentence each. Source: issue numbers, or "measured" with the version it was seen on.
	Cause, Fix, Source string
}

// Finding is a symptom seen in a text.
type Finding struct {
	ID       string `json:"id"`
	Layer    Layer  `json:"layer"`
	Evidence string `json:"evidence"` // the first line that matched, at most 300 bytes
	Count    int    `json:"count"`    // lines that matched
	Harmless bool   `json:"harmless,omitempty"`
	Cause    string `json:"cause"`
	Fix      string `json:"fix"`
	Source   string `json:"source"`
}

const maxEvidence = 300 // bytes of a line that are kept as evidence

// Diagnose matches the stderr of an engine process (or a kernel log) against the symptom table. Findings come in
// table order, which runs from the most telling text to the most general one; none is an empty slice.
func Diagnose(text string) []Finding {
	return diagnose(Symptoms(), text)
}

func diagnose(table []Symptom, text string) []Finding {
	found := []Finding{}
	if text == "" {
		return found
	}
	lines := strings.Split(text, "\n")
	for i := range table {
		s := &table[i]
		if !containsAll(text, s.All) {
			continue
		}
		if f, ok := s.find(text, lines); ok {
			found = append(found, f)
		}
	}
	return found
}

func containsAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// find looks at the whole text first: most symptoms are absent from most texts, and the line walk is the dear part.
func (s *Symptom) find(text string, lines []string) (Finding, bool) {
	var re *regexp.Regexp
	if s.Match != "" {
		re = regexp.MustCompile(s.Match)
	}
	hit := func(t string) bool {
		for _, p := range s.Any {
			if strings.Contains(t, p) {
				return true
			}
		}
		return re != nil && re.MatchString(t)
	}
	if !hit(text) {
		return Finding{}, false
	}
	f := Finding{ID: s.ID, Layer: s.Layer, Harmless: s.Harmless, Cause: s.Cause, Fix: s.Fix, Source: s.Source}
	for _, l := range lines {
		if !hit(l) {
			continue
		}
		if f.Count == 0 {
			f.Evidence = clip(strings.TrimSpace(l), maxEvidence)
		}
		f.Count++
	}
	if f.Count == 0 { // a pattern that spans lines; no row has one today
		f.Count, f.Evidence = 1, clip(strings.TrimSpace(text), maxEvidence)
	}
	return f, true
}

// clip cuts s to at most n bytes without splitting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}

// Causes joins the causes of the findings that are not harmless, most telling first, at most n of them.
func Causes(fs []Finding, n int) string {
	var out []string
	for _, f := range fs {
		if !f.Harmless && len(out) < n {
			out = append(out, f.Cause)
		}
	}
	return strings.Join(out, "; ")
}
