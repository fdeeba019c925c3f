package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"

	"hearth/engine/bundle"
	"hearth/scripts/engine/layout"
)

// describeCommand writes a bundle around libraries that are already somewhere: installed (system), or just built into
// a prefix of their own (source), from which they are copied.
func describeCommand(_ context.Context, t tool, args []string) error {
	var out, source, prefix, backends, cflags, libs, libDir string
	var m bundle.Manifest
	err := t.flags("describe", args, func(fs *flag.FlagSet) {
		fs.StringVar(&out, "out", "", "bundle `folder`")
		fs.StringVar(&source, "source", "", "system or source")
		fs.StringVar(&prefix, "prefix", "", "installation `folder` of a built llama.cpp to copy; in place of the flags below")
		fs.StringVar(&m.LlamaVersion, "llama-version", "", "version of llama.cpp")
		fs.StringVar(&m.GGMLVersion, "ggml-version", "", "version of ggml")
		fs.StringVar(&backends, "backends", "", "`folder` with the backend plugins")
		fs.StringVar(&libDir, "libdir", "", "`folder` with the libraries")
		fs.StringVar(&cflags, "cflags", "", "compiler flags for the headers")
		fs.StringVar(&libs, "libs", "", "linker flags")
	})
	if err != nil {
		return err
	}
	if out == "" || prefix == "" && (backends == "" || cflags == "" || libs == "") {
		return errors.New("describe needs -out, and -prefix or -backends, -cflags and -libs")
	}
	m.Source = bundle.Source(source)
	if libDir != "" {
		m.LibraryPath = []string{libDir}
	}
	if out, err = filepath.Abs(out); err != nil {
		return fmt.Errorf("bundle folder: %w", err)
	}
	b, err := layout.New(out, m)
	if err != nil {
		return err
	}
	inManifest := func(file string) string { return file }
	if prefix != "" {
		if err := b.CopyPrefix(prefix); err != nil {
			return err
		}
		backends = b.Path("backends")
		inManifest = func(file string) string { return filepath.Join("backends", filepath.Base(file)) }
	}
	if err := b.AddPlugins(backends, inManifest); err != nil {
		return err
	}
	if err := b.WritePC(cflags, libs); err != nil {
		return err
	}
	if err := b.Finish(); err != nil {
		return err
	}
	m = b.Manifest
	t.say("bundle %s: llama.cpp %s, ggml %s, %d plugins%s", out, m.LlamaVersion, m.GGMLVersion, len(m.Plugins), gfxText(m))
	return nil
}

// checkCommand reads a bundle and looks whether its files are there.
func checkCommand(_ context.Context, t tool, args []string) error {
	var dir string
	if err := t.flags("check", args, func(fs *flag.FlagSet) { fs.StringVar(&dir, "bundle", "", "bundle `folder`") }); err != nil {
		return err
	}
	b, err := bundle.Load(dir)
	if err != nil {
		return err
	}
	if err := b.Check(); err != nil {
		return err
	}
	t.say("bundle %s is complete: llama.cpp %s from %s", b.Dir, b.LlamaVersion, b.Source)
	return nil
}
