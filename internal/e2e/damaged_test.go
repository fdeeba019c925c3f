package e2e

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hearth/internal/toygguf"
)

// hearth runs one command of the built program with the folders of dir and returns its output and exit code.
func hearth(t *testing.T, dir string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(root(t), "bin", "hearth"), args...)
	cmd.Dir, cmd.Env = dir, environ(dir)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// header is a GGUF header that claims counts of tensors and of metadata.
func header(tensors, metadata uint64) []byte {
	b := append([]byte("GGUF"), 3, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, tensors)
	return binary.LittleEndian.AppendUint64(b, metadata)
}

func writeToy(t *testing.T, path string) []byte {
	t.Helper()
	if err := toygguf.Write(path, toygguf.Spec{Kind: toygguf.Llama, Embd: 32, Layers: 1, Heads: 2, HeadsKV: 1, Context: 512}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A file that is no whole model is refused by name, by every way in, before a worker could die of it.
func TestDamagedFilesAreRefused(t *testing.T) {
	root(t)
	dir := t.TempDir()
	whole := writeToy(t, filepath.Join(dir, "whole.gguf"))
	long := append(header(1, 1), binary.LittleEndian.AppendUint64(nil, 1<<62)...) // a key of 2^62 bytes
	for name, content := range map[string][]byte{
		"half.gguf": whole[:len(whole)/2], "header.gguf": whole[:20], "metadata.gguf": whole[:400], "last-byte.gguf": whole[:len(whole)-1],
		"tensors.gguf": append(header(1<<60, 1), make([]byte, 4096)...), "keys.gguf": append(header(1, 1<<63), make([]byte, 4096)...),
		"long-key.gguf": append(long, make([]byte, 4096)...), "empty.gguf": nil, "text.gguf": []byte(strings.Repeat("no model ", 100)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"pull", "./" + name}, {"pull", "file:" + filepath.Join(dir, name)}, {"serve", "./" + name, "--listen", "127.0.0.1:0"}, {"run", "./" + name, "-p", "hi"}} {
			out, code := hearth(t, dir, args...)
			if code != 1 || !strings.Contains(out, name) || !strings.HasPrefix(out, "hearth: ") || strings.Contains(out, "goroutine") {
				t.Errorf("hearth %s: exit %d: %s; want exit 1 and an error that names the file", strings.Join(args, " "), code, out)
			}
		}
	}
	if out, _ := hearth(t, dir, "list", "-q"); out != "" {
		t.Errorf("the store holds %q", out)
	}
}

// A model that is damaged while the server runs fails its own requests only.
func TestModelDamagedUnderTheServer(t *testing.T) {
	s := serve(t, []string{"--context", "512"})
	dir, err := pullOnce()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "later.gguf")
	whole := writeToy(t, path)
	if out, code := hearth(t, dir, "pull", path, "--name", "later"); code != 0 {
		t.Fatalf("pull: exit %d: %s", code, out)
	}
	defer hearth(t, dir, "rm", "later")
	ask := map[string]any{"model": "later", "prompt": "abc", "max_tokens": 2}
	if err := os.Truncate(path, int64(len(whole)/2)); err != nil {
		t.Fatal(err)
	}
	code, _, out := s.post("/v1/completions", ask)
	var e struct {
		Error struct{ Message, Type string }
	}
	if err := json.Unmarshal(out, &e); err != nil || code != 500 || !strings.Contains(e.Error.Message, "later") || !strings.Contains(e.Error.Message, "truncated") {
		t.Errorf("status %d: %s; want 500 and an error that names the model", code, out)
	}
	if code, _, out := s.post("/v1/chat/completions", user("Hello", 4)); code != 200 {
		t.Errorf("the other model: status %d: %s", code, out)
	}
	if err := os.WriteFile(path, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, out := s.post("/v1/completions", ask); code != 200 {
		t.Errorf("after the file was mended: status %d: %s", code, out)
	}
}
