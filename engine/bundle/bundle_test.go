package bundle

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write puts a manifest into root/name and returns the folder with symbolic links resolved, as Load gives it.
func write(t *testing.T, root, name, manifest string) string {
	t.Helper()
	dir := filepath.Join(root, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ManifestName), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCommandThroughLoader(t *testing.T) {
	dir := write(t, t.TempDir(), "hip", good)
	b, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	cmd := b.WithLibraryPath("/extra").WithLibraryPathFirst("/rocr").Command("hearth-engine", "--model", "m.gguf")
	loader := dir + "/lib/ld-linux-x86-64.so.2"
	want := []string{loader, "--library-path", "/rocr:" + dir + "/lib:" + dir + "/mesa/lib:/extra", dir + "/bin/hearth-engine", "--model", "m.gguf"}
	if cmd.Path != loader || !slices.Equal(cmd.Argv, want) {
		t.Errorf("command %s %q\nwant %q", cmd.Path, cmd.Argv, want)
	}
	if len(cmd.Env) != 0 {
		t.Errorf("environment %q, want none: children would inherit it", cmd.Env)
	}
	if cmd := b.Command("./other"); cmd.Argv[3] != "./other" {
		t.Errorf("a path was not left alone: %q", cmd.Argv)
	}
	if len(b.LibraryDirs()) != 2 {
		t.Errorf("WithLibraryPath changed the bundle itself: %q", b.LibraryDirs())
	}
}

func TestCommandWithoutLoader(t *testing.T) {
	dir := write(t, t.TempDir(), "sys", `{"schema":1,"name":"sys","llama_version":"0.7.0","source":"system","library_path":["/opt/llama/lib"]}`)
	b, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	cmd := b.Command("hearth-engine", "-v")
	if cmd.Path != dir+"/bin/hearth-engine" || !slices.Equal(cmd.Argv, []string{cmd.Path, "-v"}) {
		t.Errorf("command %s %q", cmd.Path, cmd.Argv)
	}
	if !slices.Equal(cmd.Env, []string{"LD_LIBRARY_PATH=/opt/llama/lib"}) {
		t.Errorf("environment %q", cmd.Env)
	}
}

func TestPluginsOf(t *testing.T) {
	dir := write(t, t.TempDir(), "hip", good)
	b, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	cpu := b.PluginsOf(KindCPU)
	if len(cpu) != 2 || cpu[1].Path != dir+"/backends/libggml-cpu-x64.so" {
		t.Errorf("cpu plugins %+v", cpu)
	}
	if hip := b.PluginsOf(KindHIP); len(hip) != 1 || hip[0].Path != "/cache/libggml-hip.so" {
		t.Errorf("hip plugins %+v", hip)
	}
	if v := b.PluginsOf(KindVulkan); len(v) != 0 {
		t.Errorf("vulkan plugins %+v", v)
	}
	if f := b.VulkanDriverFiles(); !slices.Equal(f, []string{dir + "/mesa/icd.d/radeon_icd.json"}) {
		t.Errorf("driver files %q", f)
	}
}

func TestList(t *testing.T) {
	root := t.TempDir()
	write(t, root, "hip", good)
	write(t, root, "broken", `{"schema":`)
	write(t, root, ".default.new", strings.Replace(good, "hip", "half", 1))
	real := write(t, t.TempDir(), "elsewhere", good)
	if err := os.Symlink(real, filepath.Join(root, "linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "run"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	found, err := List(root)
	if !errors.Is(err, ErrManifest) || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error %v does not name the broken bundle", err)
	}
	if len(found) != 2 || filepath.Base(found[0].Dir) != "hip" || found[1].Dir != real {
		t.Errorf("found %+v", found)
	}
	if _, err := List(filepath.Join(root, "nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want not exist", err)
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	dir := write(t, t.TempDir(), "hip", good)
	for _, f := range []string{"lib/ld-linux-x86-64.so.2", "mesa/lib/x", "mesa/icd.d/radeon_icd.json", "backends/libggml-cpu-haswell.so", "lib/rocblas/4.4.1/library/x"} {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = b.Check()
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("error %v, want not exist", err)
	}
	for plugin, missing := range map[string]bool{"plugin cpu-x64": true, "plugin hip": true, "plugin cpu-haswell": false, "loader": false} {
		if strings.Contains(err.Error(), plugin) != missing {
			t.Errorf("error %q: %s missing is %t", err, plugin, missing)
		}
	}
}
