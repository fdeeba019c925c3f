package probe

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

type textCase struct {
	id, text string
	not      []string
}

// readCases parses testdata/symptoms.txt.
func readCases(t *testing.T) []textCase {
	t.Helper()
	b, err := os.ReadFile("testdata/symptoms.txt")
	if err != nil {
		t.Fatal(err)
	}
	var cases []textCase
	for line := range strings.Lines(string(b)) {
		switch {
		case strings.HasPrefix(line, "# "):
		case strings.HasPrefix(line, "== "):
			cases = append(cases, textCase{id: strings.TrimSpace(line[3:])})
		case strings.HasPrefix(line, "! "):
			c := &cases[len(cases)-1]
			c.not = append(c.not, strings.TrimSpace(line[2:]))
		default:
			cases[len(cases)-1].text += line
		}
	}
	return cases
}

func TestSymptomsVerbatim(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range readCases(t) {
		var ids []string
		for _, f := range Diagnose(c.text) {
			ids = append(ids, f.ID)
			if f.Count == 0 || f.Evidence == "" || !strings.Contains(c.text, strings.TrimSuffix(f.Evidence, "...")) {
				t.Errorf("%s: finding without evidence from the text: %+v", f.ID, f)
			}
		}
		covered[c.id] = true
		if c.id == "none" {
			if len(ids) > 0 {
				t.Errorf("healthy text gives %v", ids)
			}
			continue
		}
		if !slices.Contains(ids, c.id) {
			t.Errorf("want %s, have %v for\n%s", c.id, ids, c.text)
		}
		for _, n := range c.not {
			if slices.Contains(ids, n) {
				t.Errorf("%s: must not give %s too", c.id, n)
			}
		}
	}
	for _, s := range Symptoms() {
		if !covered[s.ID] {
			t.Errorf("symptom %s has no verbatim text in testdata/symptoms.txt", s.ID)
		}
	}
}

func TestSymptomTableIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	id := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)
	for _, s := range Symptoms() {
		if !id.MatchString(s.ID) || seen[s.ID] {
			t.Errorf("bad or repeated id %q", s.ID)
		}
		seen[s.ID] = true
		if s.Cause == "" || s.Fix == "" || s.Source == "" {
			t.Errorf("%s lacks cause, fix or source", s.ID)
		}
		if len(s.Any) == 0 && s.Match == "" {
			t.Errorf("%s matches nothing", s.ID)
		}
		if slices.Contains(s.Any, "") {
			t.Errorf("%s matches everything", s.ID)
		}
		if s.Match != "" {
			if _, err := regexp.Compile(s.Match); err != nil {
				t.Errorf("%s: %v", s.ID, err)
			}
		}
		if !slices.Contains(Layers(), s.Layer) {
			t.Errorf("%s: unknown layer %q", s.ID, s.Layer)
		}
	}
}

func TestDiagnoseOrdersAndCounts(t *testing.T) {
	text := strings.Repeat("ROCm error: invalid device function\n", 3) + "amdgpu: GPU reset(1) succeeded!\n"
	fs := Diagnose(text)
	if len(fs) != 2 || fs[0].ID != "gfx-invalid-device-function" || fs[0].Count != 3 || fs[1].ID != "kernel-ring-timeout" {
		t.Fatalf("findings: %+v", fs)
	}
	if got := Causes(fs, 1); got != fs[0].Cause {
		t.Errorf("Causes(1) = %q", got)
	}
	if fs := Diagnose(""); fs == nil || len(fs) != 0 {
		t.Errorf("no text: %v", fs)
	}
}

func TestClipKeepsCharacters(t *testing.T) {
	if got := clip("aé", 2); got != "a..." {
		t.Errorf("clip = %q", got)
	}
}

func FuzzDiagnose(f *testing.F) {
	b, err := os.ReadFile("testdata/symptoms.txt")
	if err != nil {
		f.Fatal(err)
	}
	for p := range strings.SplitSeq(string(b), "== ") {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, d := range Diagnose(s) {
			if len(d.Evidence) > maxEvidence+3 || d.Count < 1 {
				t.Fatalf("evidence of %d bytes, count %d", len(d.Evidence), d.Count)
			}
		}
	})
}
