package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"hearth/backends"
	"hearth/backends/codeobject"
	"hearth/backends/ldpath"
	"hearth/backends/sysroot"
	"hearth/backends/vulkan"
)

// BundleFiles says where an engine bundle's files are: the manifest as cmd reads it. All paths are absolute.
type BundleFiles struct {
	Name, LlamaVersion, GGMLVersion, Source string
	Plugins                                 []PluginFile
	LibraryDirs                             []string // in order; the system's come after them
	VulkanManifests                         []string
}

// PluginFile is one plugin of a bundle.
type PluginFile struct{ Kind, Path string }

// maxNeeded bounds the walk over needed libraries; a HIP plugin pulls in about 30.
const maxNeeded = 256

// InspectBundle reads what the checks need to know about a bundle from its files, without loading any: the HIP plugin's
// code objects, rocBLAS's kernel files, the libraries that are missing, ROCr's and Mesa's versions. What cannot be read
// stays unknown. Reading a plugin of 1.2 GB takes milliseconds, as only headers are looked at.
func InspectBundle(fsys sysroot.FS, environ backends.Environ, files BundleFiles) *Bundle {
	b := &Bundle{Name: files.Name, LlamaVersion: files.LlamaVersion, GGMLVersion: files.GGMLVersion, Source: files.Source}
	libs := ldpath.New(fsys, environ).With(files.LibraryDirs...)
	hip := ""
	for _, p := range files.Plugins {
		if !slices.Contains(b.Plugins, p.Kind) {
			b.Plugins = append(b.Plugins, p.Kind)
		}
		if p.Kind == backends.HIP && hip == "" {
			hip = p.Path
		}
	}
	if hip != "" {
		b.inspectHIP(fsys, libs, strings.TrimPrefix(hip, "/"))
		override, _ := environ.Lookup("ROCBLAS_TENSILE_LIBPATH")
		if kernels, _, err := codeobject.FindKernelFiles(fsys, libs.Dirs(), "rocblas", override); err == nil {
			b.BLAS = kernels
		}
		b.ROCr = rocrVersion(fsys, libs)
	}
	for _, m := range files.VulkanManifests {
		icd, err := vulkan.ReadManifest(fsys, m, files.LibraryDirs...)
		if err == nil && icd.Driver == vulkan.RADV && icd.Usable() {
			b.Mesa = vulkan.BundleMesa{Manifest: m, Version: icd.Mesa}
			break
		}
	}
	return b
}

// inspectHIP reads the plugin's targets and follows what it needs.
func (b *Bundle) inspectHIP(fsys sysroot.FS, libs ldpath.Path, plugin string) {
	lib, err := inspectFile(fsys, plugin)
	if err != nil {
		b.GFXUnknown = err.Error()
		return
	}
	b.GFXUnknown = lib.Unknown
	for _, t := range lib.Targets {
		b.GFXTargets = append(b.GFXTargets, t.String())
	}
	type need struct{ name, by string }
	var queue []need
	for _, n := range lib.Needed {
		queue = append(queue, need{n, path.Base(plugin)})
	}
	seen := map[string]bool{}
	for len(queue) > 0 && len(seen) < maxNeeded {
		n := queue[0]
		queue = queue[1:]
		if seen[n.name] {
			continue
		}
		seen[n.name] = true
		file := libs.Find(n.name)
		if file == "" {
			b.Missing = append(b.Missing, fmt.Sprintf("%s (needed by %s)", n.name, n.by))
			continue
		}
		if next, err := neededBy(fsys, file); err == nil {
			for _, m := range next {
				queue = append(queue, need{m, path.Base(file)})
			}
		}
	}
}

func inspectFile(fsys sysroot.FS, name string) (codeobject.Library, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return codeobject.Library{}, err
	}
	defer f.Close() // read only
	return codeobject.Inspect(f, f.Size())
}

// rocrVersion is the version in the file name behind libhsa-runtime64.so.1, "1.18.0".
func rocrVersion(fsys sysroot.FS, libs ldpath.Path) string {
	file := libs.Find("libhsa-runtime64.so.1")
	for range 8 { // links upon links; the bundle links into a cache
		target, err := fsys.ReadLink(file)
		if err != nil || target == "" {
			break
		}
		if !path.IsAbs(target) {
			target = path.Join(path.Dir("/"+file), target)
		}
		file = strings.TrimPrefix(path.Clean(target), "/")
		if v := strings.TrimPrefix(path.Base(file), "libhsa-runtime64.so."); v != path.Base(file) && v != "1" {
			return v
		}
	}
	return ""
}
