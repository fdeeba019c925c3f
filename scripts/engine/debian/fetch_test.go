package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// archive is a fake Debian archive: a pool of files, and what apt would answer about it. The programs in its Tools are
// shell scripts that read these answers, so that the fetcher runs real processes.
type archive struct {
	t    *testing.T
	dir  string
	said []string // what the fetcher reported
}

func newArchive(t *testing.T) *archive {
	t.Helper()
	a := &archive{t: t, dir: t.TempDir()}
	for _, d := range []string{"pool", "tools"} {
		if err := os.Mkdir(filepath.Join(a.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a.script("apt-config", `echo 'Acquire::Retries "3";'`)
	a.script("dpkg", "echo amd64")
	a.script("apt-get", `echo "$*" >>"`+a.dir+`/log"; case "$*" in *update*) exit 0;; *) cat "`+a.dir+`/simulation";; esac`)
	a.script("apt-cache", `cat "`+a.dir+`/records"`)
	// download-file URI TARGET HASH, as apt-helper does it: copy, compare, refuse.
	a.script("apt-helper", `f=${2#file://}; [ -e "$f" ] || { echo "E: Failed to fetch $2  404  Not Found" >&2; exit 100; }
sum=$(sha256sum "$f" | cut -d" " -f1); [ "SHA256:$sum" = "$4" ] || { echo "E: Hash Sum mismatch" >&2; exit 100; }
cp "$f" "$3"`)
	a.script("dpkg-deb", `[ "$1" = -x ] && mkdir -p "$3" && cp "$2" "$3/content"`)
	return a
}

func (a *archive) script(name, body string) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, "tools", name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		a.t.Fatal(err)
	}
}

// holds makes the archive have exactly these packages, given as NAME VERSION.
func (a *archive) holds(list ...string) []Package {
	a.t.Helper()
	var packages []Package
	var simulation, records strings.Builder
	if err := os.RemoveAll(filepath.Join(a.dir, "pool")); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(a.dir, "pool"), 0o755); err != nil {
		a.t.Fatal(err)
	}
	for _, item := range list {
		name, version, _ := strings.Cut(item, " ")
		content := []byte("package " + item)
		sum := sha256.Sum256(content)
		p := Package{Name: name, Version: version, Filename: "pool/" + name + "_" + Upstream(version) + ".deb", Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
		if err := os.WriteFile(filepath.Join(a.dir, p.Filename), content, 0o644); err != nil {
			a.t.Fatal(err)
		}
		packages = append(packages, p)
		fmt.Fprintf(&simulation, "Inst %s (%s Debian:unstable [amd64])\nConf %s (%s Debian:unstable [amd64])\n", name, version, name, version)
		fmt.Fprintf(&records, "Package: %s\nVersion: %s\nDescription: text\n with: colons\nFilename: %s\nSize: %d\nSHA256: %s\n\n", name, version, p.Filename, p.Size, p.SHA256)
	}
	for file, text := range map[string]string{"simulation": simulation.String(), "records": records.String()} {
		if err := os.WriteFile(filepath.Join(a.dir, file), []byte(text), 0o644); err != nil {
			a.t.Fatal(err)
		}
	}
	return packages
}

func (a *archive) fetcher(locked []Package) *Fetcher {
	tool := func(name string) string { return filepath.Join(a.dir, "tools", name) }
	return &Fetcher{
		Lock: Lock{Schema: 1, Architecture: "amd64", Suites: []string{"unstable"}, Accept: map[string]string{"libllama0": "0.7.*"},
			Sets: map[string]Set{"base": {Want: []string{"libllama0"}, Packages: locked}}},
		Cache: filepath.Join(a.dir, "cache"),
		Tools: Tools{AptGet: tool("apt-get"), AptCache: tool("apt-cache"), AptConfig: tool("apt-config"), AptHelper: tool("apt-helper"),
			Dpkg: tool("dpkg"), DpkgDeb: tool("dpkg-deb"), Env: []string{"PATH=/usr/bin:/bin"}},
		Mirror: func() (Mirror, error) { return Mirror{URI: "file://" + a.dir, Keyring: "/k.gpg"}, nil },
		Say:    func(format string, args ...any) { a.said = append(a.said, fmt.Sprintf(format, args...)) },
	}
}

// heard reports whether some line of progress has the text.
func (a *archive) heard(text string) bool {
	return slices.ContainsFunc(a.said, func(line string) bool { return strings.Contains(line, text) })
}

func TestFetchLocked(t *testing.T) {
	a := newArchive(t)
	locked := a.holds("libllama0 1:0.7.0-2", "libc6 2.43-7")
	f := a.fetcher(locked)
	got, err := f.Fetch(context.Background(), "base")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, locked) {
		t.Errorf("got %+v", got)
	}
	if _, err := os.Stat(filepath.Join(a.dir, "log")); err == nil {
		t.Error("package lists were fetched though the lock was enough")
	}
	// Once more without an archive: the cache is enough.
	f.Mirror = func() (Mirror, error) { return Mirror{}, errors.New("no network") }
	if _, err := f.Fetch(context.Background(), "base"); err != nil {
		t.Errorf("from the cache: %v", err)
	}
	dir, err := f.UnpackCached(context.Background(), locked[0])
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "content")); err != nil || string(data) != "package libllama0 1:0.7.0-2" {
		t.Errorf("unpacked %q, %v", data, err)
	}
}

