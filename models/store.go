package models

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// Store is a folder of models. Its zero value is not usable; see Open.
type Store struct {
	root string
	now  func() time.Time
}

// Open uses the folder root, which is created on the first change. now stamps new entries.
func Open(root string, now func() time.Time) (*Store, error) {
	if root == "" {
		return nil, errors.New("open model store: the folder is not set")
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open model store: %w", err)
	}
	return &Store{root: abs, now: now}, nil
}

// Root is the store's folder, absolute.
func (s *Store) Root() string { return s.root }

// Staging is a folder on the store's file system for files that are still being fetched. It is created.
func (s *Store) Staging() (string, error) {
	d := filepath.Join(s.root, ".staging")
	if err := os.MkdirAll(d, 0o755); err != nil {
		return "", fmt.Errorf("create staging folder: %w", err)
	}
	return d, nil
}

// Problem is a manifest that cannot be used.
type Problem struct {
	Path string
	Err  error
}

// List returns all models by name. Manifests that cannot be read are left out and reported beside the list; err is for
// a store that cannot be read at all.
func (s *Store) List() (entries []Entry, problems []Problem, err error) {
	err = filepath.WalkDir(s.root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // no store yet, or a model that was removed meanwhile
		case err != nil && p == s.root:
			return err
		case err != nil:
			problems = append(problems, Problem{p, err})
			return nil
		case d.IsDir() && p != s.root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.Name() != manifestName:
			return nil
		}
		e, err := readManifest(filepath.Dir(p))
		if err == nil && s.dir(e.Name) != filepath.Dir(p) {
			err = fmt.Errorf("manifest of %q lies in the wrong folder", e.Name)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			problems = append(problems, Problem{p, err})
		default:
			entries = append(entries, e)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list models: %w", err)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, problems, nil
}

// Get returns the model of exactly this name.
func (s *Store) Get(name string) (Entry, error) {
	if err := ValidateName(name); err != nil {
		return Entry{}, err
	}
	e, err := readManifest(s.dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return Entry{}, &NotFoundError{Name: name}
	}
	return e, err
}

func (s *Store) dir(name string) string {
	return filepath.Join(s.root, filepath.FromSlash(folder(name)))
}

// locked runs fn while no other process changes the store.
func (s *Store) locked(ctx context.Context, fn func() error) error {
	if err := os.MkdirAll(s.root, 0o755); err != nil {
		return fmt.Errorf("create model store: %w", err)
	}
	l := flock.New(filepath.Join(s.root, ".lock"))
	ok, err := l.TryLockContext(ctx, 50*time.Millisecond)
	if err != nil || !ok {
		return fmt.Errorf("lock model store: %w", err)
	}
	defer l.Unlock()
	return fn()
}

// Remove deletes the model of exactly this name, and its files unless they are external. It returns the bytes freed on
// disk; a file that has other hard links frees none.
func (s *Store) Remove(ctx context.Context, name string) (freed int64, err error) {
	err = s.locked(ctx, func() error {
		e, err := s.Get(name)
		if err != nil {
			return err
		}
		// The manifest goes first: a crash leaves files without a model, not a model without files.
		dir := s.dir(name)
		if err := os.Remove(filepath.Join(dir, manifestName)); err != nil {
			return fmt.Errorf("remove model: %w", err)
		}
		if !e.External {
			for _, f := range e.Files {
				n := onlyLink(f.Path)
				if err := os.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("remove model: %w", err)
				}
				freed += n
			}
		}
		s.prune(dir)
		return nil
	})
	return freed, err
}

// prune removes dir and its parents below the root as long as they are empty.
func (s *Store) prune(dir string) {
	for dir != s.root && strings.HasPrefix(dir, s.root+string(filepath.Separator)) {
		if os.Remove(dir) != nil { // not empty
			return
		}
		dir = filepath.Dir(dir)
	}
}

// Copy gives the model src a second, independent name. Files are hard links where the file system has them, so the copy
// takes no space and either name can be removed.
func (s *Store) Copy(ctx context.Context, src, dst string) (Entry, error) {
	var out Entry
	err := s.locked(ctx, func() error {
		e, err := s.Get(src)
		if err != nil {
			return err
		}
		if err := s.free(dst); err != nil {
			return err
		}
		e.Name, e.Aliases, e.Added = dst, nil, s.now().UTC()
		out, err = s.place(e, false)
		return err
	})
	return out, err
}

// free says whether a new model may take the name.
func (s *Store) free(name string) error {
	if err := ValidateName(name); err != nil {
		return err
	}
	all, _, err := s.List()
	if err != nil {
		return err
	}
	for _, e := range all {
		// Names that differ only in case would be one folder on some file systems and are one model to Resolve.
		if strings.EqualFold(e.Name, name) || slices.ContainsFunc(e.Aliases, func(a string) bool { return strings.EqualFold(a, name) }) {
			return &ExistsError{Name: name, By: e.Name}
		}
	}
	return nil
}
