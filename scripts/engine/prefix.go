package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"hearth/scripts/engine/layout"
)

// prefixCommand unpacks one of the sets that are not part of a bundle.
func prefixCommand(ctx context.Context, t tool, args []string) error {
	var o fetchFlags
	var out, set string
	err := t.flags("prefix", args, func(fs *flag.FlagSet) {
		o.define(fs)
		fs.StringVar(&out, "out", "", "`folder` to write")
		fs.StringVar(&set, "set", "", "peers, testmesa or testrocr")
	})
	if err != nil {
		return err
	}
	fill, ok := map[string]func(dir string, roots []layout.Root) error{
		"peers": fillPeers, "testmesa": fillTestMesa, "testrocr": fillTestROCr,
	}[set]
	if !ok {
		return fmt.Errorf("-set %q is none of peers, testmesa, testrocr", set)
	}
	f, err := o.fetcher(t)
	if err != nil {
		return err
	}
	locked := set
	if set == "testmesa" {
		locked = "mesa" // the same packages, laid out for tests
	}
	stamp, err := stampOf(f, []string{set, locked}[1:])
	if err != nil {
		return err
	}
	stampFile := filepath.Join(out, ".stamp")
	if have, err := os.ReadFile(stampFile); err == nil && string(have) == stamp {
		t.say("%s is up to date", out)
		return nil
	}
	release, err := f.Hold()
	if err != nil {
		return err
	}
	defer release()
	packages, err := f.Fetch(ctx, locked)
	if err != nil {
		return err
	}
	t.say("unpacking %d packages", len(packages))
	var roots []layout.Root
	for _, p := range packages {
		dir, err := f.UnpackCached(ctx, p)
		if err != nil {
			return err
		}
		roots = append(roots, layout.Root{Name: p.Name, Dir: dir, Link: true})
	}
	if err := os.RemoveAll(out); err != nil {
		return fmt.Errorf("replace %s: %w", out, err)
	}
	if err := fill(out, roots); err != nil {
		return err
	}
	if err := os.WriteFile(stampFile, []byte(stamp), 0o644); err != nil {
		return fmt.Errorf("write stamp: %w", err)
	}
	t.say("wrote %s", out)
	return nil
}

// fillTestMesa lays out lavapipe, Mesa's Vulkan driver for the CPU, so that the Vulkan plugin can be tested without a
// GPU. Libraries that every bundle has already are left out: two libc in one library path would clash.
func fillTestMesa(dir string, roots []layout.Root) error {
	var own []layout.Root
	for _, r := range roots {
		if !inEveryBundle(r.Name) {
			own = append(own, r)
		}
	}
	if err := layout.Libraries(filepath.Join(dir, "lib"), own, "libvulkan_lvp.so"); err != nil {
		return err
	}
	_, err := layout.VulkanDrivers(dir, own, "lvp")
	return err
}

// inEveryBundle names the packages of the base set that other sets pull in too.
func inEveryBundle(name string) bool {
	switch name {
	case "libc6", "libgcc-s1", "libstdc++6", "libgomp1", "libvulkan1", "libzstd1", "zlib1g", "gcc-16-base", "libc-gconv-modules-extra":
		return true
	}
	return false
}

// fillTestROCr lays out the newer ROCr, which can pretend to have a GPU, to be put before a HIP bundle's own.
func fillTestROCr(dir string, roots []layout.Root) error {
	return layout.Libraries(filepath.Join(dir, "lib"), roots)
}

// fillPeers lays out Debian's llama-server, llama-bench and so on, each behind a script that starts it through the
// loader of the same packages.
func fillPeers(dir string, roots []layout.Root) error {
	lib := filepath.Join(dir, "lib")
	if err := layout.Libraries(lib, roots); err != nil {
		return err
	}
	if err := layout.PrivateLibraries(lib, roots); err != nil {
		return err
	}
	// ggml looks for plugins beside /proc/self/exe, which is the loader.
	if err := layout.Backends(lib, roots); err != nil {
		return err
	}
	loader, err := layout.FindLoader(lib)
	if err != nil {
		return err
	}
	// /proc/self/exe resolves links, so the loader must be a file of this folder.
	if err := layout.Own(filepath.Join(lib, loader)); err != nil {
		return err
	}
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("write peers: %w", err)
	}
	for _, r := range roots {
		if r.Name != "llama.cpp-tools" {
			continue
		}
		programs, err := filepath.Glob(filepath.Join(r.Dir, "usr/bin/*"))
		if err != nil {
			return fmt.Errorf("write peers: %w", err)
		}
		for _, program := range programs {
			script := fmt.Sprintf("#!/bin/sh\nlib=$(cd \"$(dirname \"$0\")/../lib\" && pwd)\nexec \"$lib/%s\" --library-path \"$lib\" '%s' \"$@\"\n", loader, program)
			if err := os.WriteFile(filepath.Join(bin, filepath.Base(program)), []byte(script), 0o755); err != nil {
				return fmt.Errorf("write peers: %w", err)
			}
		}
	}
	return nil
}
