package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"hearth/internal/toygguf"
	"hearth/models"
)

// recorder keeps the notes of a pull.
type recorder struct {
	mu    sync.Mutex
	notes []string
	bars  int
	last  int64
	onSet func(n int64)
}

func (r *recorder) Note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, s)
}

func (r *recorder) Bar(string, int64) Bar {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bars++
	return r
}

func (r *recorder) Set(n, _ int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = n
	if r.onSet != nil {
		r.onSet(n)
	}
}

func (r *recorder) Done(error) {}

func testHub(t *testing.T, edit func(*Config)) *Hub {
	t.Helper()
	cfg := Config{CacheDir: filepath.Join(t.TempDir(), "cache"), RetryBase: time.Millisecond, Retries: 3, Stall: 5 * time.Second}
	if edit != nil {
		edit(&cfg)
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func testStore(t *testing.T) *models.Store {
	t.Helper()
	s, err := models.Open(filepath.Join(t.TempDir(), "models"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// toy is a small model's bytes and their SHA-256.
func toy(t *testing.T, seed uint64) (data []byte, sum string) {
	t.Helper()
	p := filepath.Join(t.TempDir(), "toy.gguf")
	err := toygguf.Write(p, toygguf.Spec{Kind: toygguf.Llama, Vocab: toygguf.MinVocab, Embd: 32, Layers: 1, Heads: 2, HeadsKV: 1, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	if data, err = os.ReadFile(p); err != nil {
		t.Fatal(err)
	}
	return data, digest(data)
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func mustParse(t *testing.T, s string) Ref {
	t.Helper()
	r, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pull(t *testing.T, h *Hub, s *models.Store, ref string) (Result, *recorder, error) {
	t.Helper()
	rec := &recorder{}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := h.Pull(ctx, mustParse(t, ref), s, Options{}, rec)
	return r, rec, err
}

func sameFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if digest(got) != digest(want) {
		t.Errorf("%s differs from what was served", path)
	}
}

func TestPullLocalFile(t *testing.T) {
	data, _ := toy(t, 1)
	p := filepath.Join(t.TempDir(), "My Model.gguf")
	if err := os.WriteFile(p, data, 0o600); err != nil {
		t.Fatal(err)
	}
	h, s := testHub(t, func(c *Config) { c.Offline = true }), testStore(t)
	r, _, err := pull(t, h, s, "file:"+p)
	if err != nil || r.Present || r.Entry.Name != "My-Model" || !r.Entry.External || r.Entry.Path() != p {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, _, err = pull(t, h, s, p); err != nil || !r.Present {
		t.Errorf("second time: %+v, %v", r, err)
	}
	other := filepath.Join(t.TempDir(), "My Model.gguf")
	if err := os.WriteFile(other, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err = pull(t, h, s, other); err == nil {
		t.Error("another file took over the name")
	}
	res, err := h.Pull(t.Context(), mustParse(t, other), s, Options{Name: "second"}, Quiet{})
	if err != nil || res.Entry.Name != "second" {
		t.Errorf("with a name of its own: %+v, %v", res, err)
	}
}
