package server_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"hearth/engine/enginetest"
	"hearth/server"
	"hearth/server/apitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logBuffer collects log lines from the server's goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// fixture is a server over a fake model called "m".
type fixture struct {
	t      testing.TB
	model  *enginetest.Model
	models *apitest.Models
	server *server.Server
	log    *logBuffer
}

func newFixture(t testing.TB, change ...func(*server.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, model: enginetest.New("m"), log: &logBuffer{}}
	f.models = apitest.New(f.model)
	var cfg server.Config
	for _, c := range change {
		c(&cfg)
	}
	var err error
	f.server, err = server.New(cfg, server.Deps{Models: f.models, Version: "test", Logger: slog.New(slog.NewTextHandler(f.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := f.models.Held(); n != 0 {
			t.Errorf("%d models were not released", n)
		}
	})
	return f
}

// do sends a request through the handler.
func (f *fixture) do(method, path, body string, header ...string) *httptest.ResponseRecorder {
	f.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	f.server.Handler().ServeHTTP(w, req)
	return w
}

func (f *fixture) post(path, body string) *httptest.ResponseRecorder {
	f.t.Helper()
	return f.do(http.MethodPost, path, body)
}

// listen serves on a real connection.
func (f *fixture) listen() *httptest.Server {
	f.t.Helper()
	s := httptest.NewServer(f.server.Handler())
	f.t.Cleanup(s.Close)
	return s
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
