package models

import (
	"errors"
	"slices"
	"strings"
)

// Resolve finds the model that a client or a person means by name: its exact name, one of its aliases, either of them in
// another case or with Ollama's ":latest", or "org/repo" without the tag when only one tag of it is here.
// The error is a *NotFoundError with close names, or a store failure.
func (s *Store) Resolve(name string) (Entry, error) {
	e, err := s.Get(name)
	if err == nil {
		return e, nil
	}
	if _, bad := errors.AsType[*NameError](err); !bad && !errors.Is(err, ErrNotFound) {
		return Entry{}, err // it is here, and broken
	}
	all, _, err := s.List()
	if err != nil {
		return Entry{}, err
	}
	if e, ok := match(all, name); ok {
		return e, nil
	}
	return Entry{}, &NotFoundError{Name: name, Close: closest(all, name)}
}

// match tries the looser readings of name, strictest first.
func match(all []Entry, name string) (Entry, bool) {
	short := strings.TrimSuffix(name, ":latest")
	tests := []func(e Entry) bool{
		func(e Entry) bool { return slices.Contains(e.Aliases, name) },
		func(e Entry) bool { return strings.EqualFold(e.Name, name) || containsFold(e.Aliases, name) },
		func(e Entry) bool { return strings.EqualFold(e.Name, short) || containsFold(e.Aliases, short) },
		func(e Entry) bool {
			base, _, tagged := strings.Cut(e.Name, ":")
			return tagged && strings.EqualFold(base, short)
		},
	}
	for _, t := range tests {
		var found []Entry
		for _, e := range all {
			if t(e) {
				found = append(found, e)
			}
		}
		if len(found) == 1 {
			return found[0], true
		}
	}
	return Entry{}, false
}

func containsFold(list []string, s string) bool {
	return slices.ContainsFunc(list, func(x string) bool { return strings.EqualFold(x, s) })
}

// closest lists up to three names which contain the wanted one, are contained in it, or are a few edits away.
func closest(all []Entry, name string) []string {
	type scored struct {
		name string
		d    int
	}
	want := strings.ToLower(name)
	var out []scored
	for _, e := range all {
		best := -1
		for _, n := range append([]string{e.Name}, e.Aliases...) {
			n = strings.ToLower(n)
			d := distance(want, n)
			if want != "" && (strings.Contains(n, want) || strings.Contains(want, n)) {
				d = min(d, 2)
			}
			if d <= max(2, len(want)/4) && (best < 0 || d < best) {
				best = d
			}
		}
		if best >= 0 {
			out = append(out, scored{e.Name, best})
		}
	}
	slices.SortStableFunc(out, func(a, b scored) int { return a.d - b.d })
	names := make([]string, 0, 3)
	for _, s := range out[:min(len(out), 3)] {
		names = append(names, s.name)
	}
	return names
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, diag+1)
		}
	}
	return row[len(b)]
}
