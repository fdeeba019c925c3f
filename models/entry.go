package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"hearth/models/gguf"
)

// ErrNotFound is wrapped by errors about a model that the store does not have.
var ErrNotFound = errors.New("no such model")

// NotFoundError names the model that is missing and those whose names are close.
type NotFoundError struct {
	Name  string
	Close []string // best first, may be empty
}

// Error says what is missing.
func (e *NotFoundError) Error() string { return fmt.Sprintf("model %q is not here", e.Name) }

// Unwrap returns ErrNotFound.
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// ExistsError says that a name or alias is taken.
type ExistsError struct{ Name, By string }

// Error names both.
func (e *ExistsError) Error() string {
	if e.By == e.Name {
		return fmt.Sprintf("model %q exists already", e.Name)
	}
	return fmt.Sprintf("the name %q is taken by model %q", e.Name, e.By)
}

// File is one file of a model.
type File struct {
	// Path is absolute in memory; in the manifest of a stored model it is relative to the model's folder.
	Path   string `json:"path"`
	Size   int64  `json:"size"`             // bytes
	SHA256 string `json:"sha256,omitempty"` // lower-case hex; empty when it was never computed (external files)
}

// Entry is one model of the store.
type Entry struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	// Source is where the files came from, in the form that `hearth pull` takes.
	Source string `json:"source"`
	// External models were added by path; their files are not the store's to delete.
	External bool `json:"external,omitempty"`
	// Files lists the parts in order; the first is the one to load.
	Files []File    `json:"files"`
	Added time.Time `json:"added"`
	// Summary was read from the file when the model was added.
	Summary gguf.Summary `json:"summary"`
}

// Path is the file to load: the first part.
func (e *Entry) Path() string { return e.Files[0].Path }

// Size is the sum over all files, bytes.
func (e *Entry) Size() int64 {
	var n int64
	for _, f := range e.Files {
		n += f.Size
	}
	return n
}

// ID is a short digest of the weights, empty when unknown.
func (e *Entry) ID() string {
	if d := e.Files[0].SHA256; len(d) >= 12 {
		return d[:12]
	}
	return ""
}

// manifest is the file format; Schema lets a later version tell its own from ours.
type manifest struct {
	Schema int `json:"schema"`
	Entry
}

const (
	manifestName   = "hearth.json"
	manifestSchema = 1
	maxManifest    = 1 << 20 // bytes; ours have about 1 kB
)

// readManifest reads the manifest of the model in dir and makes its paths absolute.
func readManifest(dir string) (Entry, error) {
	p := filepath.Join(dir, manifestName)
	st, err := os.Stat(p)
	if err != nil {
		return Entry{}, fmt.Errorf("read manifest: %w", err)
	}
	if st.Size() > maxManifest {
		return Entry{}, fmt.Errorf("read manifest: %s has %d bytes", p, st.Size())
	}
	b, err := os.ReadFile(p)
	if err != nil {
		return Entry{}, fmt.Errorf("read manifest: %w", err)
	}
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return Entry{}, fmt.Errorf("read manifest %s: %w", p, err)
	}
	switch {
	case m.Schema != manifestSchema:
		return Entry{}, fmt.Errorf("read manifest %s: schema %d is not %d", p, m.Schema, manifestSchema)
	case len(m.Files) == 0:
		return Entry{}, fmt.Errorf("read manifest %s: lists no files", p)
	}
	if err := ValidateName(m.Name); err != nil {
		return Entry{}, fmt.Errorf("read manifest %s: %w", p, err)
	}
	for i, f := range m.Files {
		if filepath.IsAbs(f.Path) != m.External || !m.External && !filepath.IsLocal(f.Path) {
			return Entry{}, fmt.Errorf("read manifest %s: file %q is outside the model's folder", p, f.Path)
		}
		if !m.External {
			m.Files[i].Path = filepath.Join(dir, f.Path)
		}
	}
	return m.Entry, nil
}

// writeManifest replaces the manifest in dir by rename.
func writeManifest(dir string, e Entry) error {
	m := manifest{Schema: manifestSchema, Entry: e}
	if !e.External {
		m.Files = make([]File, len(e.Files))
		for i, f := range e.Files {
			rel, err := filepath.Rel(dir, f.Path)
			if err != nil {
				return fmt.Errorf("write manifest: %w", err)
			}
			f.Path = rel
			m.Files[i] = f
		}
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(dir, manifestName), append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}
