package debian

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoMirror says that no Debian archive stands in the machine's apt configuration.
var ErrNoMirror = errors.New("no Debian archive found in the apt configuration; set HEARTH_DEBIAN_MIRROR to the address of one")

// Mirror is a Debian archive that the machine already uses, or one given by HEARTH_DEBIAN_MIRROR.
type Mirror struct {
	URI     string // without a slash at the end
	Keyring string // file that apt checks signatures with
}

// source is one entry of the apt configuration.
type source struct {
	types, uris, suites, components []string
	signedBy                        string
}

// defaultKeyring is where Debian and Ubuntu's debian-archive-keyring package puts its keys.
const defaultKeyring = "usr/share/keyrings/debian-archive-keyring.gpg"

// FindMirror looks below root ("/" outside tests) for the Debian archive that the machine's own packages come from.
// override, when not empty, takes its place.
func FindMirror(root, override string) (Mirror, error) {
	keyring := filepath.Join(root, defaultKeyring)
	if _, err := os.Stat(keyring); err != nil {
		return Mirror{}, fmt.Errorf("the Debian archive's keys are needed (package debian-archive-keyring): %w", err)
	}
	if override != "" {
		return Mirror{URI: strings.TrimSuffix(override, "/"), Keyring: keyring}, nil
	}
	sources, err := readSources(filepath.Join(root, "etc/apt"))
	if err != nil {
		return Mirror{}, err
	}
	id, codename := osRelease(filepath.Join(root, "etc/os-release"))
	best, rank := Mirror{}, 0
	for _, s := range sources {
		own := id == "debian" && codename != "" && slices.Contains(s.suites, codename)
		for _, uri := range s.uris {
			uri = strings.TrimSuffix(uri, "/")
			if r := s.rank(uri, own); r > rank {
				best, rank = Mirror{URI: uri, Keyring: keyring}, r
				if strings.HasPrefix(s.signedBy, "/") {
					best.Keyring = s.signedBy
				}
			}
		}
	}
	if rank == 0 {
		return Mirror{}, ErrNoMirror
	}
	return best, nil
}

// rank says how much an entry looks like Debian's main archive; 0 is not at all. own tells that it carries the
// machine's Debian release, as the archive does (deb-security has NAME-security) and as third parties may.
func (s source) rank(uri string, own bool) int {
	named := strings.HasSuffix(uri, "/debian") // the customary last path element
	switch {
	case !slices.Contains(s.types, "deb") || !slices.Contains(s.components, "main"):
		return 0
	case own && strings.Contains(s.signedBy, "debian-archive"):
		return 4
	case own && named:
		return 3
	case named:
		return 2
	case own:
		return 1
	}
	return 0
}

func osRelease(path string) (id, codename string) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", ""
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			codename = value
		}
	}
	return id, codename
}

// readSources reads sources.list and sources.list.d/*.{list,sources}.
func readSources(dir string) ([]source, error) {
	paths := []string{filepath.Join(dir, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		found, err := filepath.Glob(filepath.Join(dir, "sources.list.d", pattern))
		if err != nil {
			return nil, fmt.Errorf("list apt sources: %w", err)
		}
		paths = append(paths, found...)
	}
	var all []source
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read apt sources: %w", err)
		}
		if strings.HasSuffix(path, ".sources") {
			all = append(all, parseDeb822(string(data))...)
		} else {
			all = append(all, parseOneLine(string(data))...)
		}
	}
	return all, nil
}

// parseOneLine reads the old format: deb [signed-by=KEY] URI SUITE COMPONENT...
func parseOneLine(text string) []source {
	var list []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		var s source
		head, rest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		s.types = []string{head}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			var options string
			if options, rest, ok = strings.Cut(rest[1:], "]"); !ok {
				continue
			}
			for _, o := range strings.Fields(options) {
				if key, found := strings.CutPrefix(o, "signed-by="); found {
					s.signedBy = key
				}
			}
		}
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			continue
		}
		s.uris, s.suites, s.components = fields[:1], fields[1:2], fields[2:]
		list = append(list, s)
	}
	return list
}

// parseDeb822 reads the stanza format. Continuation lines (an inline key) are skipped: only a key file can be reused.
func parseDeb822(text string) []source {
	var list []source
	for _, stanza := range strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n") {
		s := source{}
		disabled := false
		scan := bufio.NewScanner(strings.NewReader(stanza))
		for scan.Scan() {
			line := scan.Text()
			if strings.HasPrefix(line, "#") || strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") {
				continue
			}
			key, value, _ := strings.Cut(line, ":")
			words := strings.Fields(value)
			switch strings.ToLower(key) {
			case "types":
				s.types = words
			case "uris":
				s.uris = words
			case "suites":
				s.suites = words
			case "components":
				s.components = words
			case "signed-by":
				s.signedBy = strings.TrimSpace(value)
			case "enabled":
				disabled = strings.TrimSpace(value) == "no"
			}
		}
		if !disabled && len(s.uris) > 0 {
			list = append(list, s)
		}
	}
	return list
}
