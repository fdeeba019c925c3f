package models

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"hearth/models/gguf"
)

// Addition describes a model to add.
type Addition struct {
	Name    string
	Aliases []string // those already taken by another model are dropped
	Source  string
	// External leaves the files where they are.
	External bool
	// Keep links or copies the files into the store instead of moving them (a download cache keeps its own).
	Keep bool
	// Replace lets the model take the place of one with the same name.
	Replace bool
	// Files are absolute paths, the first part first.
	Files []File
}

// Add checks the header of the files and makes them a model of the store.
func (s *Store) Add(ctx context.Context, a Addition) (Entry, error) {
	if err := ValidateName(a.Name); err != nil {
		return Entry{}, err
	}
	if len(a.Files) == 0 {
		return Entry{}, errors.New("add model: no files")
	}
	m, err := gguf.Open(a.Files[0].Path)
	if err != nil {
		return Entry{}, fmt.Errorf("add model: %w", err)
	}
	sum, err := m.Summarize()
	if err != nil {
		return Entry{}, fmt.Errorf("add model: %w", err)
	}
	if len(m.Parts) != len(a.Files) {
		return Entry{}, fmt.Errorf("add model: %s has %d parts, %d were given", a.Files[0].Path, len(m.Parts), len(a.Files))
	}
	e := Entry{Name: a.Name, Source: a.Source, External: a.External, Files: a.Files, Summary: sum, Added: s.now().UTC()}
	var out Entry
	err = s.locked(ctx, func() error {
		if old, err := s.Get(a.Name); err == nil && a.Replace {
			e.Aliases = old.Aliases
			if err := s.displace(old, e); err != nil {
				return err
			}
		} else if err := s.free(a.Name); err != nil {
			return err
		}
		for _, alias := range a.Aliases {
			if s.free(alias) == nil && alias != a.Name {
				e.Aliases = append(e.Aliases, alias)
			}
		}
		out, err = s.place(e, !a.Keep)
		return err
	})
	return out, err
}

// displace makes room for a new version of a model: files that the new one does not overwrite by rename go away.
func (s *Store) displace(old, with Entry) error {
	dir := s.dir(old.Name)
	if err := os.Remove(filepath.Join(dir, manifestName)); err != nil {
		return fmt.Errorf("replace model: %w", err)
	}
	if old.External {
		return nil
	}
	for _, f := range old.Files {
		for _, n := range with.Files {
			if f.Path == n.Path {
				return fmt.Errorf("replace model: %s is both old and new", f.Path)
			}
		}
		if err := os.Remove(f.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("replace model: %w", err)
		}
	}
	return nil
}

// place brings the files of e into its folder, by rename when move is set, and writes the manifest last.
func (s *Store) place(e Entry, move bool) (Entry, error) {
	dir := s.dir(e.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Entry{}, fmt.Errorf("add model: %w", err)
	}
	files := make([]File, len(e.Files))
	for i, f := range e.Files {
		if files[i] = f; e.External {
			continue
		}
		files[i].Path = filepath.Join(dir, filepath.Base(f.Path))
		if err := bring(f.Path, files[i].Path, move); err != nil {
			for _, done := range files[:i] {
				os.Remove(done.Path)
			}
			s.prune(dir)
			return Entry{}, fmt.Errorf("add model: %w", err)
		}
	}
	e.Files = files
	if err := writeManifest(dir, e); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// bring moves, links or copies a file to dst, which must not exist.
func bring(src, dst string, move bool) error {
	if move {
		if err := os.Rename(src, dst); !errors.Is(err, syscall.EXDEV) {
			return err
		}
	} else if err := os.Link(src, dst); err == nil {
		return nil
	}
	// Another file system, or one without hard links.
	if err := copyFile(src, dst); err != nil {
		return err
	}
	if move {
		return os.Remove(src)
	}
	return nil
}

// copyFile writes dst through a neighbour, so that dst is either whole or absent.
func copyFile(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := dst + ".tmp"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(tmp, dst)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}

// onlyLink is the size of a file that no other hard link keeps alive, else 0.
func onlyLink(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Nlink > 1 {
		return 0
	}
	return st.Size()
}
