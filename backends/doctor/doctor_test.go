package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hearth/backends/fixtures"
	"hearth/backends/probe"
	"hearth/backends/sysroot"
)

var update = flag.Bool("update", false, "rewrite the golden reports")

// archive is a fixture together with testdata/common.txtar (a Debian user, a RADV, the Debian HIP bundle) and, where
// there is one, testdata/NAME.txtar. A file that the machine has stands before the common one; its own extra stands before
// both.
func archive(t *testing.T, name string) sysroot.Archive {
	t.Helper()
	a := fixtures.Archive(t, name)
	for _, extra := range []string{"common", name} {
		text, err := os.ReadFile(filepath.Join("testdata", extra+".txtar"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range sysroot.ParseArchive(text).Files {
			at := slices.IndexFunc(a.Files, func(g sysroot.ArchiveFile) bool { return g.Name == f.Name })
			switch {
			case at < 0:
				a.Files = append(a.Files, f)
			case extra == name:
				a.Files[at] = f
			}
		}
	}
	return a
}

// open gives a fixture's archive as a machine.
func open(t *testing.T, a sysroot.Archive) sysroot.FS {
	t.Helper()
	fsys, err := a.FS()
	if err != nil {
		t.Fatal(err)
	}
	return fsys
}

// unpack lays a fixture's archive out on disk.
func unpack(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := archive(t, name).Unpack(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openDir(t *testing.T, dir string) *sysroot.Captured {
	t.Helper()
	root, err := sysroot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	})
	return root
}

func report(t *testing.T, fsys sysroot.FS) Report {
	t.Helper()
	env, err := FromTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return Run(context.Background(), env)
}

// TestMachines runs the doctor on every captured machine: the report is the golden one, its point is the one in verdicts,
// and what --report writes gives the same report when it is read with --root.
func TestMachines(t *testing.T) {
	known := verdicts()
	for _, name := range fixtures.Names(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, err := FromTree(open(t, archive(t, name)))
			if err != nil {
				t.Fatal(err)
			}
			r, captured, err := Capture(context.Background(), env, CaptureOptions{Comment: "captured " + name})
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, name, r)
			if want, ok := known[name]; ok {
				checkVerdict(t, r, want)
			}
			again := report(t, open(t, sysroot.ParseArchive(captured.Format())))
			if have, want := text(t, again), text(t, r); have != want {
				t.Errorf("the archive tells another story:\n%s", firstDifference(have, want))
			}
			if n := len(captured.Format()); n > 1<<20 {
				t.Errorf("the archive has %d bytes", n)
			}
		})
	}
}

func compareGolden(t *testing.T, name string, r Report) {
	t.Helper()
	have := []byte(text(t, r))
	golden := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(golden, have, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("differs from %s (go test -update rewrites it):\n%s", golden, firstDifference(string(have), string(want)))
	}
}

func firstDifference(have, want string) string {
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range min(len(h), len(w)) {
		if h[i] != w[i] {
			return "have " + h[i] + "\nwant " + w[i]
		}
	}
	return "one is longer"
}

// verdictWanted is the point of a machine.
type verdictWanted struct {
	broken probe.Layer
	lead   string // a check that must have failed, or warned when broken is empty
	works  string // the backend of the first face that works
}

// verdicts holds the point of each machine in one line, so that a careless -update shows.
func verdicts() map[string]verdictWanted {
	return map[string]verdictWanted{
		"xtx":               {"", "", "hip"},
		"xtx-igpu":          {"", "gfx-mixed", "hip"},
		"igpu-xtx":          {"", "gfx-mixed", "hip"},
		"no-permission":     {probe.LayerKernel, "kernel-kfd-access", "cpu"},
		"no-kfd":            {probe.LayerKernel, "kernel-kfd-present", "vulkan"},
		"gfx803-no-atomics": {probe.LayerKernel, "kernel-atomics", "vulkan"},
		"r9700":             {"", "gfx-code-object", "vulkan"},
		"strix-halo":        {"", "gfx-code-object", "vulkan"},
		"wsl":               {probe.LayerContainer, "wsl-dxg", "cpu"},
		"empty-vm":          {probe.LayerKernel, "kernel-gpu-present", "cpu"},
		"vfio-igpu":         {"", "kernel-driver-bound", "vulkan"},
		"masked-container":  {"", "container-cgroup", "hip"},
		"mi50-renoir":       {probe.LayerKernel, "kernel-render-access", "vulkan"},
		"rx6600-igpu":       {"", "kernel-rebar", "vulkan"},
	}
}

