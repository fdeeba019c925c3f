package server_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"hearth/server"
)

func TestAPIKeys(t *testing.T) {
	f := newFixture(t, func(c *server.Config) { c.APIKeys = []string{"secret-one", "secret-two"} })
	tests := []struct {
		name, path string
		header     []string
		status     int
	}{
		{"none", "/v1/models", nil, 401},
		{"wrong", "/v1/models", []string{"Authorization", "Bearer nope"}, 401},
		{"prefix of a key", "/v1/models", []string{"Authorization", "Bearer secret-on"}, 401},
		{"empty bearer", "/v1/models", []string{"Authorization", "Bearer "}, 401},
		{"basic", "/v1/models", []string{"Authorization", "Basic secret-one"}, 401},
		{"bearer", "/v1/models", []string{"Authorization", "Bearer secret-one"}, 200},
		{"bearer, lower case", "/v1/models", []string{"Authorization", "bearer secret-two"}, 200},
		{"x-api-key", "/models", []string{"X-Api-Key", "secret-two"}, 200},
		{"health", "/health", nil, 200},
		{"health with v1", "/v1/health", nil, 200},
		{"ready", "/ready", nil, 200},
		{"metrics", "/metrics", nil, 401},
		{"unknown path", "/nope", nil, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := f.do(http.MethodGet, tt.path, "", tt.header...)
			if w.Code != tt.status {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			if tt.status == 401 {
				if e := decodeError(t, w.Body.String()); deref(e.Error.Code) != "invalid_api_key" || w.Header().Get("WWW-Authenticate") == "" {
					t.Errorf("got %s", w.Body)
				}
			}
		})
	}
	if log := f.log.String(); strings.Contains(log, "secret-one") || strings.Contains(log, "nope\"") {
		t.Error("a key is in the log")
	}
}

// TestTenants: keys are different tenants for the engine, the same key is the same one.
func TestTenants(t *testing.T) {
	f := newFixture(t, func(c *server.Config) { c.APIKeys = []string{"a", "b"} })
	for _, key := range []string{"a", "b", "a"} {
		if w := f.do(http.MethodPost, chatPath, chatWith(`"n":1`), "X-Api-Key", key); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	r := f.model.Requests()
	if r[0].Tenant == "" || r[0].Tenant == r[1].Tenant || r[0].Tenant != r[2].Tenant || strings.Contains(f.log.String(), r[0].Tenant) {
		t.Errorf("tenants %q %q %q", r[0].Tenant, r[1].Tenant, r[2].Tenant)
	}
}

func TestCORS(t *testing.T) {
	f := newFixture(t, func(c *server.Config) { c.CORSOrigins = []string{"http://localhost:3000"} })
	const good, evil = "http://localhost:3000", "https://evil.example"
	preflight := func(origin string) *httptest.ResponseRecorder {
		return f.do(http.MethodOptions, chatPath, "", "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type")
	}
	w := preflight(good)
	if w.Code != 204 || w.Header().Get("Access-Control-Allow-Origin") != good || w.Header().Get("Access-Control-Allow-Headers") != "authorization,content-type" {
		t.Errorf("preflight: %d %v", w.Code, w.Header())
	}
	if w := preflight(evil); w.Code != 403 || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("preflight of another origin: %d %v", w.Code, w.Header())
	}
	if w := f.do(http.MethodPost, chatPath, chatWith(`"n":1`), "Origin", good); w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != good {
		t.Errorf("request: %d %v", w.Code, w.Header())
	}
	// A page can send a POST without preflight (text/plain); it must not make the GPU work.
	if w := f.do(http.MethodPost, chatPath, chatWith(`"n":1`), "Origin", evil); w.Code != 403 || len(f.model.Requests()) != 1 {
		t.Errorf("request of another origin: %d", w.Code)
	}
	if w := f.do(http.MethodGet, "/v1/models", "", "Origin", evil); w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("GET of another origin gets CORS headers")
	}
	if w := f.do(http.MethodPost, chatPath, chatWith(`"n":1`), "Origin", "http://example.com"); w.Code != 200 {
		t.Errorf("the server's own page: %d %s", w.Code, w.Body) // httptest's Host is example.com
	}
	all := newFixture(t, func(c *server.Config) { c.CORSOrigins = []string{"*"} })
	if w := all.do(http.MethodPost, chatPath, chatWith(`"n":1`), "Origin", evil); w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != evil {
		t.Errorf("any origin: %d %v", w.Code, w.Header())
	}
}

