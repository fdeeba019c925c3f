package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Root is one unpacked package.
type Root struct {
	Name string
	Dir  string // absolute; has usr/, etc/ ... below it
	// Link makes the bundle refer to the files in Dir instead of copying them: for the gigabytes of ROCm and Mesa,
	// which stay in the cache.
	Link bool
}

// libDir is the package's folder of shared libraries, usr/lib/TRIPLE.
func (r Root) libDir() (string, error) {
	found, err := filepath.Glob(filepath.Join(r.Dir, "usr/lib/*-linux-gnu"))
	if err != nil {
		return "", fmt.Errorf("look into %s: %w", r.Name, err)
	}
	if len(found) == 0 {
		return "", nil // a package of data files
	}
	return found[0], nil
}

// place puts one file of the package at `to`, by copy or by link. A link that leaves its folder (Debian's libLLVM)
// is followed inside the package.
func (r Root) place(from, to string) error {
	target, err := os.Readlink(from)
	switch {
	case err != nil && !r.Link: // a plain file
		return copyEntry(from, to)
	case err == nil && !r.Link && filepath.Base(target) == target:
		return replaceLink(target, to)
	}
	real, err := r.resolve(from)
	if err != nil {
		return err
	}
	if r.Link {
		return replaceLink(real, to)
	}
	return copyEntry(real, to)
}

// resolve follows symbolic links, with absolute ones taken as below the package's root.
func (r Root) resolve(path string) (string, error) {
	for range 16 {
		target, err := os.Readlink(path)
		if err != nil {
			if _, err := os.Stat(path); err != nil {
				return "", fmt.Errorf("package %s: %w", r.Name, err)
			}
			return path, nil
		}
		if filepath.IsAbs(target) {
			path = filepath.Join(r.Dir, target)
		} else {
			path = filepath.Join(filepath.Dir(path), target)
		}
	}
	return "", fmt.Errorf("package %s: %s: too many links", r.Name, path)
}

// Libraries places the runtime libraries of the packages (libX.so.N and the dynamic loader) and the private ones
// named by extra ("libvulkan_lvp.so") in dir.
func Libraries(dir string, roots []Root, extra ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("gather libraries: %w", err)
	}
	for _, r := range roots {
		from, err := r.libDir()
		if err != nil || from == "" {
			if err != nil {
				return err
			}
			continue
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return fmt.Errorf("gather libraries: %w", err)
		}
		for _, e := range entries {
			name := e.Name()
			if e.IsDir() || !(strings.Contains(name, ".so.") || slices.Contains(extra, name)) {
				continue
			}
			if err := r.place(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("gather libraries: %w", err)
			}
		}
	}
	return nil
}

// FindLoader returns the file name of the dynamic loader in dir.
func FindLoader(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "ld-linux-*.so.*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("expected one dynamic loader in %s, found %d (%v)", dir, len(found), err)
	}
	return filepath.Base(found[0]), nil
}

// DevLinks adds the unversioned names that the linker looks for, of llama.cpp's three libraries only: with others in
// the folder, libc and libstdc++ would be linked from the bundle and clash with the host's headers.
func DevLinks(dir string) error {
	for _, lib := range []string{"libllama.so", "libggml.so", "libggml-base.so"} {
		found, err := filepath.Glob(filepath.Join(dir, lib+".*"))
		if err != nil || len(found) == 0 {
			return fmt.Errorf("%s.N is not in %s (%v)", lib, dir, err)
		}
		// The shortest name is the soname, libllama.so.0.
		slices.SortFunc(found, func(a, b string) int { return len(a) - len(b) })
		if err := replaceLink(filepath.Base(found[0]), filepath.Join(dir, lib)); err != nil {
			return err
		}
	}
	return nil
}

// Headers copies the C headers of the packages.
func Headers(dir string, roots []Root) error {
	for _, r := range roots {
		found, err := filepath.Glob(filepath.Join(r.Dir, "usr/include/*.h"))
		if err != nil {
			return fmt.Errorf("gather headers: %w", err)
		}
		for _, h := range found {
			if err := copyEntry(h, filepath.Join(dir, filepath.Base(h))); err != nil {
				return err
			}
		}
	}
	return nil
}

// Backends places ggml's backend plugins, wherever the packages keep them, in dir.
func Backends(dir string, roots []Root) error {
	return placeGlob(dir, roots, "usr/lib/*/ggml/backends*/libggml-*.so")
}

