package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Bundle is an engine bundle on disk: its manifest and the absolute folder it lies in.
type Bundle struct {
	Manifest
	Dir string // absolute, symbolic links resolved

	first, last []string // library folders around the bundle's own
}

// Load reads the bundle in dir. It fails with fs.ErrNotExist when there is no manifest and with ErrManifest when
// there is a bad one. Load does not look at the libraries; Check does.
func Load(dir string) (Bundle, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Bundle{}, fmt.Errorf("engine bundle %s: %w", dir, err)
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return Bundle{}, fmt.Errorf("engine bundle %s: %w", dir, err)
	}
	f, err := os.Open(filepath.Join(abs, ManifestName))
	if err != nil {
		return Bundle{}, fmt.Errorf("engine bundle %s: %w", dir, err)
	}
	defer f.Close()
	m, err := ParseManifest(f)
	if err != nil {
		return Bundle{}, fmt.Errorf("engine bundle %s: %w", dir, err)
	}
	return Bundle{Manifest: m, Dir: abs}, nil
}

// List loads every bundle below root (build/engine in a checkout), sorted by folder name. Folders without a manifest
// are passed over; those with a broken one are reported in the error while the others are still returned.
func List(root string) ([]Bundle, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list engine bundles: %w", err)
	}
	var found []Bundle
	var problems []error
	for _, e := range entries {
		// A bundle may be a symbolic link to one elsewhere, so IsDir is not asked. A name with a dot in front is a
		// bundle in the making.
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		b, err := Load(filepath.Join(root, e.Name()))
		switch {
		case err == nil:
			found = append(found, b)
		case isAbsent(err):
		default:
			problems = append(problems, err)
		}
	}
	return found, errors.Join(problems...)
}

// isAbsent tells a path without a manifest (nothing there, or a plain file instead of a folder) from a broken bundle.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Path makes a path of the manifest absolute. The empty path stays empty.
func (b Bundle) Path(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(b.Dir, p)
}

// LibraryDirs are the absolute folders in which the bundle's libraries are looked up, in order.
func (b Bundle) LibraryDirs() []string {
	dirs := slices.Clone(b.first)
	for _, d := range b.LibraryPath {
		dirs = append(dirs, b.Path(d))
	}
	return append(dirs, b.last...)
}

// WithLibraryPath returns a copy of the bundle whose commands also look for libraries in dirs, after its own: for
// what the bundle lacks, like a software Vulkan driver.
func (b Bundle) WithLibraryPath(dirs ...string) Bundle {
	b.last = slices.Concat(b.last, dirs)
	return b
}

// WithLibraryPathFirst returns a copy of the bundle whose commands look for libraries in dirs before its own: to put
// something in the place of what the bundle has, like another ROCr.
func (b Bundle) WithLibraryPathFirst(dirs ...string) Bundle {
	b.first = slices.Concat(dirs, b.first)
	return b
}

// PluginsOf returns the plugins of one kind, paths made absolute.
func (b Bundle) PluginsOf(kind Kind) []Plugin {
	var list []Plugin
	for _, p := range b.Plugins {
		if p.Kind == kind {
			p.Path = b.Path(p.Path)
			list = append(list, p)
		}
	}
	return list
}

// VulkanDriverFiles are the absolute paths of the driver files that came with the bundle, as VK_DRIVER_FILES wants
// them; empty without HEARTH_MESA.
func (b Bundle) VulkanDriverFiles() []string {
	files := make([]string, 0, len(b.VulkanICDs))
	for _, f := range b.VulkanICDs {
		files = append(files, b.Path(f))
	}
	return files
}

// Check looks whether everything that the manifest names is on disk and returns one error for each thing missing,
// joined. A HIP bundle refers to ROCm files in the download cache, so clearing that cache shows here.
func (b Bundle) Check() error {
	var missing []error
	look := func(what, path string) {
		if path == "" {
			return
		}
		if _, err := os.Stat(b.Path(path)); err != nil {
			missing = append(missing, fmt.Errorf("%s: %w", what, err))
		}
	}
	look("loader", b.Loader)
	for _, d := range b.LibraryPath {
		look("library path", d)
	}
	for _, p := range b.Plugins {
		look("plugin "+p.Name, p.Path)
	}
	for _, f := range b.VulkanICDs {
		look("vulkan driver file", f)
	}
	look("rocblas library", b.RocBLASLibrary)
	if len(missing) > 0 {
		return fmt.Errorf("engine bundle %s is incomplete, make engine builds it again: %w", b.Name, errors.Join(missing...))
	}
	return nil
}
