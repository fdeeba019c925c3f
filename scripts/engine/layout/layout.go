package layout

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hearth/engine/bundle"
)

// Builder fills one bundle folder. The folder is built beside its final place and moved there by Finish, so that a
// bundle is never seen half done.
type Builder struct {
	Manifest bundle.Manifest
	final    string
	dir      string // the folder in the making
}

// New starts a bundle that will lie at dir, whose last element is its name.
func New(dir string, m bundle.Manifest) (*Builder, error) {
	m.Name = filepath.Base(dir)
	b := &Builder{Manifest: m, final: dir, dir: filepath.Join(filepath.Dir(dir), "."+m.Name+".new")}
	if err := os.RemoveAll(b.dir); err != nil {
		return nil, fmt.Errorf("start bundle: %w", err)
	}
	for _, d := range []string{"bin", "lib", "backends", "include"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("start bundle: %w", err)
		}
	}
	return b, nil
}

// Path is a place inside the folder in the making.
func (b *Builder) Path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// Finish writes the manifest and the run script and moves the folder into place. The binaries of a bundle that it
// replaces are gone then: they are linked again, against what is now there.
func (b *Builder) Finish() error {
	slices.SortFunc(b.Manifest.Plugins, func(x, y bundle.Plugin) int { return strings.Compare(x.Name, y.Name) })
	data, err := b.Manifest.Encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.Path(bundle.ManifestName), data, 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := b.writeRun(); err != nil {
		return err
	}
	old := filepath.Join(filepath.Dir(b.final), "."+b.Manifest.Name+".old")
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("replace bundle: %w", err)
	}
	if err := os.Rename(b.final, old); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("replace bundle: %w", err)
	}
	if err := os.Rename(b.dir, b.final); err != nil {
		return fmt.Errorf("replace bundle: %w", err)
	}
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("remove replaced bundle: %w", err)
	}
	return writeDispatch(filepath.Dir(b.final))
}

// writeDispatch writes the run script beside the bundles, which hands over to that of the one in HEARTH_ENGINE_NAME.
func writeDispatch(dir string) error {
	const text = "#!/bin/sh\n# go test -exec \"$PWD/build/engine/run\" ./engine/llama/...\n" +
		"exec \"$(dirname \"$0\")/${HEARTH_ENGINE_NAME:-default}/run\" \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "run"), []byte(text), 0o755); err != nil {
		return fmt.Errorf("write run script: %w", err)
	}
	return nil
}

// writeRun writes the script that starts a program as bundle.Command does, for `go test -exec` and for hands.
// A software Vulkan driver unpacked by `make testmesa` is found by it too, and the folders in HEARTH_RUN_LIBRARY_PATH
// come before the bundle's.
func (b *Builder) writeRun() error {
	m := b.Manifest
	var dirs []string
	for _, d := range m.LibraryPath {
		if !filepath.IsAbs(d) {
			d = "$here/" + d
		}
		dirs = append(dirs, d)
	}
	var s strings.Builder
	s.WriteString("#!/bin/sh\n# Starts a program with the libraries of this bundle: run PROGRAM [ARGUMENT...]\n")
	s.WriteString("here=$(cd \"$(dirname \"$0\")\" && pwd)\n")
	fmt.Fprintf(&s, "path=${HEARTH_RUN_LIBRARY_PATH:+$HEARTH_RUN_LIBRARY_PATH:}\"%s\"\n", strings.Join(dirs, ":"))
	s.WriteString("testmesa=$here/../../testmesa/lib\nif [ -d \"$testmesa\" ]; then path=${path:+$path:}$testmesa; fi\n")
	if m.Loader != "" {
		fmt.Fprintf(&s, "exec \"$here/%s\" --library-path \"$path\" \"$@\"\n", m.Loader)
	} else {
		s.WriteString("LD_LIBRARY_PATH=${path:+$path${LD_LIBRARY_PATH:+:}}$LD_LIBRARY_PATH\nexport LD_LIBRARY_PATH\nexec \"$@\"\n")
	}
	if err := os.WriteFile(b.Path("run"), []byte(s.String()), 0o755); err != nil {
		return fmt.Errorf("write run script: %w", err)
	}
	return nil
}

// WritePC writes hearth-engine.pc with the flags cgo links engine/llama by. With empty arguments the headers and
// libraries are the bundle's own, found relative to the file, so that the bundle can be moved.
func (b *Builder) WritePC(cflags, libs string) error {
	if cflags == "" {
		cflags = "-I${prefix}/include"
	}
	if libs == "" {
		// The link needs no more than the three libraries; what they need in turn (a newer libc, ROCm) is found at run
		// time through the bundle's loader.
		libs = "-L${prefix}/lib -lllama -lggml -lggml-base -Wl,-rpath-link,${prefix}/lib -Wl,--allow-shlib-undefined"
	}
	text := fmt.Sprintf("prefix=${pcfiledir}\n\nName: hearth-engine\nDescription: llama.cpp as held by this engine bundle\n"+
		"Version: %s\nCflags: %s\nLibs: %s\n", b.Manifest.LlamaVersion, cflags, libs)
	if err := os.WriteFile(b.Path("hearth-engine.pc"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write pkg-config file: %w", err)
	}
	return nil
}

// AddPlugins lists the ggml backend libraries in dir as plugins. inManifest gives the path written down for a file.
// The gfx targets of a HIP plugin are read on the way.
func (b *Builder) AddPlugins(dir string, inManifest func(file string) string) error {
	files, err := filepath.Glob(filepath.Join(dir, "libggml-*.so"))
	if err != nil {
		return fmt.Errorf("list plugins: %w", err)
	}
	for _, file := range files {
		base := filepath.Base(file)
		name := strings.TrimSuffix(strings.TrimPrefix(base, "libggml-"), ".so")
		if name == "base" {
			continue
		}
		kind := pluginKind(name)
		b.Manifest.Plugins = append(b.Manifest.Plugins, bundle.Plugin{Name: name, Path: inManifest(file), Kind: kind})
		if kind != bundle.KindHIP {
			continue
		}
		targets, note, err := GFXTargets(file)
		if err != nil {
			return err
		}
		b.Manifest.GFXTargets, b.Manifest.GFXNote = targets, note
	}
	if !slices.ContainsFunc(b.Manifest.Plugins, func(p bundle.Plugin) bool { return p.Kind == bundle.KindCPU }) {
		return fmt.Errorf("no CPU plugin (libggml-cpu*.so) in %s", dir)
	}
	return nil
}

func pluginKind(name string) bundle.Kind {
	switch {
	case name == "cpu" || strings.HasPrefix(name, "cpu-"):
		return bundle.KindCPU
	case name == "vulkan":
		return bundle.KindVulkan
	case name == "hip":
		return bundle.KindHIP
	case name == "blas":
		return bundle.KindBLAS
	}
	return bundle.KindOther
}

// copyEntry copies a file with its mode, or a symbolic link as it is.
func copyEntry(from, to string) error {
	st, err := os.Lstat(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		return replaceLink(target, to)
	}
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, st.Mode().Perm())
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return fmt.Errorf("copy %s: %w", from, err)
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

// Own replaces a symbolic link by a copy of the file that it leads to.
func Own(path string) error {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if target == path {
		return nil
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return copyEntry(target, path)
}

// replaceLink makes path a symbolic link to target, whatever it was.
func replaceLink(target, path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("link: %w", err)
	}
	if err := os.Symlink(target, path); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	return nil
}
