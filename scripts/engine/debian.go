package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hearth/engine/bundle"
	"hearth/scripts/engine/debian"
	"hearth/scripts/engine/layout"
)

// tool is what every command is given.
type tool struct {
	env    []string
	stderr io.Writer
}

// say prints a line of progress. It goes to standard error: what CMake itself writes to standard output is not for
// people.
func (t tool) say(format string, args ...any) {
	fmt.Fprintf(t.stderr, "engine: "+format+"\n", args...)
}

func (t tool) flags(name string, args []string, define func(*flag.FlagSet)) error {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(t.stderr)
	define(fs)
	if err := fs.Parse(args); err != nil {
		return errUsage
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(t.stderr, "%s takes no argument %q\n", name, fs.Arg(0))
		return errUsage
	}
	return nil
}

// layoutVersion goes into the stamp: raising it makes existing bundles be built again.
const layoutVersion = "3"

// fetchFlags are common to the commands that download.
type fetchFlags struct {
	lock, cache, mirror string
}

func (o *fetchFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&o.lock, "lock", "engine.lock", "the `file` with pinned packages")
	fs.StringVar(&o.cache, "cache", "", "`folder` that keeps downloads between checkouts")
	fs.StringVar(&o.mirror, "mirror", "", "Debian archive `URI` (default: the one in the apt configuration)")
}

func (o *fetchFlags) fetcher(t tool) (*debian.Fetcher, error) {
	if o.cache == "" {
		return nil, errors.New("-cache is missing")
	}
	cache, err := filepath.Abs(filepath.Join(o.cache, "engine"))
	if err != nil {
		return nil, fmt.Errorf("cache folder: %w", err)
	}
	lock, err := debian.LoadLock(o.lock)
	if err != nil {
		return nil, err
	}
	return &debian.Fetcher{Lock: lock, Cache: cache, Tools: debian.SystemTools(t.env), Say: t.say,
		Mirror: func() (debian.Mirror, error) { return debian.FindMirror("/", o.mirror) }}, nil
}

// debianCommand builds a bundle from Debian packages.
func debianCommand(ctx context.Context, t tool, args []string) error {
	var o fetchFlags
	var out string
	var hip, mesa bool
	err := t.flags("debian", args, func(fs *flag.FlagSet) {
		o.define(fs)
		fs.StringVar(&out, "out", "", "bundle `folder`, build/engine/NAME")
		fs.BoolVar(&hip, "hip", false, "add the HIP plugin and ROCm's user space (465 MB to download, 5 GB on disk)")
		fs.BoolVar(&mesa, "mesa", false, "add Mesa's Vulkan drivers (64 MB to download)")
	})
	if err != nil {
		return err
	}
	f, err := o.fetcher(t)
	if err != nil {
		return err
	}
	sets := []string{"base"}
	if hip {
		sets = append(sets, "hip")
	}
	if mesa {
		sets = append(sets, "mesa")
	}
	stamp, err := stampOf(f, sets)
	if err != nil {
		return err
	}
	if upToDate(out, stamp) {
		t.say("bundle %s is up to date", out)
		return nil
	}
	release, err := f.Hold()
	if err != nil {
		return err
	}
	defer release()
	packages, err := f.Fetch(ctx, sets...)
	if err != nil {
		return err
	}
	return assemble(ctx, t, f, packages, out, stamp)
}

