package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hearth/engine/bundle"
)

// These tests run the repository's own CMakeLists.txt into a temporary folder. They need cmake and a C compiler and no
// network.

// world is a temporary build folder and the environment that cmake runs in.
type world struct {
	t     *testing.T
	build string
	tools string // first on PATH
	env   []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	for _, tool := range []string{"cmake", "cc", "pkg-config"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	w := &world{t: t, build: filepath.Join(t.TempDir(), "build"), tools: t.TempDir()}
	for _, kv := range os.Environ() {
		// What the person who runs the test has set must not steer it.
		if !strings.HasPrefix(kv, "HEARTH_") && !strings.HasPrefix(kv, "PATH=") && !strings.HasPrefix(kv, "MAKE") && !strings.HasPrefix(kv, "PKG_CONFIG_PATH=") {
			w.env = append(w.env, kv)
		}
	}
	w.env = append(w.env, "PATH="+w.tools+":"+os.Getenv("PATH"))
	return w
}

func (w *world) script(name, body string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.tools, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) cmake(args ...string) (string, error) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "cmake", args...)
	cmd.Env = w.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (w *world) configure(flags ...string) (string, error) {
	return w.cmake(append([]string{"-S", "../..", "-B", w.build}, flags...)...)
}

func stubTree(t *testing.T) string {
	dir, err := filepath.Abs("testdata/llama.cpp")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSourceWithAllToolchains(t *testing.T) {
	w := newWorld(t)
	w.script("hipconfig", `case $1 in -l) echo /rocm/llvm/bin;; -R) echo /rocm;; esac`)
	w.script("glslc", "exit 0")
	if out, err := w.configure("-DHEARTH_ENGINE=source", "-DLLAMA_CPP_DIR="+stubTree(t), "-DAMDGPU_TARGETS=gfx1100;gfx1201"); err != nil {
		t.Fatalf("configure: %v\n%s", err, out)
	}
	if out, err := w.cmake("--build", w.build); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(w.build, "llama.cpp/default/install/seen.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"BUILD_SHARED_LIBS=ON", "GGML_BACKEND_DL=ON", "GGML_NATIVE=OFF", "GGML_CPU_ALL_VARIANTS=ON", "GGML_HIP=ON",
		"GGML_VULKAN=ON", "GPU_TARGETS=gfx1100;gfx1201", "AMDGPU_TARGETS=gfx1100;gfx1201", "LLAMA_BUILD_TOOLS=OFF", "HIPCXX=/rocm/llvm/bin/clang", "HIP_PATH=/rocm"} {
		if !slices.Contains(strings.Split(string(data), "\n"), want) {
			t.Errorf("llama.cpp was not given %s but\n%s", want, data)
		}
	}
	b, err := bundle.Load(filepath.Join(w.build, "engine/default"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(); err != nil {
		t.Error(err)
	}
	if b.Source != bundle.SourceBuilt || b.Loader != "" || b.LlamaVersion != "0.7.3" || len(b.PluginsOf(bundle.KindCPU)) != 2 ||
		len(b.PluginsOf(bundle.KindVulkan)) != 1 || len(b.PluginsOf(bundle.KindHIP)) != 1 {
		t.Errorf("manifest %+v", b.Manifest)
	}
	// The stub has no device code, and the manifest says so rather than nothing.
	if !strings.Contains(b.GFXNote, ".hip_fatbin") {
		t.Errorf("note on gfx targets: %q", b.GFXNote)
	}
	linkAgainst(t, w, b)
}

// linkAgainst compiles a program with the bundle's pkg-config file and runs it through the bundle's run script.
func linkAgainst(t *testing.T, w *world, b bundle.Bundle) {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.c")
	if err := os.WriteFile(source, []byte("#include <llama.h>\nint llama_stub(void);\nint main(void) { return llama_stub(); }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("sh", "-c", `cc -o main main.c $(pkg-config --cflags --libs hearth-engine)`)
	build.Dir = dir
	build.Env = append(slices.Clone(w.env), "PKG_CONFIG_PATH="+b.Dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("link: %v\n%s", err, out)
	}
	run := exec.Command(filepath.Join(filepath.Dir(b.Dir), "run"), filepath.Join(dir, "main"))
	err := run.Run()
	if run.ProcessState == nil || run.ProcessState.ExitCode() != 7 {
		t.Errorf("the program ended with %v, want exit status 7 from the stub library", err)
	}
}

func TestSourceWithoutToolchains(t *testing.T) {
	w := newWorld(t)
	none := []string{"-DHEARTH_ENGINE=source", "-DHEARTH_HIPCONFIG=HEARTH_HIPCONFIG-NOTFOUND", "-DHEARTH_GLSLC=HEARTH_GLSLC-NOTFOUND"}
	if _, err := exec.LookPath("hipconfig"); err == nil {
		t.Skip("this machine has a ROCm toolchain")
	}
	out, err := w.configure(append(none, "-DLLAMA_CPP_DIR="+stubTree(t))...)
	if err != nil || !strings.Contains(out, "HIP: no") {
		t.Errorf("configure: %v\n%s", err, out)
	}
	for name, c := range map[string]struct{ flag, says string }{
		"HIP asked for":  {"-DHEARTH_HIP=ON", "install the ROCm toolchain"},
		"no tree":        {"-DLLAMA_CPP_DIR=/nowhere", "needs -DLLAMA_CPP_DIR=DIR"},
		"Mesa asked for": {"-DHEARTH_MESA=ON", "needs HEARTH_ENGINE=debian"},
		"odd source":     {"-DHEARTH_ENGINE=rpm", "none of debian, system, source"},
	} {
		w := newWorld(t) // cmake remembers flags
		if out, err := w.configure(append(none, "-DLLAMA_CPP_DIR="+stubTree(t), c.flag)...); err == nil || !strings.Contains(unwrap(out), c.says) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// unwrap undoes the line breaks CMake puts into its messages.
func unwrap(text string) string { return strings.Join(strings.Fields(text), " ") }

func TestSystem(t *testing.T) {
	w := newWorld(t)
	prefix := t.TempDir()
	install := func(version string, plugins ...string) {
		files := map[string]string{"include/llama.h": "", "lib/pkgconfig/ggml.pc": "", "lib/pkgconfig/llama.pc": ""}
		for _, name := range []string{"llama", "ggml"} {
			files["lib/pkgconfig/"+name+".pc"] = fmt.Sprintf("prefix=%s\nlibdir=${prefix}/lib\nName: %s\nDescription: x\nVersion: %s\nCflags: -I${prefix}/include\nLibs: -L${libdir} -l%s\n", prefix, name, version, name)
		}
		for _, p := range plugins {
			files[p] = ""
		}
		for name, text := range files {
			path := filepath.Join(prefix, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.env = append(w.env, "PKG_CONFIG_PATH="+filepath.Join(prefix, "lib/pkgconfig"))
	install("0.7.1")
	if out, err := w.configure("-DHEARTH_ENGINE=system"); err == nil || !strings.Contains(unwrap(out), "built without GGML_BACKEND_DL") {
		t.Errorf("without plugins: %v\n%s", err, out)
	}
	install("0.7.1", "lib/ggml/backends0/libggml-cpu-x64.so", "lib/ggml/backends0/libggml-vulkan.so")
	out, err := w.configure("-DHEARTH_ENGINE=system", "-DHEARTH_ENGINE_NAME=sys")
	if err != nil || strings.Contains(out, "tested with") {
		t.Fatalf("configure: %v\n%s", err, out)
	}
	b, err := bundle.Load(filepath.Join(w.build, "engine/sys"))
	if err != nil {
		t.Fatal(err)
	}
	if b.Source != bundle.SourceSystem || b.Loader != "" || b.LlamaVersion != "0.7.1" || len(b.Plugins) != 2 || b.Check() != nil {
		t.Errorf("manifest %+v, %v", b.Manifest, b.Check())
	}
	pc, err := os.ReadFile(filepath.Join(b.Dir, "hearth-engine.pc"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-I" + prefix + "/include", "-L" + prefix + "/lib", "-lllama", "-lggml-base"} {
		if !strings.Contains(string(pc), want) {
			t.Errorf("hearth-engine.pc lacks %s:\n%s", want, pc)
		}
	}
	if out, err := w.configure("-DHEARTH_ENGINE=system", "-DHEARTH_HIP=ON"); err == nil || !strings.Contains(unwrap(out), "install the HIP plugin") {
		t.Errorf("HIP asked for and not there: %v\n%s", err, out)
	}
	install("0.9.0")
	if out, err := w.configure("-DHEARTH_ENGINE=system", "-DHEARTH_HIP=OFF"); err != nil || !strings.Contains(unwrap(out), "installed llama.cpp is 0.9.0; hearth is tested with 0.7") {
		t.Errorf("another version: %v\n%s", err, out)
	}
}

func TestRunUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"what"}, {"debian", "-nosuch"}, {"check", "extra"}} {
		var stderr strings.Builder
		if code := run(context.Background(), args, nil, &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("run %q: exit %d, said %q", args, code, stderr.String())
		}
	}
	var stderr strings.Builder
	if code := run(context.Background(), []string{"check", "-bundle", t.TempDir()}, nil, &stderr); code != 1 {
		t.Errorf("check of an empty folder: exit %d", code)
	}
}
