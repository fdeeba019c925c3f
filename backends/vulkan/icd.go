package vulkan

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"hearth/backends"
	"hearth/backends/ldpath"
	"hearth/backends/sysroot"
)

// Kinds of driver, named as backends.VulkanFace.Driver names them.
const (
	RADV           = "radv"
	AMDVLK         = "amdvlk"
	AMDProprietary = "amd-proprietary"
	LLVMPipe       = "llvmpipe"
	Other          = "other"
)

// ICD is a driver manifest and what could be learnt of its library without loading it.
type ICD struct {
	// Manifest and Library are relative to the root. Library is "" when no such file is found, and LibraryName is what
	// the manifest says.
	Manifest    string `json:"manifest"`
	LibraryName string `json:"library_name"`
	Library     string `json:"library,omitempty"`
	APIVersion  string `json:"api_version"`
	Driver      string `json:"driver"` // RADV, AMDVLK, AMDProprietary, LLVMPipe or Other
	// Mesa is the version in the library; unknown for drivers that are not Mesa's.
	Mesa backends.Optional[Version] `json:"mesa,omitzero"`
	// Skipped says why the loader passes it over ("32-bit", "disabled by VK_LOADER_DRIVERS_DISABLE"); "" when it does not.
	Skipped string `json:"skipped,omitempty"`
}

// Usable says that the loader would load the driver.
func (i ICD) Usable() bool { return i.Skipped == "" && i.Library != "" }

// AMD says that the driver can drive an AMD GPU.
func (i ICD) AMD() bool { return i.Driver == RADV || i.Driver == AMDVLK || i.Driver == AMDProprietary }

// Layer is an implicit layer: code that the loader puts between every Vulkan program and its driver.
type Layer struct {
	Manifest string `json:"manifest"`
	Name     string `json:"name"`
}

// Inventory is what the loader would find.
type Inventory struct {
	ICDs   []ICD   `json:"icds"`
	Layers []Layer `json:"layers"`
	// Source is the variable that replaces the search ("VK_DRIVER_FILES"), "" for the standard directories; Searched are
	// the directories or files that were looked at, relative to the root.
	Source   string             `json:"source,omitempty"`
	Searched []string           `json:"searched"`
	Loader   string             `json:"loader,omitempty"` // libvulkan.so.1, relative to the root
	Problems []backends.Problem `json:"problems,omitempty"`
}

// Limits: a manifest is a few hundred bytes, a directory holds some ten of them.
const maxManifest = 64 << 10

// Discover applies the Vulkan loader's search rules (loader 1.3.2xx and newer on Linux) to the tree below fsys.
// Variables come from environ; HOME and the XDG variables in it count as paths below the root.
func Discover(fsys sysroot.FS, environ backends.Environ) Inventory {
	libs := ldpath.New(fsys, environ)
	inv := Inventory{ICDs: []ICD{}, Layers: []Layer{}, Loader: libs.Find("libvulkan.so.1")}
	files := inv.manifests(fsys, environ)
	for _, f := range files {
		icd, err := readICD(fsys, libs, f)
		if err != nil {
			inv.Problems = append(inv.Problems, backends.Problem{Path: f, Err: err})
			continue
		}
		icd.Skipped = skipped(environ, icd)
		inv.ICDs = append(inv.ICDs, icd)
	}
	for _, dir := range searchDirs(environ, "vulkan/implicit_layer.d") {
		for _, f := range jsonFiles(fsys, dir) {
			layers, err := readLayers(fsys, f, environ)
			if err != nil {
				inv.Problems = append(inv.Problems, backends.Problem{Path: f, Err: err})
			}
			inv.Layers = append(inv.Layers, layers...)
		}
	}
	return inv
}

