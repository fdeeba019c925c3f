package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hearth/engine/bundle"
)

// TestRealBundles compiles a C program with the host's compiler against real bundles, starts it as bundle.Command says
// and lets it load the plugins: one CPU plugin, the BLAS one, which finds its library in the bundle, and the HIP one where there is one, which on a machine without a card
// must load, report no device and leave the process alive.
func TestRealBundles(t *testing.T) {
	found := false
	for _, name := range []string{"HEARTH_TEST_BUNDLE", "HEARTH_TEST_HIP_BUNDLE"} {
		dir := os.Getenv(name)
		if dir == "" {
			continue
		}
		found = true
		t.Run(name, func(t *testing.T) { loadPlugins(t, dir) })
	}
	if !found {
		t.Skip("neither HEARTH_TEST_BUNDLE nor HEARTH_TEST_HIP_BUNDLE names a bundle")
	}
}

func loadPlugins(t *testing.T, dir string) {
	b, err := bundle.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "plugins")
	build := exec.Command("sh", "-c", `cc -o "$0" testdata/plugins.c $(pkg-config --cflags --libs hearth-engine)`, program)
	build.Env = append(os.Environ(), "PKG_CONFIG_PATH="+b.Dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("link: %v\n%s", err, out)
	}
	// The plainest CPU plugin runs on every machine.
	var args, want []string
	for _, p := range b.PluginsOf(bundle.KindCPU) {
		if p.Name == "cpu-x64" {
			args, want = append(args, p.Path), append(want, "CPU 1")
		}
	}
	blas := b.PluginsOf(bundle.KindBLAS)
	if len(blas) > 0 {
		args, want = append(args, blas[0].Path), append(want, "BLAS 1")
	} else if b.Source == bundle.SourceDebian {
		t.Error("the bundle has no BLAS plugin")
	}
	hip := b.PluginsOf(bundle.KindHIP)
	if len(hip) > 0 {
		if len(b.GFXTargets) == 0 {
			t.Errorf("the manifest names no gfx target of the HIP plugin: %s", b.GFXNote)
		}
		args = append(args, hip[0].Path)
		if _, err := os.Stat("/dev/kfd"); err != nil {
			want = append(want, "ROCm 0")
		}
	}
	c := b.Command(program, args...)
	cmd := &exec.Cmd{Path: c.Path, Args: c.Argv, Env: append(os.Environ(), c.Env...)}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s", c.Argv, err, out)
	}
	if len(want) == 0 || !strings.HasPrefix(string(out), strings.Join(want, "\n")) {
		t.Errorf("the program printed\n%s\nwant %q", out, want)
	}
}
