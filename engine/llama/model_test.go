package llama_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

func TestModelInfo(t *testing.T) {
	kinds := map[toygguf.Kind]func(llama.ModelInfo) bool{
		toygguf.Llama:  func(i llama.ModelInfo) bool { return !i.Hybrid && !i.Recurrent && i.SWA == 0 },
		toygguf.Gemma3: func(i llama.ModelInfo) bool { return i.SWA == 512 },
		toygguf.Jamba:  func(i llama.ModelInfo) bool { return i.Hybrid && !i.Recurrent },
		toygguf.Mamba:  func(i llama.ModelInfo) bool { return i.Recurrent && !i.Hybrid },
		toygguf.Bert:   func(i llama.ModelInfo) bool { return i.Embeddings && i.Pooling == llama.PoolingMean },
	}
	for k, ok := range kinds {
		i := toy(t, toygguf.Spec{Kind: k}).Info()
		if !ok(i) {
			t.Errorf("%s: %+v", k, i)
		}
		if i.Vocab != 1024 || i.Embd != 128 || i.Size == 0 || i.Params == 0 || i.Description == "" {
			t.Errorf("%s: sizes %+v", k, i)
		}
	}
	i := dense(t).Info()
	if i.BOS != toygguf.TokenBOS || i.EOS != toygguf.TokenEOS || i.EOT != toygguf.TokenEnd || i.FIMPre != llama.NullToken {
		t.Errorf("special tokens %+v", i)
	}
	if i.CtxTrain != 131072 || !i.AddBOS || i.AddEOS || i.Layers != 2 {
		t.Errorf("info %+v", i)
	}
}

func TestMetadata(t *testing.T) {
	m := dense(t)
	if got := m.Metadata()["general.name"]; got != "toy-llama" {
		t.Errorf("general.name = %q", got)
	}
	if tpl, ok := m.ChatTemplate(""); !ok || !strings.Contains(tpl, "<|assistant|>") {
		t.Errorf("chat template %q %v", tpl, ok)
	}
	if _, ok := m.ChatTemplate("tool_use"); ok {
		t.Error("a template that does not exist was found")
	}
}

func TestTokenize(t *testing.T) {
	m := dense(t)
	word := func(i int) llama.Token { return llama.Token(toygguf.TokenWord0 + i) }
	cases := []struct {
		text         string
		add, special bool
		want         []llama.Token
	}{
		{"a b aa", false, false, []llama.Token{word(0), word(1), word(26)}},
		{"a", true, false, []llama.Token{toygguf.TokenBOS, word(0)}},
		{"a<|end|>", false, true, []llama.Token{word(0), toygguf.TokenEnd}},
		{"", false, false, nil},
		{"", true, false, []llama.Token{toygguf.TokenBOS}},
	}
	for _, c := range cases {
		got, err := m.Tokenize(c.text, c.add, c.special)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v %v, want %v", c.text, got, err, c.want)
		}
	}
	// A control token a client writes stays text unless asked for.
	got, err := m.Tokenize("<|end|>", false, false)
	if err != nil || slices.Contains(got, toygguf.TokenEnd) {
		t.Errorf("client text became a control token: %v %v", got, err)
	}
	// More tokens than the first guess: every byte falls back to its own token.
	long := strings.Repeat("\x01\xf0\x9f\x98\x80", 1000)
	got, err = m.Tokenize(long, false, false)
	if err != nil || len(got) < 5000 {
		t.Fatalf("%d tokens, %v", len(got), err)
	}
	back, err := m.Detokenize(got, false, false)
	if err != nil || strings.TrimPrefix(back, " ") != long {
		t.Errorf("round trip of %d bytes gave %d, %v", len(long), len(back), err)
	}
	if _, err := m.Detokenize([]llama.Token{1024}, false, false); !errors.Is(err, llama.ErrRange) {
		t.Errorf("token outside the vocabulary: %v", err)
	}
}

func TestPieces(t *testing.T) {
	m := dense(t)
	if got := m.Piece(toygguf.TokenByte0 + 'x'); string(got) != "x" {
		t.Errorf("byte piece %q", got)
	}
	if got := m.Piece(toygguf.TokenWord0 + 26); string(got) != " aa" {
		t.Errorf("word piece %q", got)
	}
	if plain, full := m.Piece(toygguf.TokenEnd), m.SpecialPiece(toygguf.TokenEnd); len(plain) != 0 || string(full) != "<|end|>" {
		t.Errorf("control piece %q and %q", plain, full)
	}
	if m.Piece(-1) != nil || m.Piece(1024) != nil {
		t.Error("a piece outside the vocabulary")
	}
	if !m.IsEOG(toygguf.TokenEnd) || !m.IsEOG(toygguf.TokenEOS) || m.IsEOG(toygguf.TokenWord0) || m.IsEOG(-1) || m.IsEOG(1<<30) {
		t.Error("end of generation tokens are wrong")
	}
	if !slices.Contains(m.EOG(), toygguf.TokenEnd) {
		t.Errorf("EOG() = %v", m.EOG())
	}
	if m.Attr(toygguf.TokenEnd)&llama.AttrControl == 0 || m.Attr(toygguf.TokenByte0)&llama.AttrByte == 0 || m.Attr(-1) != 0 {
		t.Error("attributes are wrong")
	}
}