// manifests lists the manifest files in the order in which the loader reads them, and notes what was searched.
func (inv *Inventory) manifests(fsys sysroot.FS, environ backends.Environ) []string {
	for _, name := range []string{"VK_DRIVER_FILES", "VK_ICD_FILENAMES"} { // the first one set wins
		if v, ok := environ.Lookup(name); ok && v != "" {
			inv.Source = name
			return inv.listed(fsys, v)
		}
	}
	var files []string
	if v, ok := environ.Lookup("VK_ADD_DRIVER_FILES"); ok {
		files = inv.listed(fsys, v)
	}
	for _, dir := range searchDirs(environ, "vulkan/icd.d") {
		inv.Searched = append(inv.Searched, dir)
		for _, f := range jsonFiles(fsys, dir) {
			if !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	return files
}

// listed expands a colon-separated list of files and directories.
func (inv *Inventory) listed(fsys sysroot.FS, list string) []string {
	var files []string
	for item := range strings.SplitSeq(list, ":") {
		if item = strings.TrimPrefix(path.Clean(item), "/"); item == "" || item == "." {
			continue
		}
		inv.Searched = append(inv.Searched, item)
		if node, err := fsys.Stat(item); err == nil && node.Mode.IsDir() {
			files = append(files, jsonFiles(fsys, item)...)
			continue
		}
		files = append(files, item)
	}
	return files
}

// searchDirs are the loader's directories for sub ("vulkan/icd.d"), relative to the root.
func searchDirs(environ backends.Environ, sub string) []string {
	get := func(name, fallback string) string {
		if v, ok := environ.Lookup(name); ok && v != "" {
			return v
		}
		return fallback
	}
	home := ""
	if h, ok := environ.Lookup("HOME"); ok && h != "" {
		home = h
	}
	under := func(dir string) string {
		if home == "" {
			return ""
		}
		return home + dir
	}
	list := get("XDG_CONFIG_HOME", under("/.config")) + ":" + get("XDG_CONFIG_DIRS", "/etc/xdg") + ":/usr/local/etc:/etc:" +
		get("XDG_DATA_HOME", under("/.local/share")) + ":" + get("XDG_DATA_DIRS", "/usr/local/share:/usr/share")
	var dirs []string
	for d := range strings.SplitSeq(list, ":") {
		if !strings.HasPrefix(d, "/") {
			continue
		}
		d = strings.TrimPrefix(path.Join(d, sub), "/")
		if !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

func jsonFiles(fsys sysroot.FS, dir string) []string {
	names, err := fsys.ReadDir(dir)
	if err != nil {
		return nil // most of the directories do not exist
	}
	var out []string
	for _, n := range names {
		if strings.HasSuffix(n, ".json") {
			out = append(out, dir+"/"+n)
		}
	}
	return out
}

// manifest is a driver's JSON.
type manifest struct {
	FileFormatVersion string `json:"file_format_version"`
	ICD               struct {
		LibraryPath string `json:"library_path"`
		APIVersion  string `json:"api_version"`
		LibraryArch string `json:"library_arch"` // "32" or "64", may be absent
	} `json:"ICD"`
}

// ErrManifest is wrapped by the error for a file that is no driver or layer manifest.
var ErrManifest = errors.New("not a Vulkan manifest")

func parseManifest(b []byte) (manifest, error) {
	var m manifest
	if len(b) > maxManifest {
		return m, fmt.Errorf("%w: %d bytes", ErrManifest, len(b))
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	if m.ICD.LibraryPath == "" {
		return m, fmt.Errorf("%w: ICD.library_path is missing", ErrManifest)
	}
	return m, nil
}

// ReadManifest reads one driver manifest, with its library looked up in the given directories first: for a driver that
// comes with the engine bundle. file and dirs count below the root.
func ReadManifest(fsys sysroot.FS, file string, dirs ...string) (ICD, error) {
	return readICD(fsys, ldpath.New(fsys, nil).With(dirs...), strings.TrimPrefix(file, "/"))
}

func readICD(fsys sysroot.FS, libs ldpath.Path, file string) (ICD, error) {
	b, err := fsys.ReadFile(file)
	if err != nil {
		return ICD{}, err
	}
	m, err := parseManifest(b)
	if err != nil {
		return ICD{}, err
	}
	icd := ICD{Manifest: file, LibraryName: m.ICD.LibraryPath, APIVersion: m.ICD.APIVersion}
	lib := m.ICD.LibraryPath
	if strings.Contains(lib, "/") && !strings.HasPrefix(lib, "/") { // relative to the manifest's folder
		lib = "/" + path.Join(path.Dir(file), lib)
	}
	icd.Library = libs.Find(lib)
	icd.Driver = driverOf(path.Base(lib), path.Base(file))
	if m.ICD.LibraryArch == "32" || strings.Contains(path.Base(file), ".i686.") {
		icd.Skipped = "a driver for 32-bit programs"
	}
	if icd.Library != "" && (icd.Driver == RADV || icd.Driver == LLVMPipe) {
		icd.Mesa = mesaVersion(fsys, icd.Library)
	}
	return icd, nil
}

// driverOf names the driver by its library, whose name distributions keep.
func driverOf(library, manifest string) string {
	for _, d := range []struct{ part, driver string }{
		{"libvulkan_radeon", RADV}, {"radeon_icd", RADV}, {"amdvlkpro", AMDProprietary}, {"amd_pro_icd", AMDProprietary},
		{"amdvlk", AMDVLK}, {"amd_icd", AMDVLK}, {"libvulkan_lvp", LLVMPipe}, {"lvp_icd", LLVMPipe},
	} {
		if strings.Contains(library, d.part) || strings.Contains(manifest, d.part) {
			return d.driver
		}
	}
	return Other
}

// skipped applies the loader's filters by manifest name and AMD's own switch between its two drivers.
func skipped(environ backends.Environ, icd ICD) string {
	if icd.Skipped != "" {
		return icd.Skipped
	}
	name := path.Base(icd.Manifest)
	if v, ok := environ.Lookup("VK_LOADER_DRIVERS_SELECT"); ok && v != "" && !globList(v, name) {
		return "not selected by VK_LOADER_DRIVERS_SELECT"
	}
	if v, ok := environ.Lookup("VK_LOADER_DRIVERS_DISABLE"); ok && globList(v, name) {
		return "disabled by VK_LOADER_DRIVERS_DISABLE"
	}
	if v, ok := environ.Lookup("AMD_VULKAN_ICD"); ok && v == "RADV" && icd.Driver == AMDVLK {
		return "steps aside because AMD_VULKAN_ICD=RADV"
	}
	return ""
}

// globList says whether name matches one of the comma-separated patterns; case does not count (as in the loader).
func globList(list, name string) bool {
	for p := range strings.SplitSeq(strings.ToLower(list), ",") {
		if ok, err := path.Match(strings.TrimSpace(p), strings.ToLower(name)); err == nil && ok {
			return true
		}
	}
	return false
}

// readLayers reads an implicit layer manifest, which holds one layer or a list, and drops those that their
// disable variable turns off.
func readLayers(fsys sysroot.FS, file string, environ backends.Environ) ([]Layer, error) {
	b, err := fsys.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseLayers(b, file, environ)
}

func parseLayers(b []byte, file string, environ backends.Environ) ([]Layer, error) {
	type layer struct {
		Name    string            `json:"name"`
		Disable map[string]string `json:"disable_environment"`
		Enable  map[string]string `json:"enable_environment"`
	}
	var m struct {
		Layer  *layer  `json:"layer"`
		Layers []layer `json:"layers"`
	}
	if len(b) > maxManifest {
		return nil, fmt.Errorf("%w: %d bytes", ErrManifest, len(b))
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	if m.Layer != nil {
		m.Layers = append(m.Layers, *m.Layer)
	}
	var out []Layer
	for _, l := range m.Layers {
		if l.Name != "" && active(l.Enable, l.Disable, environ) {
			out = append(out, Layer{Manifest: file, Name: l.Name})
		}
	}
	return out, nil
}

// active follows the loader: a layer with an enable variable needs it at that value; a disable variable, set at all, wins.
func active(enable, disable map[string]string, environ backends.Environ) bool {
	for k := range disable {
		if _, set := environ.Lookup(k); set {
			return false
		}
	}
	for k, want := range enable {
		if v, set := environ.Lookup(k); !set || v != want {
			return false
		}
	}
	return true
}
