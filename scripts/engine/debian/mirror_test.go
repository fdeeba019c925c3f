package debian

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// machine writes files below a temporary root.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFindMirror(t *testing.T) {
	const keys = "usr/share/keyrings/debian-archive-keyring.gpg"
	debian12 := "ID=debian\nVERSION_CODENAME=bookworm\n"
	for name, c := range map[string]struct {
		files    map[string]string
		override string
		want     string
		key      string // empty: the default one
		err      error
	}{
		"stanzas, security first": {files: map[string]string{keys: "", "etc/os-release": debian12,
			"etc/apt/sources.list.d/debian.sources": "Types: deb\nURIs: http://a.test/debian-security\nSuites: bookworm-security\nComponents: main\n\n" +
				"# a comment\nTypes: deb\nURIs: http://a.test/debian/\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /keys/own.gpg\n"},
			want: "http://a.test/debian", key: "/keys/own.gpg"},
		"one line, mirror with an odd path": {files: map[string]string{keys: "", "etc/os-release": debian12,
			"etc/apt/sources.list": "deb [arch=amd64 signed-by=/k.gpg] https://b.test/mirrors/deb bookworm main contrib # x\n"},
			want: "https://b.test/mirrors/deb", key: "/k.gpg"},
		"source packages and third parties are passed over": {files: map[string]string{keys: "", "etc/os-release": debian12,
			"etc/apt/sources.list":             "deb-src http://c.test/debian bookworm main\ndeb http://third.test/apt bookworm stable\n",
			"etc/apt/sources.list.d/main.list": "deb http://c.test/debian bookworm main\n"},
			want: "http://c.test/debian"},
		"third party with the same release and component, read first": {files: map[string]string{keys: "", "etc/os-release": debian12,
			"etc/apt/sources.list.d/a.list": "deb [signed-by=/third.gpg] https://third.test/apt bookworm main\n",
			"etc/apt/sources.list.d/debian.sources": "Types: deb\nURIs: http://g.test/debian\nSuites: bookworm\nComponents: main\n" +
				"Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"},
			want: "http://g.test/debian", key: "/usr/share/keyrings/debian-archive-keyring.gpg"},
		"disabled stanza": {files: map[string]string{keys: "", "etc/os-release": debian12,
			"etc/apt/sources.list.d/d.sources": "Types: deb\nEnabled: no\nURIs: http://d.test/debian\nSuites: bookworm\nComponents: main\n"},
			err: ErrNoMirror},
		"another distribution": {files: map[string]string{keys: "", "etc/os-release": "ID=ubuntu\nVERSION_CODENAME=noble\n",
			"etc/apt/sources.list": "deb http://e.test/ubuntu noble main universe\n"}, err: ErrNoMirror},
		"another distribution, told where": {files: map[string]string{keys: "", "etc/os-release": "ID=ubuntu\n"},
			override: "http://f.test/debian/", want: "http://f.test/debian"},
		"no keys": {files: map[string]string{"etc/os-release": debian12}, override: "http://f.test/debian", err: fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			root := machine(t, c.files)
			m, err := FindMirror(root, c.override)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if c.key == "" && c.err == nil {
				c.key = filepath.Join(root, keys)
			}
			if m.URI != c.want || m.Keyring != c.key {
				t.Errorf("mirror %+v, want %s with %s", m, c.want, c.key)
			}
		})
	}
}
