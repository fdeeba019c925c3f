package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hearth/engine/bundle"
)

// pkg makes an unpacked package from a map of files; a value that starts with -> is a symbolic link.
func pkg(t *testing.T, name string, link bool, files map[string]string) Root {
	t.Helper()
	dir := t.TempDir()
	for file, text := range files {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return Root{Name: name, Dir: dir, Link: link}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestLibraries(t *testing.T) {
	const lib = "usr/lib/x86_64-linux-gnu/"
	base := pkg(t, "libllama0", false, map[string]string{
		lib + "libllama.so.0": "->libllama.so.0.7.0", lib + "libllama.so.0.7.0": "llama", lib + "libllama.so": "->libllama.so.0",
		lib + "libggml.so.0": "ggml", lib + "libggml-base.so.0": "base", lib + "ld-linux-x86-64.so.2": "loader",
		lib + "gconv/UTF-16.so": "no", lib + "libmemusage.so": "no",
	})
	cached := pkg(t, "libllvm", true, map[string]string{
		lib + "libLLVM.so.21": "->../llvm-21/lib/libLLVM.so.21", "usr/lib/llvm-21/lib/libLLVM.so.21": "->/usr/lib/llvm-21/lib/real", "usr/lib/llvm-21/lib/real": "llvm",
		lib + "libvulkan_lvp.so": "lvp", lib + "libvulkan_intel.so": "no",
	})
	data := pkg(t, "data", false, map[string]string{"usr/share/x": "no"})
	dir := filepath.Join(t.TempDir(), "lib")
	if err := Libraries(dir, []Root{base, cached, data}, "libvulkan_lvp.so"); err != nil {
		t.Fatal(err)
	}
	if err := DevLinks(dir); err != nil {
		t.Fatal(err)
	}
	want := []string{"ld-linux-x86-64.so.2", "libLLVM.so.21", "libggml-base.so", "libggml-base.so.0", "libggml.so", "libggml.so.0",
		"libllama.so", "libllama.so.0", "libllama.so.0.7.0", "libvulkan_lvp.so"}
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("lib holds %q\nwant %q", got, want)
	}
	for file, want := range map[string]string{"libLLVM.so.21": "llvm", "libllama.so": "llama", "libvulkan_lvp.so": "lvp"} {
		if data, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(data) != want {
			t.Errorf("%s has %q, %v", file, data, err)
		}
	}
	// The cached package stays where it is, the other is copied.
	if target, err := os.Readlink(filepath.Join(dir, "libLLVM.so.21")); err != nil || target != filepath.Join(cached.Dir, "usr/lib/llvm-21/lib/real") {
		t.Errorf("libLLVM.so.21 -> %s, %v", target, err)
	}
	if loader, err := FindLoader(dir); err != nil || loader != "ld-linux-x86-64.so.2" {
		t.Errorf("loader %q, %v", loader, err)
	}
}

// TestOpenBLAS: out of the folder that alternatives choose among, without LAPACK, and from no other build.
func TestOpenBLAS(t *testing.T) {
	const lib = "usr/lib/x86_64-linux-gnu/"
	openmp := pkg(t, "libopenblas0-openmp", false, map[string]string{
		lib + "openblas-openmp/libblas.so.3": "blas", lib + "openblas-openmp/liblapack.so.3": "no",
		lib + "openblas-openmp/libopenblas.so.0": "->libopenblasp-r0.3.34.so", lib + "openblas-openmp/libopenblasp-r0.3.34.so": "openblas",
	})
	threads := pkg(t, "libopenblas0-pthread", false, map[string]string{lib + "openblas-pthread/libblas.so.3": "no"})
	dir := filepath.Join(t.TempDir(), "lib")
	if err := OpenBLAS(dir, []Root{threads, openmp}); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, dir), []string{"libblas.so.3", "libopenblas.so.0", "libopenblasp-r0.3.34.so"}; !slices.Equal(got, want) {
		t.Errorf("lib holds %q\nwant %q", got, want)
	}
	for file, want := range map[string]string{"libblas.so.3": "blas", "libopenblas.so.0": "openblas"} {
		if data, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(data) != want {
			t.Errorf("%s has %q, %v", file, data, err)
		}
	}
}