func TestTokenizeIsConcurrent(t *testing.T) {
	m := dense(t)
	want, err := m.Tokenize("a b c aa bb cc", true, true)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				got, err := m.Tokenize("a b c aa bb cc", true, true)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%v %v", got, err)
					return
				}
				m.SpecialPiece(got[1])
			}
		})
	}
	wg.Wait()
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := rt.LoadModel(t.Context(), filepath.Join(dir, "none.gguf"), llama.ModelParams{})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := rt.LoadModel(t.Context(), dir, llama.ModelParams{}); !errors.Is(err, llama.ErrModelLoad) {
		t.Errorf("directory: %v", err)
	}
	whole, err := os.ReadFile(toyPath(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 2}))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty":     nil,
		"junk":      []byte("GGUF but not really one, only some bytes to read"),
		"header":    whole[:20000],
		"truncated": whole[:len(whole)/2],
		"counts":    append(append([]byte{}, whole[:8]...), bytes.Repeat([]byte{0xff}, 64)...),
		"arch":      bytes.Replace(whole, []byte("\x05\x00\x00\x00\x00\x00\x00\x00llama"), []byte("\x05\x00\x00\x00\x00\x00\x00\x00lemma"), 1),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := rt.LoadModel(t.Context(), path, llama.ModelParams{})
		if !errors.Is(err, llama.ErrModelLoad) && !errors.Is(err, llama.ErrException) && !errors.Is(err, llama.ErrOutOfMemory) {
			t.Errorf("%s: %v", name, err)
		}
		var e *llama.Error
		if errors.As(err, &e) && e.Msg == "" {
			t.Errorf("%s: no words from llama.cpp: %v", name, err)
		}
	}
	path := toyPath(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 2})
	if _, err := rt.LoadModel(t.Context(), path, llama.ModelParams{Devices: []string{"ROCm7"}}); !errors.Is(err, llama.ErrRange) {
		t.Errorf("unknown device: %v", err)
	}
}

func TestLoadProgressAndCancel(t *testing.T) {
	path := toyPath(t, toygguf.Spec{Kind: toygguf.Llama})
	var seen []float64
	m, err := rt.LoadModel(t.Context(), path, llama.ModelParams{Progress: func(f float64) { seen = append(seen, f) }})
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if len(seen) < 3 || !slices.IsSorted(seen) || seen[len(seen)-1] != 1 {
		t.Errorf("progress %v", seen)
	}
	cause := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = rt.LoadModel(ctx, path, llama.ModelParams{Progress: func(f float64) {
		if f > 0 {
			cancel(cause)
		}
	}})
	if !errors.Is(err, cause) {
		t.Errorf("cancelled load: %v", err)
	}
}

func TestVocabOnly(t *testing.T) {
	m, err := rt.LoadModel(t.Context(), toyPath(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 2}), llama.ModelParams{VocabOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if got, err := m.Tokenize("a", false, false); err != nil || len(got) != 1 {
		t.Errorf("%v %v", got, err)
	}
	if _, err := m.NewContext(llama.ContextParams{}); !errors.Is(err, llama.ErrUnsupported) {
		t.Errorf("context without weights: %v", err)
	}
}

func TestModelClose(t *testing.T) {
	m, err := rt.LoadModel(t.Context(), toyPath(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 2}), llama.ModelParams{})
	if err != nil {
		t.Fatal(err)
	}
	c := newContext(t, m, llama.ContextParams{Ctx: 256})
	if err := m.Close(); !errors.Is(err, llama.ErrInUse) {
		t.Errorf("close with a context open: %v", err)
	}
	c.Close()
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.Tokenize("a", false, false); !errors.Is(err, llama.ErrClosed) {
		t.Errorf("tokenize after close: %v", err)
	}
	if _, err := m.NewContext(llama.ContextParams{}); !errors.Is(err, llama.ErrClosed) {
		t.Errorf("context after close: %v", err)
	}
}