func TestFetchMovedOnAccepted(t *testing.T) {
	a := newArchive(t)
	f := a.fetcher(a.holds("libllama0 1:0.7.0-2", "libc6 2.43-7"))
	now := a.holds("libllama0 1:0.7.1-1", "libc6 2.44-1")
	got, err := f.Fetch(context.Background(), "base")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(now, func(x, y Package) int { return strings.Compare(x.Name, y.Name) })
	if !slices.Equal(got, now) {
		t.Errorf("got %+v, want %+v", got, now)
	}
	for _, line := range []string{"the archive has moved on", "libllama0 1:0.7.0-2 -> 1:0.7.1-1 (accepted)", "engine-relock"} {
		if !a.heard(line) {
			t.Errorf("nobody said %q in %q", line, a.said)
		}
	}
}

func TestFetchMovedOnRefused(t *testing.T) {
	a := newArchive(t)
	f := a.fetcher(a.holds("libllama0 1:0.7.0-2", "libc6 2.43-7"))
	a.holds("libllama0 1:0.8.0-1", "libc6 2.43-7")
	_, err := f.Fetch(context.Background(), "base")
	if !errors.Is(err, ErrRefused) {
		t.Fatalf("error %v, want ErrRefused", err)
	}
	for _, part := range []string{"libllama0 1:0.8.0-1 (accepted: 0.7.*)", "make engine-relock", "HEARTH_DEBIAN_MIRROR"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
	if !a.heard("libllama0 1:0.7.0-2 -> 1:0.8.0-1 (NOT accepted)") {
		t.Errorf("said %q", a.said)
	}
	if len(f.Missing([]Package{f.Lock.Sets["base"].Packages[0]})) != 1 {
		t.Error("something was put into the cache under the locked hash")
	}
}

func TestFetchTampered(t *testing.T) {
	a := newArchive(t)
	locked := a.holds("libllama0 1:0.7.0-2")
	if err := os.WriteFile(filepath.Join(a.dir, locked[0].Filename), []byte("package libllama0 1:0.7.0-X"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := a.fetcher(locked)
	_, err := f.Fetch(context.Background(), "base")
	if err == nil || !strings.Contains(err.Error(), "Hash Sum mismatch") {
		t.Errorf("error %v", err)
	}
	// A transport that does not compare is caught by the second look.
	a.script("apt-helper", `cp "${2#file://}" "$3"`)
	_, err = f.Fetch(context.Background(), "base")
	if err == nil || !strings.Contains(err.Error(), "SHA-256 is") {
		t.Errorf("error %v", err)
	}
	if len(f.Missing(locked)) != 1 {
		t.Error("the wrong file is in the cache")
	}
}

func TestRelock(t *testing.T) {
	a := newArchive(t)
	f := a.fetcher(a.holds("libllama0 1:0.7.0-2"))
	now := a.holds("libllama0 1:0.7.2-1", "libnew 1-1")
	fresh, moves, err := f.Relock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(fresh.Sets["base"].Packages, now) || len(moves) != 2 {
		t.Errorf("fresh lock %+v after %v", fresh.Sets, moves)
	}
	a.holds("libllama0 1:0.9.0-1")
	if _, _, err := f.Relock(context.Background()); !errors.Is(err, ErrRefused) {
		t.Errorf("error %v, want ErrRefused", err)
	}
}

func TestOtherArchitecture(t *testing.T) {
	a := newArchive(t)
	a.script("dpkg", "echo arm64")
	f := a.fetcher(a.holds("libllama0 1:0.7.0-2"))
	_, err := f.Fetch(context.Background(), "base")
	if err == nil || !strings.Contains(err.Error(), "this machine is arm64") {
		t.Errorf("error %v", err)
	}
}

func TestPrivateConfiguration(t *testing.T) {
	a := newArchive(t)
	a.script("apt-config", `printf 'Acquire "";\nAcquire::http::Proxy "http://proxy.test:3128";\nAcquire::IndexTargets::deb "";\n'`)
	f := a.fetcher(a.holds("libllama0 1:0.7.0-2"))
	apt, err := f.apt(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile(apt.configFile())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(conf), `Acquire::http::Proxy "http://proxy.test:3128";`) || strings.Contains(string(conf), "IndexTargets::deb \"\"") {
		t.Errorf("configuration:\n%s", conf)
	}
	list, err := os.ReadFile(filepath.Join(apt.Dir, "etc/sources.list"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "deb [arch=amd64 signed-by=/k.gpg] file://" + a.dir + " unstable main\n"; string(list) != want {
		t.Errorf("sources %q, want %q", list, want)
	}
}