func checkVerdict(t *testing.T, r Report, want verdictWanted) {
	t.Helper()
	if r.Broken != want.broken {
		t.Errorf("broken layer %q, want %q: %s", r.Broken, want.broken, r.Verdict)
	}
	if want.lead != "" {
		c := r.Find(want.lead)
		if c == nil || c.Status != Fail && c.Status != Warn || c.Cause == "" || c.Fix == "" || c.Source == "" || c.Evidence == "" {
			t.Errorf("check %s: %+v", want.lead, c)
		}
	}
	i := slices.IndexFunc(r.Works, func(w Working) bool { return w.Works })
	if i < 0 || r.Works[i].Backend != want.works {
		t.Errorf("works: %+v, want %s first", r.Works, want.works)
	}
}

func TestTableIsWellFormed(t *testing.T) {
	rows := table()
	if len(rows) < 55 {
		t.Errorf("%d checks, want 55 or more", len(rows))
	}
	symptoms := map[string]bool{}
	for _, s := range probe.Symptoms() {
		symptoms[s.ID] = true
	}
	id := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)
	seen := map[string]bool{}
	for _, w := range rows {
		if !id.MatchString(w.id) || seen[w.id] {
			t.Errorf("bad or repeated id %q", w.id)
		}
		for _, n := range w.needs {
			if !seen[n] {
				t.Errorf("%s needs %s, which does not stand before it", w.id, n)
			}
		}
		seen[w.id] = true
		if !slices.Contains(probe.Layers(), w.layer) || w.title == "" {
			t.Errorf("%s: layer %q, title %q", w.id, w.layer, w.title)
		}
		if (w.run == nil) == (len(w.symptoms) == 0) {
			t.Errorf("%s needs a function or symptoms, not both", w.id)
		}
		for _, s := range w.symptoms {
			if !symptoms[s] {
				t.Errorf("%s: no symptom %s", w.id, s)
			}
		}
		if w.run != nil && (w.cause == "" || w.source == "" || w.fix == "" && w.id != "container-groups") {
			t.Errorf("%s lacks cause, fix or source", w.id)
		}
	}
	for s := range symptoms { // every symptom is looked for by some check, but for the kernel's refusals that checks see themselves
		used := slices.ContainsFunc(rows, func(w row) bool { return slices.Contains(w.symptoms, s) })
		if !used && !slices.Contains([]string{"kernel-kfd-permission", "kernel-kfd-nomem", "kernel-kfd-absent", "container-lxc", "container-selinux",
			"container-no-kfd-on-host", "container-render-group", "libdrm-ids", "vulkan-bad-index", "vulkan-no-coopmat"}, s) {
			t.Errorf("no check looks for symptom %s", s)
		}
	}
}

func TestJSONShape(t *testing.T) {
	r := report(t, open(t, archive(t, "no-permission")))
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Checks []struct{ ID, Layer, Status, Evidence, Cause, Fix, Source string } `json:"checks"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if len(m.Checks) != len(table()) {
		t.Errorf("%d checks in JSON", len(m.Checks))
	}
	for _, c := range m.Checks {
		if !slices.Contains([]string{"ok", "warn", "fail", "skip", "unknown"}, c.Status) {
			t.Errorf("%s has status %q", c.ID, c.Status)
		}
		if c.Status == "fail" && (c.Cause == "" || c.Fix == "" || c.Source == "" || c.Evidence == "") {
			t.Errorf("%+v", c)
		}
	}
	if r.ExitCode() != ExitFail {
		t.Errorf("exit code %d", r.ExitCode())
	}
}

func TestAllowCPU(t *testing.T) {
	fsys := open(t, archive(t, "empty-vm"))
	env, err := FromTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	if r := Run(context.Background(), env); r.ExitCode() != ExitFail || r.Broken != probe.LayerKernel {
		t.Errorf("without --allow-cpu: exit %d, broken %q", r.ExitCode(), r.Broken)
	}
	env.AllowCPU = true
	r := Run(context.Background(), env)
	if r.ExitCode() != ExitOK {
		t.Errorf("with --allow-cpu: exit %d: %s", r.ExitCode(), r.Verdict)
	}
	if !strings.Contains(r.Verdict, "no AMD GPU") {
		t.Errorf("verdict %q", r.Verdict)
	}
}
