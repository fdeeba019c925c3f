package debian

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUpstream(t *testing.T) {
	for version, want := range map[string]string{
		"1:0.7.0+dfsg-2": "0.7.0", "0.27.0-1": "0.27.0", "1.2.3": "1.2.3", "2:1.8.14-1": "1.8.14",
		"1:1.3.dfsg+really1.3.2-4": "1.3.dfsg", "7.2.4+dfsg-1~exp1": "7.2.4",
	} {
		if got := Upstream(version); got != want {
			t.Errorf("Upstream(%q) = %q, want %q", version, got, want)
		}
	}
}

func TestAccepts(t *testing.T) {
	l := Lock{Accept: map[string]string{"libllama0": "0.7.*", "libggml0": "0.27.0"}}
	for _, c := range []struct {
		name, version string
		want          bool
	}{
		{"libllama0", "1:0.7.0+dfsg-2", true},
		{"libllama0", "1:0.7.12+dfsg-1", true},
		{"libllama0", "1:0.70.0+dfsg-1", false},
		{"libllama0", "1:0.8.0+dfsg-1", false},
		{"libggml0", "0.27.0-3", true},
		{"libggml0", "0.27.1-1", false},
		{"libc6", "9.99-1", true}, // no rule: free to move
	} {
		if got := l.Accepts(c.name, c.version); got != c.want {
			t.Errorf("Accepts(%s, %s) = %t", c.name, c.version, got)
		}
	}
}

func TestCompare(t *testing.T) {
	l := Lock{Accept: map[string]string{"libllama0": "0.7.*"}}
	locked := []Package{{Name: "libllama0", Version: "1:0.7.0-1", SHA256: "a"}, {Name: "libc6", Version: "2.43-7", SHA256: "b"}, {Name: "libold", Version: "1", SHA256: "c"}}
	same, err := l.Compare(locked, locked)
	if err != nil || len(same) != 0 {
		t.Errorf("the same packages: %v, %v", same, err)
	}
	moves, err := l.Compare(locked, []Package{{Name: "libllama0", Version: "1:0.7.1-1", SHA256: "d"}, {Name: "libc6", Version: "2.43-7", SHA256: "e"}, {Name: "libnew", Version: "2", SHA256: "f"}})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, m := range moves {
		lines = append(lines, m.String())
	}
	want := []string{
		"libc6 2.43-7 was rebuilt under the same version (accepted)",
		"libllama0 1:0.7.0-1 -> 1:0.7.1-1 (accepted)",
		"libnew 2 is new (accepted)",
		"libold 1 is no longer needed",
	}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("moves:\n%s", got)
	}
	_, err = l.Compare(locked, []Package{{Name: "libllama0", Version: "1:0.8.0-1", SHA256: "d"}})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "libllama0 1:0.8.0-1 (accepted: 0.7.*)") {
		t.Errorf("error %v", err)
	}
}

func TestLoadLockRefuses(t *testing.T) {
	sum := strings.Repeat("0", 64)
	file := func(schema, filename, sha string) string {
		return `{"schema":` + schema + `,"architecture":"amd64","suites":["s"],"sets":{"base":{"want":["x"],"packages":[
			{"name":"x","version":"1","filename":"` + filename + `","size":3,"sha256":"` + sha + `"}]}}}`
	}
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"good":             {file("1", "pool/main/x.deb", sum), true},
		"other schema":     {file("2", "pool/main/x.deb", sum), false},
		"leaves the pool":  {file("1", "pool/../../x.deb", sum), false},
		"absolute":         {file("1", "/etc/passwd", sum), false},
		"short hash":       {file("1", "pool/main/x.deb", "12"), false},
		"hash with a path": {file("1", "pool/main/x.deb", strings.Repeat("../", 21)+"x"), false},
		"not JSON":         {"x", false},
		"nothing wanted":   {`{"schema":1,"architecture":"amd64","suites":["s"],"sets":{"base":{}}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "engine.lock")
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := LoadLock(path)
			if c.ok != (err == nil) || err != nil && !errors.Is(err, ErrLock) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestCommittedLock holds the rules that the file in the repository must keep.
func TestCommittedLock(t *testing.T) {
	l, err := LoadLock("../../../engine.lock")
	if err != nil {
		t.Fatal(err)
	}
	all, err := l.Pick("base", "hip", "mesa")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, p := range all {
		have[p.Name] = p.Version
		if !l.Accepts(p.Name, p.Version) {
			t.Errorf("%s %s is locked and not accepted", p.Name, p.Version)
		}
	}
	for _, name := range []string{"libllama0", "libggml0", "libc6", "libstdc++6", "libvulkan1", "libggml0-backend-vulkan", "libggml0-backend-hip", "librocblas4", "mesa-vulkan-drivers"} {
		if have[name] == "" {
			t.Errorf("%s is not locked", name)
		}
	}
	data, err := os.ReadFile("../../../engine.lock")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "://") {
		t.Error("engine.lock holds an address")
	}
}
