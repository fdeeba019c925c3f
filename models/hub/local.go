package hub

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hearth/models"
	"hearth/models/gguf"
)

// fetchFile makes an entry of files that stay where they are. Their SHA-256 is not computed: that would read the whole
// model for a number which nobody promised.
func fetchFile(ref Ref) (fetched, error) {
	p, err := absPath(ref.Path)
	if err != nil {
		return fetched{}, &Error{Source: ref.String(), Cause: err}
	}
	parts, err := gguf.Parts(p)
	if err != nil {
		return fetched{}, err
	}
	var files []models.File
	for _, f := range parts {
		st, err := os.Stat(f)
		if err != nil {
			return fetched{}, &Error{Source: ref.String(), Kind: ErrNotFound, Cause: err}
		}
		files = append(files, models.File{Path: f, Size: st.Size()})
	}
	return fetched{files: files, source: "file:" + parts[0], name: stem(p), external: true}, nil
}

// absPath is an absolute path without links, so that a model is the same from wherever it is named.
func absPath(p string) (string, error) {
	if strings.HasPrefix(p, "~/") {
		return "", fmt.Errorf("write %s without the tilde", p)
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil && strings.HasSuffix(real, ".gguf") {
		return real, nil // a link into a content store has a name without meaning; keep the link then
	}
	return abs, nil
}

// samePart says that both paths are parts of one split model.
func samePart(a, b string) bool {
	pa, err := gguf.Parts(a)
	return err == nil && len(pa) > 1 && pa[0] == b
}