// stampOf hashes what a bundle is made from.
func stampOf(f *debian.Fetcher, sets []string) (string, error) {
	locked, err := f.Lock.Pick(sets...)
	if err != nil {
		return "", err
	}
	data, err := json.Marshal([]any{layoutVersion, sets, locked})
	if err != nil {
		return "", fmt.Errorf("stamp: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

func upToDate(dir, stamp string) bool {
	b, err := bundle.Load(dir)
	return err == nil && b.Stamp == stamp && b.Check() == nil
}

// assemble unpacks the packages and builds the bundle folder from them.
func assemble(ctx context.Context, t tool, f *debian.Fetcher, packages []debian.Package, out, stamp string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("bundle folder: %w", err)
	}
	m := bundle.Manifest{Source: bundle.SourceDebian, LibraryPath: []string{"lib"}, Stamp: stamp}
	for _, p := range packages {
		m.Packages = append(m.Packages, bundle.Package{Name: p.Name, Version: p.Version, SHA256: p.SHA256})
		switch p.Name {
		case "libllama0":
			m.LlamaVersion = debian.Upstream(p.Version)
		case "libggml0":
			m.GGMLVersion = debian.Upstream(p.Version)
		}
	}
	b, err := layout.New(out, m)
	if err != nil {
		return err
	}
	t.say("unpacking %d packages", len(packages))
	groups, cleanup, err := unpack(ctx, f, packages, b.Path(".unpack"))
	if err != nil {
		return err
	}
	if err := fill(b, groups); err != nil {
		return err
	}
	if err := cleanup(); err != nil {
		return err
	}
	if err := b.Finish(); err != nil {
		return err
	}
	t.say("bundle %s: llama.cpp %s, ggml %s, %d plugins%s", out, b.Manifest.LlamaVersion, b.Manifest.GGMLVersion,
		len(b.Manifest.Plugins), gfxText(b.Manifest))
	return nil
}

func gfxText(m bundle.Manifest) string {
	switch {
	case len(m.GFXTargets) > 0:
		return ", HIP for " + strings.Join(m.GFXTargets, " ")
	case m.GFXNote != "":
		return ", HIP targets unknown: " + m.GFXNote
	}
	return ""
}

// groups are the unpacked packages by where their files go.
type groups struct {
	base, hip, mesa []layout.Root
}

func (g groups) all() []layout.Root { return slices.Concat(g.base, g.hip, g.mesa) }

// unpack extracts the packages: those of the base set into temp, to be copied, the others into the cache, to be
// linked to. A package that several sets need belongs to the first.
func unpack(ctx context.Context, f *debian.Fetcher, packages []debian.Package, temp string) (groups, func() error, error) {
	var g groups
	in := func(set, name string) bool {
		return slices.ContainsFunc(f.Lock.Sets[set].Packages, func(p debian.Package) bool { return p.Name == name })
	}
	for _, p := range packages {
		switch {
		case in("hip", p.Name) && !in("base", p.Name):
			dir, err := f.UnpackCached(ctx, p)
			if err != nil {
				return g, nil, err
			}
			g.hip = append(g.hip, layout.Root{Name: p.Name, Dir: dir, Link: true})
		case in("mesa", p.Name) && !in("base", p.Name):
			dir, err := f.UnpackCached(ctx, p)
			if err != nil {
				return g, nil, err
			}
			g.mesa = append(g.mesa, layout.Root{Name: p.Name, Dir: dir, Link: true})
		default:
			dir := filepath.Join(temp, p.Name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return g, nil, fmt.Errorf("unpack %s: %w", p.Name, err)
			}
			if err := f.Unpack(ctx, p, dir); err != nil {
				return g, nil, err
			}
			g.base = append(g.base, layout.Root{Name: p.Name, Dir: dir})
		}
	}
	return g, func() error { return os.RemoveAll(temp) }, nil
}

func fill(b *layout.Builder, g groups) error {
	m := &b.Manifest
	runtime := slices.Concat(g.base, g.hip)
	steps := []func() error{
		func() error { return layout.Libraries(b.Path("lib"), runtime) },
		func() error { return layout.OpenBLAS(b.Path("lib"), g.base) },
		func() error { return layout.DevLinks(b.Path("lib")) },
		func() error { return layout.Headers(b.Path("include"), devPackages(g.base)) },
		func() error { return layout.Backends(b.Path("backends"), runtime) },
		func() error { return layout.Licenses(b.Path("licenses"), g.all()) },
		func() error { return b.WritePC("", "") },
		func() error {
			return b.AddPlugins(b.Path("backends"), func(file string) string {
				return filepath.Join("backends", filepath.Base(file))
			})
		},
		func() error {
			loader, err := layout.FindLoader(b.Path("lib"))
			m.Loader = filepath.Join("lib", loader)
			return err
		},
		func() (err error) {
			m.RocBLASLibrary, err = layout.RocBLAS(b.Path("lib"), g.hip)
			return err
		},
		func() error { return fillMesa(b, g) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// devPackages are the packages whose headers a bundle carries.
func devPackages(roots []layout.Root) []layout.Root {
	var dev []layout.Root
	for _, r := range roots {
		if r.Name == "libllama-dev" || r.Name == "libggml-dev" {
			dev = append(dev, r)
		}
	}
	return dev
}

// fillMesa adds RADV for real cards and lavapipe for machines without one. What Mesa needs besides the base lies in
// a folder of its own at the end of the library path, where it cannot take the place of anything else.
func fillMesa(b *layout.Builder, g groups) error {
	if !slices.ContainsFunc(g.mesa, func(r layout.Root) bool { return r.Name == "mesa-vulkan-drivers" }) {
		return nil
	}
	if err := layout.Libraries(b.Path("mesa", "lib"), g.mesa, "libvulkan_radeon.so", "libvulkan_lvp.so"); err != nil {
		return err
	}
	files, err := layout.VulkanDrivers(b.Path("mesa"), g.mesa, "radeon", "lvp")
	if err != nil {
		return err
	}
	for _, file := range files {
		b.Manifest.VulkanICDs = append(b.Manifest.VulkanICDs, filepath.Join("mesa", file))
	}
	b.Manifest.LibraryPath = append(b.Manifest.LibraryPath, "mesa/lib")
	return nil
}

// relockCommand writes engine.lock anew.
func relockCommand(ctx context.Context, t tool, args []string) error {
	var o fetchFlags
	if err := t.flags("relock", args, o.define); err != nil {
		return err
	}
	f, err := o.fetcher(t)
	if err != nil {
		return err
	}
	release, err := f.Hold()
	if err != nil {
		return err
	}
	defer release()
	fresh, moves, err := f.Relock(ctx)
	seen := map[string]bool{}
	for _, m := range moves {
		if line := m.String(); !seen[line] {
			seen[line] = true
			t.say("  %s", line)
		}
	}
	if err != nil {
		return err
	}
	if len(moves) == 0 {
		t.say("engine.lock is as the archive")
	}
	return fresh.Save(o.lock)
}
