package debian

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// LockSchema is the version of engine.lock that this package reads.
const LockSchema = 1

// Errors of the lock check.
var (
	// ErrLock is wrapped by errors about the content of engine.lock.
	ErrLock = errors.New("invalid engine.lock")
	// ErrRefused says that the archive only has a version outside the lock's acceptance rules.
	ErrRefused = errors.New("the archive has moved on to a version that engine.lock does not accept")
)

// Package is one pinned .deb.
type Package struct {
	Name     string `json:"name"`
	Version  string `json:"version"`  // Debian version, epoch included
	Filename string `json:"filename"` // path below the mirror, "pool/main/..."
	Size     int64  `json:"size"`     // bytes
	SHA256   string `json:"sha256"`   // lower-case hex
}

// Set is a group of packages that is fetched together: the closure of Want as apt resolved it.
type Set struct {
	Note string   `json:"note"`
	Want []string `json:"want"`
	// Release is the apt target release when it is not the first suite.
	Release string `json:"release,omitempty"`
	// Only, if not empty, names the packages of the closure to keep; the others come with another set.
	Only     []string  `json:"only,omitempty"`
	Packages []Package `json:"packages"`
}

// Lock is the content of engine.lock.
type Lock struct {
	Schema       int      `json:"schema"`
	Architecture string   `json:"architecture"` // dpkg's word for it: "amd64"
	Suites       []string `json:"suites"`       // of the Debian archive; the first is the one apt resolves against
	// Accept holds, for packages whose version matters to hearth, patterns of upstream versions ("0.7.*"). A package
	// that is not named here may move freely: the archive's own dependencies keep it consistent.
	Accept map[string]string `json:"accept"`
	Sets   map[string]Set    `json:"sets"`
}

// LoadLock reads and validates engine.lock.
func LoadLock(path string) (Lock, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Lock{}, fmt.Errorf("read engine lock: %w", err)
	}
	var l Lock
	if err := json.Unmarshal(data, &l); err != nil {
		return Lock{}, fmt.Errorf("%w: %s: %w", ErrLock, path, err)
	}
	if err := l.validate(); err != nil {
		return Lock{}, fmt.Errorf("%w: %s: %w", ErrLock, path, err)
	}
	return l, nil
}

func (l Lock) validate() error {
	if l.Schema != LockSchema {
		return fmt.Errorf("schema %d, expected %d", l.Schema, LockSchema)
	}
	if l.Architecture == "" || len(l.Suites) == 0 || len(l.Sets) == 0 {
		return errors.New("architecture, suites and sets must not be empty")
	}
	for name, set := range l.Sets {
		if len(set.Want) == 0 {
			return fmt.Errorf("set %s wants nothing", name)
		}
		for _, p := range set.Packages {
			if !isSHA256(p.SHA256) || p.Name == "" || p.Version == "" || p.Size <= 0 {
				return fmt.Errorf("set %s: package %q lacks a name, version, size or SHA-256", name, p.Name)
			}
			// The file name becomes part of a URL and of a path in the cache.
			if !strings.HasPrefix(p.Filename, "pool/") || strings.Contains(p.Filename, "..") {
				return fmt.Errorf("set %s: package %s: file name %q is not below pool/", name, p.Name, p.Filename)
			}
		}
	}
	return nil
}

func isSHA256(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// Save writes the lock to path.
func (l Lock) Save(path string) error {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("encode engine lock: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write engine lock: %w", err)
	}
	return nil
}

// Pick returns the packages of several sets, each name once. Sets that disagree about a version are an error: the
// lock was written by hand or in two pieces.
func (l Lock) Pick(sets ...string) ([]Package, error) {
	var all []Package
	seen := map[string]string{}
	for _, name := range sets {
		set, ok := l.Sets[name]
		if !ok {
			return nil, fmt.Errorf("%w: no set %q", ErrLock, name)
		}
		for _, p := range set.Packages {
			version, dup := seen[p.Name]
			if dup && version != p.Version {
				return nil, fmt.Errorf("%w: %s is both %s and %s; run make engine-relock", ErrLock, p.Name, version, p.Version)
			}
			if !dup {
				seen[p.Name] = p.Version
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// Upstream cuts a Debian version down to the upstream one: "1:0.7.0+dfsg-2" is 0.7.0.
func Upstream(version string) string {
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	if i := strings.LastIndexByte(version, '-'); i >= 0 {
		version = version[:i]
	}
	version, _, _ = strings.Cut(version, "+")
	return version
}

// Accepts reports whether the lock accepts this version of the package. A pattern is an upstream version whose last
// part may be a star.
func (l Lock) Accepts(name, version string) bool {
	pattern, ruled := l.Accept[name]
	if !ruled {
		return true
	}
	upstream := Upstream(version)
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(upstream, prefix)
	}
	return upstream == pattern
}

// Move is one difference between the lock and the archive.
type Move struct {
	Name     string
	From, To string // Debian versions; empty From: new in the closure; empty To: gone from it
	Accepted bool
}

// String is the line that people see.
func (m Move) String() string {
	verdict := "accepted"
	if !m.Accepted {
		verdict = "NOT accepted"
	}
	switch {
	case m.From == "":
		return fmt.Sprintf("%s %s is new (%s)", m.Name, m.To, verdict)
	case m.To == "":
		return fmt.Sprintf("%s %s is no longer needed", m.Name, m.From)
	case m.From == m.To:
		return fmt.Sprintf("%s %s was rebuilt under the same version (%s)", m.Name, m.From, verdict)
	}
	return fmt.Sprintf("%s %s -> %s (%s)", m.Name, m.From, m.To, verdict)
}

// Compare lists how the archive's packages differ from the locked ones, sorted by name. It returns ErrRefused,
// wrapped with the package and the rule, when one of them is not acceptable; the moves are returned all the same.
func (l Lock) Compare(locked, archive []Package) ([]Move, error) {
	old := map[string]Package{}
	for _, p := range locked {
		old[p.Name] = p
	}
	var moves []Move
	var refused []string
	for _, now := range archive {
		was, known := old[now.Name]
		delete(old, now.Name)
		if known && was.SHA256 == now.SHA256 {
			continue
		}
		m := Move{Name: now.Name, From: was.Version, To: now.Version, Accepted: l.Accepts(now.Name, now.Version)}
		if !m.Accepted {
			refused = append(refused, fmt.Sprintf("%s %s (accepted: %s)", m.Name, m.To, l.Accept[m.Name]))
		}
		moves = append(moves, m)
	}
	for _, gone := range old {
		moves = append(moves, Move{Name: gone.Name, From: gone.Version, Accepted: true})
	}
	slices.SortFunc(moves, func(a, b Move) int { return strings.Compare(a.Name, b.Name) })
	if len(refused) > 0 {
		slices.Sort(refused)
		return moves, fmt.Errorf("%w: %s", ErrRefused, strings.Join(refused, ", "))
	}
	return moves, nil
}
