package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
)

// Schema is the version of engine.json that this package reads and writes.
const Schema = 1

// ManifestName is the manifest's file name inside a bundle folder.
const ManifestName = "engine.json"

// maxManifest bounds what ParseManifest reads, in bytes. The largest real manifest (HIP and Mesa, about 70 packages)
// is 16 KiB.
const maxManifest = 1 << 20

// ErrManifest is wrapped by every error about the content of a manifest.
var ErrManifest = errors.New("invalid engine manifest")

// Source says where the native libraries of a bundle came from.
type Source string

// The three sources of CMakeLists.txt (HEARTH_ENGINE).
const (
	SourceDebian Source = "debian" // unpacked Debian packages, with their own libc and loader
	SourceSystem Source = "system" // the libraries installed on this machine
	SourceBuilt  Source = "source" // llama.cpp compiled here
)

// Kind says which backend a plugin drives.
type Kind string

// Plugin kinds.
const (
	KindCPU    Kind = "cpu"
	KindVulkan Kind = "vulkan"
	KindHIP    Kind = "hip"
	KindBLAS   Kind = "blas"  // helps the CPU with prompts, where that is faster
	KindOther  Kind = "other" // rpc, ...: present, never loaded by hearth
)

// Plugin is one ggml backend library. A bundle usually has several of KindCPU, one for each instruction set level;
// ggml scores them and the binding loads the best.
type Plugin struct {
	Name string `json:"name"` // "vulkan", "cpu-haswell": the file name without libggml- and .so
	Path string `json:"path"` // relative to the bundle folder, or absolute
	Kind Kind   `json:"kind"`
}

// Package is one Debian package inside the bundle.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the .deb, lower-case hex
}

// Manifest is the content of engine.json.
type Manifest struct {
	Schema       int    `json:"schema"`
	Name         string `json:"name"`          // the folder's name, as in `hearth engine use NAME`
	LlamaVersion string `json:"llama_version"` // upstream version, "0.7.0"
	GGMLVersion  string `json:"ggml_version"`
	Source       Source `json:"source"`
	// Loader is the dynamic loader that must start the bundle's binaries, because the bundle has its own libc;
	// empty when they are started directly. Relative paths here and below are relative to the bundle folder.
	Loader      string   `json:"loader"`
	LibraryPath []string `json:"library_path"`
	Plugins     []Plugin `json:"plugins"`
	// GFXTargets are the gfx names that the HIP plugin has device code for, features included
	// ("gfx1100", "gfx90a:xnack-"); empty without a HIP plugin or when they could not be read (GFXNote says why).
	GFXTargets []string `json:"gfx_targets"`
	GFXNote    string   `json:"gfx_note,omitempty"`
	// VulkanICDs are the driver files of the Mesa that came with the bundle (HEARTH_MESA=ON).
	VulkanICDs []string `json:"vulkan_icds,omitempty"`
	// RocBLASLibrary is the folder with rocBLAS's Tensile kernels, of a bundle that carries rocBLAS.
	RocBLASLibrary string    `json:"rocblas_library,omitempty"`
	Packages       []Package `json:"packages"`
	// Stamp identifies the inputs the bundle was made from; the build tool compares it to skip work.
	Stamp string `json:"stamp,omitempty"`
}

// nameRE is what a bundle may be called: it becomes a folder and a command line word.
var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ParseManifest decodes and validates engine.json. Errors wrap ErrManifest and name the field.
func ParseManifest(r io.Reader) (Manifest, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return Manifest{}, fmt.Errorf("read engine manifest: %w", err)
	}
	if len(data) > maxManifest {
		return Manifest{}, fmt.Errorf("%w: larger than %d bytes", ErrManifest, maxManifest)
	}
	var m Manifest
	// Unknown fields are kept out of the way, so that a newer tool may add some without raising Schema.
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Manifest{}, fmt.Errorf("%w: text after the object", ErrManifest)
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// Validate checks the manifest's fields without looking at the disk; see Bundle.Check for that.
func (m Manifest) Validate() error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", ErrManifest, field, fmt.Sprintf(format, args...))
	}
	if m.Schema != Schema {
		return bad("schema", "%d, this hearth reads %d; build the bundle again with make engine", m.Schema, Schema)
	}
	if !nameRE.MatchString(m.Name) {
		return bad("name", "%q is not a plain name", m.Name)
	}
	if m.LlamaVersion == "" {
		return bad("llama_version", "empty")
	}
	switch m.Source {
	case SourceDebian, SourceSystem, SourceBuilt:
	default:
		return bad("source", "%q is none of debian, system, source", m.Source)
	}
	if m.Loader != "" && len(m.LibraryPath) == 0 {
		return bad("library_path", "empty beside loader %q", m.Loader)
	}
	paths := map[string][]string{"loader": {m.Loader}, "library_path": m.LibraryPath, "vulkan_icds": m.VulkanICDs,
		"rocblas_library": {m.RocBLASLibrary}}
	for i, p := range m.Plugins {
		if p.Name == "" || p.Path == "" {
			return bad("plugins", "entry %d lacks a name or a path", i)
		}
		paths["plugins"] = append(paths["plugins"], p.Path)
	}
	for field, list := range paths {
		for _, p := range list {
			if p != "" && !validPath(p) {
				return bad(field, "%q leaves the bundle folder or cannot stand in a library path", p)
			}
		}
	}
	return nil
}

// validPath accepts absolute paths and those that stay inside the bundle. A colon or semicolon would split a library
// path in two, and a NUL cannot reach the kernel.
func validPath(p string) bool {
	if strings.ContainsAny(p, ":;\x00") {
		return false
	}
	return filepath.IsAbs(p) || filepath.IsLocal(p)
}

// Encode writes the manifest as it stands in engine.json.
func (m Manifest) Encode() ([]byte, error) {
	m.Schema = Schema
	if err := m.Validate(); err != nil {
		return nil, err
	}
	// Readers in other languages expect lists, not null.
	m.LibraryPath = orEmpty(m.LibraryPath)
	m.Plugins = orEmpty(m.Plugins)
	m.GFXTargets = orEmpty(m.GFXTargets)
	m.Packages = orEmpty(m.Packages)
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode engine manifest: %w", err)
	}
	return append(data, '\n'), nil
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