func TestVulkanDrivers(t *testing.T) {
	mesa := pkg(t, "mesa-vulkan-drivers", true, map[string]string{
		"usr/share/vulkan/icd.d/radeon_icd.json": `{"ICD":{"api_version":"1.4.354","library_path":"/usr/lib/libvulkan_radeon.so"},"file_format_version":"1.0.1"}`,
		"usr/share/vulkan/icd.d/broken_icd.json": `{"ICD":{}}`,
	})
	dir := t.TempDir()
	files, err := VulkanDrivers(dir, []Root{mesa}, "radeon")
	if err != nil || !slices.Equal(files, []string{"icd.d/radeon_icd.json"}) {
		t.Fatalf("files %q, %v", files, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, files[0]))
	if err != nil || !strings.Contains(string(data), `"library_path": "../lib/libvulkan_radeon.so"`) || !strings.Contains(string(data), "1.4.354") {
		t.Errorf("driver file %s, %v", data, err)
	}
	for _, name := range []string{"broken", "absent"} {
		if _, err := VulkanDrivers(dir, []Root{mesa}, name); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// TestBuilder makes a bundle that holds a shell as its "loader" and starts a program through its run script.
func TestBuilder(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "engine", "default")
	build := func(version string) {
		b, err := New(dir, bundle.Manifest{Source: bundle.SourceDebian, LlamaVersion: version, LibraryPath: []string{"lib"}, Loader: "lib/loader"})
		if err != nil {
			t.Fatal(err)
		}
		// Stands for the dynamic loader: prints what it is given.
		if err := os.WriteFile(b.Path("lib", "loader"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"libggml-cpu-x64.so", "libggml-vulkan.so", "libggml-blas.so", "libggml-rpc.so", "libggml-base.so"} {
			if err := os.WriteFile(b.Path("backends", name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.AddPlugins(b.Path("backends"), func(f string) string { return "backends/" + filepath.Base(f) }); err != nil {
			t.Fatal(err)
		}
		if err := b.WritePC("", ""); err != nil {
			t.Fatal(err)
		}
		if err := b.Finish(); err != nil {
			t.Fatal(err)
		}
	}
	build("0.7.0")
	build("0.7.1") // replaces the first
	if got := names(t, filepath.Dir(dir)); !slices.Equal(got, []string{"default", "run"}) {
		t.Errorf("beside the bundle: %q", got)
	}
	b, err := bundle.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(); err != nil {
		t.Error(err)
	}
	if b.LlamaVersion != "0.7.1" || b.Name != "default" || len(b.Plugins) != 4 || len(b.PluginsOf(bundle.KindOther)) != 1 || len(b.PluginsOf(bundle.KindBLAS)) != 1 {
		t.Errorf("manifest %+v", b.Manifest)
	}
	out, err := exec.Command(filepath.Join(filepath.Dir(dir), "run"), "/bin/prog", "a b").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{"--library-path", b.Dir + "/lib", "/bin/prog", "a b"}, "\n") + "\n"
	if string(out) != want {
		t.Errorf("run passed on\n%s\nwant\n%s", out, want)
	}
	if cmd := b.Command("/bin/prog", "a b"); !slices.Equal(cmd.Argv[1:], strings.Split(strings.TrimSpace(want), "\n")) {
		t.Errorf("run and Command differ: %q", cmd.Argv)
	}
}

func TestAddPluginsWantsCPU(t *testing.T) {
	b, err := New(filepath.Join(t.TempDir(), "x"), bundle.Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddPlugins(t.TempDir(), func(f string) string { return f }); err == nil {
		t.Error("a folder without plugins was accepted")
	}
}
