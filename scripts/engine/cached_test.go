package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCached(t *testing.T) {
	dir := t.TempDir()
	sum := strings.Repeat("ab", 32)
	lock := filepath.Join(dir, "engine.lock")
	text := `{"schema":1,"architecture":"amd64","suites":["unstable"],"accept":{},"sets":{"hip":{"note":"n","want":["a"],"packages":[
		{"name":"a","version":"1","filename":"pool/a.deb","size":4,"sha256":"` + sum + `"}]}}}`
	if err := os.WriteFile(lock, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	try := func(sets string) (int, string) {
		var stderr strings.Builder
		code := run(context.Background(), []string{"cached", "-lock", lock, "-cache", dir, "-sets", sets}, nil, &stderr)
		return code, stderr.String()
	}
	if code, said := try("hip"); code != 1 || !strings.Contains(said, "1 of 1 packages of hip") {
		t.Errorf("an empty cache: %d, %q", code, said)
	}
	deb := filepath.Join(dir, "engine", "debs", sum+".deb")
	if err := os.MkdirAll(filepath.Dir(deb), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(deb, []byte("four"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, said := try("hip"); code != 0 || said != "" {
		t.Errorf("a full cache: %d, %q", code, said)
	}
	if code, said := try("hip,rocm"); code != 1 || !strings.Contains(said, `no set "rocm"`) {
		t.Errorf("an unknown set: %d, %q", code, said)
	}
}