// OpenBLAS places the BLAS library in dir under the name that ggml's plugin asks for. Debian keeps it in a folder that alternatives
// choose among; of OpenBLAS only the build with OpenMP is looked for: threads of its own beside those of the CPU plugin
// make it 15 times slower than no BLAS. LAPACK, which lies beside it, is left out.
func OpenBLAS(dir string, roots []Root) error {
	return placeGlob(dir, roots, "usr/lib/*/openblas-openmp/lib*blas*.so*")
}

// PrivateLibraries places the libraries that Debian's llama.cpp tools keep in a folder of their own.
func PrivateLibraries(dir string, roots []Root) error {
	return placeGlob(dir, roots, "usr/lib/*/llama/*.so")
}

func placeGlob(dir string, roots []Root, pattern string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("gather files: %w", err)
	}
	for _, r := range roots {
		found, err := filepath.Glob(filepath.Join(r.Dir, pattern))
		if err != nil {
			return fmt.Errorf("gather files: %w", err)
		}
		for _, file := range found {
			if err := r.place(file, filepath.Join(dir, filepath.Base(file))); err != nil {
				return err
			}
		}
	}
	return nil
}

// RocBLAS links lib/rocblas to the Tensile kernels of librocblas, which looks for them beside the path it was loaded
// by (tried with rocBLAS 4.4.1 and a modelled gfx1100), and returns the path of its library folder relative
// to the bundle, "lib/rocblas/4.4.1/library"; empty when no package has one.
func RocBLAS(lib string, roots []Root) (string, error) {
	for _, r := range roots {
		found, err := filepath.Glob(filepath.Join(r.Dir, "usr/lib/*/rocblas/*/library"))
		if err != nil {
			return "", fmt.Errorf("look for rocBLAS kernels: %w", err)
		}
		if len(found) == 0 {
			continue
		}
		version := filepath.Dir(found[0])
		if err := replaceLink(filepath.Dir(version), filepath.Join(lib, "rocblas")); err != nil {
			return "", err
		}
		return filepath.Join("lib", "rocblas", filepath.Base(version), "library"), nil
	}
	return "", nil
}

// Licenses copies each package's copyright file, so that a bundle that is passed on keeps them.
func Licenses(dir string, roots []Root) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("gather licenses: %w", err)
	}
	for _, r := range roots {
		from := filepath.Join(r.Dir, "usr/share/doc", r.Name, "copyright")
		// Packages of one source share the file by a link to another package's folder, which is copied as its own.
		if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := copyEntry(from, filepath.Join(dir, r.Name+".txt")); err != nil {
			return err
		}
	}
	return nil
}

// icd is a Vulkan driver file. Other keys are passed through.
type icd struct {
	FileFormatVersion string         `json:"file_format_version"`
	ICD               map[string]any `json:"ICD"`
}

// VulkanDrivers writes driver files for the named Mesa drivers ("radeon", "lvp") to dir/icd.d, with the library named
// relative to the file (dir/lib), and returns their paths below dir in the order given.
func VulkanDrivers(dir string, roots []Root, names ...string) ([]string, error) {
	if err := os.MkdirAll(filepath.Join(dir, "icd.d"), 0o755); err != nil {
		return nil, fmt.Errorf("write vulkan driver files: %w", err)
	}
	var written []string
	for _, name := range names {
		file := name + "_icd.json"
		var data []byte
		var err error = fs.ErrNotExist
		for _, r := range roots {
			if data, err = os.ReadFile(filepath.Join(r.Dir, "usr/share/vulkan/icd.d", file)); err == nil {
				break
			}
		}
		if err != nil {
			return nil, fmt.Errorf("vulkan driver file %s: %w", file, err)
		}
		var d icd
		if err := json.Unmarshal(data, &d); err != nil {
			return nil, fmt.Errorf("vulkan driver file %s: %w", file, err)
		}
		library, ok := d.ICD["library_path"].(string)
		if !ok {
			return nil, fmt.Errorf("vulkan driver file %s: no library_path", file)
		}
		d.ICD["library_path"] = "../lib/" + filepath.Base(library)
		if data, err = json.MarshalIndent(d, "", "  "); err != nil {
			return nil, fmt.Errorf("vulkan driver file %s: %w", file, err)
		}
		path := filepath.Join("icd.d", file)
		if err := os.WriteFile(filepath.Join(dir, path), append(data, '\n'), 0o644); err != nil {
			return nil, fmt.Errorf("write vulkan driver file: %w", err)
		}
		written = append(written, path)
	}
	return written, nil
}
