package models

import (
	"fmt"
	"regexp"
	"strings"
)

// NameError says why a model name is refused.
type NameError struct{ Name, Reason string }

// Error quotes the name.
func (e *NameError) Error() string { return fmt.Sprintf("model name %q %s", e.Name, e.Reason) }

// One part of a name starts and ends with a letter or digit, so no part is "." or ".." or hidden.
var namePattern = regexp.MustCompile(`^(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?::[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)

const maxName = 192 // bytes; with the '@' form still a legal file name

// ValidateName accepts "name", "org/name" and either with ":tag"; letters, digits, '.', '_' and '-' within.
func ValidateName(name string) error {
	switch {
	case name == "":
		return &NameError{name, "is empty"}
	case len(name) > maxName:
		return &NameError{name, fmt.Sprintf("is longer than %d bytes", maxName)}
	case !namePattern.MatchString(name):
		return &NameError{name, "must look like name, org/name or org/name:tag, of letters, digits, '.', '_' and '-'"}
	}
	return nil
}

// CleanName turns any text, such as a file name, into a legal one-part name; "model" when nothing is left.
func CleanName(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r >= 'A' && r <= 'Z', r == '.', r == '_':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	out := strings.Trim(b.String(), "._-")
	if len(out) > 96 {
		out = strings.Trim(out[:96], "._-")
	}
	if out == "" {
		return "model"
	}
	return out
}

// folder is the model's folder below the root. '@' cannot occur in a name, so the mapping is one to one.
func folder(name string) string { return strings.ReplaceAll(name, ":", "@") }
