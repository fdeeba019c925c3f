package codeobject

import (
	"errors"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"hearth/backends/sysroot"
)

// KernelFiles counts the files that a kernel library (rocBLAS, hipBLASLt) has for each gfx target.
type KernelFiles map[string]KernelCount

// KernelCount is what one target has. A target with fallback kernels alone works, slowly.
type KernelCount struct {
	// Index says that the file is there which the library opens first; without it the library does not start.
	Index    bool `json:"index"`
	Tuned    int  `json:"tuned"`
	Fallback int  `json:"fallback"`
}

// Covers says whether the library starts on a target.
func (k KernelFiles) Covers(processor string) bool { return k[processor].Index }

// Processors lists the covered targets, sorted.
func (k KernelFiles) Processors() []string {
	list := []string{}
	for p := range k {
		if k.Covers(p) {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

// ParseKernelNames sorts the names in a rocblas/library or hipblaslt/library folder by target:
// "TensileLibrary_lazy_gfx1100.dat" and "TensileLibrary_gfx1100.dat" are indices,
// "TensileLibrary_Type_..._fallback_gfx1100.hsaco" a fallback, other names with a target are tuned kernels.
// "Kernels.so-000-gfx90a-xnack+.hsaco" counts for gfx90a.
func ParseKernelNames(names []string) KernelFiles {
	target := regexp.MustCompile(`(gfx[0-9]{1,3}[0-9a-f]{2})(?:[^0-9a-f]|$)`)
	index := regexp.MustCompile(`^TensileLibrary(?:_lazy)?_gfx[0-9a-f]+(?:-xnack[+-])?\.(?:dat|yaml)(?:\.gz|\.zst)?$`)
	files := KernelFiles{}
	for _, name := range names {
		name = path.Base(name)
		m := target.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		found := m[1]
		count := files[found]
		switch {
		case index.MatchString(name):
			count.Index = true
		case strings.Contains(name, "fallback") || strings.HasPrefix(name, "Kernels.so"):
			count.Fallback++
		default:
			count.Tuned++
		}
		files[found] = count
	}
	return files
}

// ErrNoKernelFiles says that no folder of kernel files was found.
var ErrNoKernelFiles = errors.New("no kernel files found")

// FindKernelFiles looks for a library's kernel files beside the shared libraries: LIB/NAME/library, where upstream puts
// them, then LIB/NAME/VERSION/library, as Debian does; newer hipBLASLt has a sub folder for each target. name is
// "rocblas" or "hipblaslt", libDirs are relative to root. override is the library's own variable
// (ROCBLAS_TENSILE_LIBPATH), empty when unset; it replaces the search. The folder that was found comes back too.
func FindKernelFiles(root sysroot.FS, libDirs []string, name, override string) (KernelFiles, string, error) {
	var folders []string
	if override != "" {
		folders = []string{strings.TrimPrefix(path.Clean(override), "/")}
	} else {
		for _, lib := range libDirs {
			folders = append(folders, path.Join(lib, name, "library"))
			versions, err := root.ReadDir(path.Join(lib, name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, "", err
			}
			for _, v := range versions {
				if v != "library" {
					folders = append(folders, path.Join(lib, name, v, "library"))
				}
			}
		}
	}
	for _, folder := range folders {
		names, err := root.ReadDir(folder)
		if err != nil {
			continue
		}
		for _, sub := range names {
			if strings.HasPrefix(sub, "gfx") {
				more, err := root.ReadDir(path.Join(folder, sub))
				if err == nil {
					names = append(names, more...)
				}
			}
		}
		if files := ParseKernelNames(names); len(files) > 0 {
			return files, folder, nil
		}
	}
	return nil, "", ErrNoKernelFiles
}

// KpackTargets lists the targets of a folder of .kpack archives by their names ("ggml_gfx1100.kpack"), for libraries whose
// own code section is empty.
func KpackTargets(names []string) []string {
	pattern := regexp.MustCompile(`[_-](gfx[0-9]{1,3}[0-9a-f]{2})\.kpack$`)
	list := []string{}
	for _, n := range names {
		if m := pattern.FindStringSubmatch(n); m != nil {
			list = append(list, m[1])
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
