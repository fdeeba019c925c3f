package vulkan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"hearth/backends"
	"hearth/backends/sysroot"
)

// Version is a Mesa release: 22.3.6 is {22, 3, 6}.
type Version struct{ Major, Minor, Patch int }

// Less orders releases.
func (v Version) Less(w Version) bool {
	if v.Major != w.Major {
		return v.Major < w.Major
	}
	if v.Minor != w.Minor {
		return v.Minor < w.Minor
	}
	return v.Patch < w.Patch
}

// String is "22.3.6".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// MarshalText spells the version as String does.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// ParseVersion finds "Mesa 22.3.6" (or "Mesa 26.0.0-devel") in text, which may be binary.
func ParseVersion(text []byte) (Version, bool) {
	m := regexp.MustCompile(`Mesa (\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?`).FindSubmatch(text)
	if m == nil {
		return Version{}, false
	}
	var v Version
	for i, p := range []*int{&v.Major, &v.Minor, &v.Patch} {
		if len(m[i+1]) > 0 {
			*p, _ = strconv.Atoi(string(m[i+1])) // at most three digits
		}
	}
	return v, true
}

// Limits of the search for the version text in a driver library. libvulkan_radeon.so has 11 (Mesa 22.3) to 20 MB.
const (
	maxLibrary = 256 << 20
	chunk      = 1 << 20
	overlap    = 64 // longer than any version text, so that one on a chunk border is seen
)

// mesaVersion reads the version out of a Mesa driver's library: its driverInfo is a literal in .rodata.
func mesaVersion(fsys sysroot.FS, library string) backends.Optional[Version] {
	f, err := fsys.Open(library)
	if err != nil {
		return backends.Optional[Version]{}
	}
	defer f.Close() // read only
	buf := make([]byte, chunk+overlap)
	for off := int64(0); off < min(f.Size(), maxLibrary); off += chunk {
		n, err := f.ReadAt(buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			break
		}
		if bytes.Contains(buf[:n], []byte("Mesa ")) {
			if v, ok := ParseVersion(buf[:n]); ok {
				return backends.Some(v)
			}
		}
	}
	return backends.Optional[Version]{}
}