// TestHostCheck: over loopback only names that belong to loopback are answered.
func TestHostCheck(t *testing.T) {
	f := newFixture(t, func(c *server.Config) { c.AllowedHosts = []string{"box.lan"} })
	get := func(local, host string) int {
		req := httptest.NewRequest(http.MethodGet, "/v1/models", nil)
		req.Host = host
		addr := &net.TCPAddr{IP: net.ParseIP(local), Port: 9595}
		w := httptest.NewRecorder()
		f.server.Handler().ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, net.Addr(addr))))
		return w.Code
	}
	tests := []struct {
		local, host string
		status      int
	}{
		{"127.0.0.1", "localhost:9595", 200},
		{"127.0.0.1", "LOCALHOST.", 200},
		{"127.0.0.1", "127.0.0.1:9595", 200},
		{"::1", "[::1]:9595", 200},
		{"127.0.0.1", "hearth.localhost", 200},
		{"127.0.0.1", "box.lan:80", 200},
		{"127.0.0.1", "evil.example:9595", 403},
		{"::1", "evil.example", 403},
		{"127.0.0.1", "localhost.evil.example", 403},
		{"192.168.1.5", "anything.example", 200},
	}
	for _, tt := range tests {
		if got := get(tt.local, tt.host); got != tt.status {
			t.Errorf("Host %q on %s: %d, want %d", tt.host, tt.local, got, tt.status)
		}
	}
}

func TestRequestID(t *testing.T) {
	f := newFixture(t)
	w := f.do(http.MethodGet, "/health", "", "X-Request-Id", "my-id.1")
	if got := w.Header().Get("X-Request-Id"); got != "my-id.1" {
		t.Errorf("echoed %q", got)
	}
	for _, bad := range []string{"", "a b", "x\ny", strings.Repeat("x", 200)} {
		w := f.do(http.MethodGet, "/v1/models", "", "X-Request-Id", bad)
		if got := w.Header().Get("X-Request-Id"); !strings.HasPrefix(got, "req_") || len(got) != 28 {
			t.Errorf("for %q: %q", bad, got)
		}
	}
	if w.Header().Get("Openai-Processing-Ms") == "" || w.Header().Get("Openai-Version") == "" {
		t.Errorf("headers %v", w.Header())
	}
}

func TestRoutes(t *testing.T) {
	f := newFixture(t)
	tests := []struct {
		method, path string
		status       int
	}{
		{"GET", "/", 200}, {"HEAD", "/", 200}, {"GET", "/health", 200}, {"HEAD", "/health", 200}, {"GET", "/v1/health", 200},
		{"GET", "/ready", 200}, {"GET", "/metrics", 200}, {"GET", "/v1/models", 200}, {"GET", "/models", 200}, {"HEAD", "/v1/models", 200},
		{"GET", "/v1/models/", 200}, {"GET", "/v1/models/m", 200}, {"GET", "/models/m", 200}, {"GET", "/v1/models/org/x:y", 404},
		{"GET", "/api/ps", 200}, {"GET", "/api/version", 200}, {"GET", "/props", 200}, {"GET", "/slots", 200},
		{"GET", chatPath, 405}, {"DELETE", "/v1/models", 405}, {"PUT", "/api/ps", 405},
		{"GET", "/v2/models", 404}, {"POST", "/nope", 404}, {"GET", "/v1/chat", 404},
	}
	for _, tt := range tests {
		w := f.do(tt.method, tt.path, "")
		if w.Code != tt.status {
			t.Errorf("%s %s: %d, want %d: %s", tt.method, tt.path, w.Code, tt.status, w.Body)
		}
		if w.Code >= 400 {
			decodeError(t, w.Body.String())
		}
	}
	for _, path := range []string{chatPath, "/chat/completions"} {
		if w := f.post(path, chatWith(`"max_tokens":3`)); w.Code != 200 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	for _, path := range []string{textPath, "/completions"} {
		if w := f.post(path, textWith(`"max_tokens":3`)); w.Code != 200 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// TestModelIDs: ids hold slashes and colons, escaped or not.
func TestModelIDs(t *testing.T) {
	f := newFixture(t)
	f.model.Details.Name = "org/model:Q4"
	f.models.Add(f.model)
	s := f.listen()
	for _, id := range []string{"org/model:Q4", "org%2Fmodel:Q4", "org%2Fmodel%3AQ4"} {
		resp, err := s.Client().Get(s.URL + "/v1/models/" + id)
		if err != nil {
			t.Fatal(err)
		}
		var m struct{ ID, Object string }
		err = json.NewDecoder(resp.Body).Decode(&m)
		resp.Body.Close()
		if err != nil || m.ID != "org/model:Q4" || m.Object != "model" {
			t.Errorf("%s: %d %+v %v", id, resp.StatusCode, m, err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	tests := []struct {
		change func(*server.Config)
		want   string
	}{
		{func(c *server.Config) { c.APIKeys = []string{"a", " "} }, "api_keys[1]"},
		{func(c *server.Config) { c.CORSOrigins = []string{"localhost"} }, "cors_origins[0]"},
		{func(c *server.Config) { c.CORSOrigins = []string{"http://x/path"} }, "cors_origins[0]"},
		{func(c *server.Config) { c.MaxBodyBytes = -1 }, "max_body_bytes"},
		{func(c *server.Config) { c.ShutdownGrace = -1 }, "shutdown_grace"},
	}
	for _, tt := range tests {
		var cfg server.Config
		tt.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	if _, err := server.New(server.Config{}, server.Deps{}); err == nil {
		t.Error("New without models")
	}
}
