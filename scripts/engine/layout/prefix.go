package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// CopyPrefix fills the bundle from an installation prefix of a llama.cpp built with GGML_BACKEND_DL and
// GGML_BACKEND_DIR=PREFIX/backends, and takes the versions from its pkg-config files.
func (b *Builder) CopyPrefix(prefix string) error {
	for _, c := range []struct{ pattern, to string }{
		{"lib/*.so*", "lib"}, {"include/*.h", "include"}, {"backends/libggml-*.so", "backends"},
	} {
		found, err := filepath.Glob(filepath.Join(prefix, c.pattern))
		if err != nil {
			return fmt.Errorf("copy %s: %w", c.pattern, err)
		}
		if len(found) == 0 {
			return fmt.Errorf("no %s in %s", c.pattern, prefix)
		}
		for _, file := range found {
			if err := copyEntry(file, b.Path(c.to, filepath.Base(file))); err != nil {
				return err
			}
		}
	}
	for name, version := range map[string]*string{"llama": &b.Manifest.LlamaVersion, "ggml": &b.Manifest.GGMLVersion} {
		v, err := pcVersion(filepath.Join(prefix, "lib/pkgconfig", name+".pc"), filepath.Join(prefix, "share/pkgconfig", name+".pc"))
		if err != nil {
			return fmt.Errorf("version of %s: %w", name, err)
		}
		*version = v
	}
	b.Manifest.LibraryPath = []string{"lib"}
	return nil
}

// pcVersion reads the Version field of the first pkg-config file there is.
func pcVersion(paths ...string) (string, error) {
	var first error
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		for line := range strings.Lines(string(data)) {
			if v, ok := strings.CutPrefix(line, "Version:"); ok {
				return strings.TrimSpace(v), nil
			}
		}
		return "", fmt.Errorf("%s has no Version", path)
	}
	return "", first
}
