package fakegpu

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/engine/bundle"
	"hearth/internal/toygguf"
)

// folder writes the rig's bundle (the HIP bundle with the other ROCr first) as a bundle of its own, which the product
// finds by its settings.
func (r *Rig) folder(t *testing.T) string {
	t.Helper()
	m := r.Bundle.Manifest
	m.Name, m.Loader, m.LibraryPath = "fake", r.Bundle.Path(m.Loader), r.Bundle.LibraryDirs()
	m.Plugins = nil
	for _, p := range r.Bundle.Plugins {
		p.Path = r.Bundle.Path(p.Path)
		m.Plugins = append(m.Plugins, p)
	}
	m.VulkanICDs = nil
	if r.VulkanManifest != "" {
		m.VulkanICDs = []string{r.VulkanManifest} // as if the bundle had brought it
	}
	m.RocBLASLibrary = r.Bundle.Path(m.RocBLASLibrary)
	text, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	engine := r.Bundle.Path("bin/hearth-engine")
	if _, err := os.Stat(engine); err != nil {
		t.Skipf("the bundle has no worker (make build HEARTH_HIP=ON): %v", err)
	}
	dir := filepath.Join(t.TempDir(), "fake")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "bin"), 0o755), os.WriteFile(filepath.Join(dir, bundle.ManifestName), text, 0o644),
		os.Symlink(engine, filepath.Join(dir, "bin", "hearth-engine")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Dir(dir)
}

// hearth is the built front end.
func buildHearth(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "hearth")
	cmd := exec.Command("go", "build", "-o", out, "../../cmd/hearth")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	return out
}

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

// serving is a `hearth serve` on the rig.
type serving struct {
	url string
	log *logBuffer
}

// serve starts hearth on the rig's machine and waits until the toy model is ready or refused.
func (r *Rig) serve(t *testing.T, hearth, machine string, flags ...string) serving {
	t.Helper()
	dir := t.TempDir()
	model := filepath.Join(dir, "toy.gguf")
	if err := toygguf.Write(model, toygguf.Spec{Kind: toygguf.Llama, Layers: 4}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	run, err := os.MkdirTemp("", "hh") // unix sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	env := r.Env("XDG_DATA_HOME="+dir+"/data", "XDG_STATE_HOME="+dir+"/state", "XDG_CONFIG_HOME="+dir+"/config", "XDG_CACHE_HOME="+dir+"/cache",
		"XDG_RUNTIME_DIR="+run, "HEARTH_ENGINE_DIR="+r.folder(t), "HEARTH_BUNDLE=fake", "HEARTH_SYS_ROOT="+fixtures.Dir(t, machine))
	cmd := exec.Command(hearth, append([]string{"serve", model, "--listen", addr}, flags...)...)
	s := serving{url: "http://" + addr, log: &logBuffer{}}
	cmd.Env, cmd.Stdout, cmd.Stderr = env, s.log, s.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
		}
	})
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for stop := time.After(deadline); ; {
		if code, _ := s.get(t, "/ready"); code == http.StatusOK {
			return s
		}
		select {
		case <-tick.C:
		case <-done:
			t.Fatalf("hearth ended:\n%s", s.log)
		case <-stop:
			t.Fatalf("not ready:\n%s", s.log)
		}
	}
}

func (s serving) get(t *testing.T, path string) (int, []byte) {
	t.Helper()
	res, err := http.Get(s.url + path)
	if err != nil {
		return 0, nil // not listening yet
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b
}

// placed is where the model runs, from /api/ps.
func (s serving) placed(t *testing.T) (backend, device, pci string) {
	t.Helper()
	_, body := s.get(t, "/api/ps")
	var ps struct {
		Models []struct{ Backend, Device, PCI string } `json:"models"`
	}
	if err := json.Unmarshal(body, &ps); err != nil || len(ps.Models) != 1 {
		t.Fatalf("%v: %s", err, body)
	}
	return ps.Models[0].Backend, ps.Models[0].Device, ps.Models[0].PCI
}

// chat asks for a few tokens and returns the reply's header. On a fake GPU the tokens mean nothing.
func (s serving) chat(t *testing.T) http.Header {
	t.Helper()
	res, err := http.Post(s.url+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"messages":[{"role":"user","content":"hello"}],"max_tokens":4,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"completion_tokens"`)) {
		t.Errorf("status %d: %s\n%s", res.StatusCode, body, s.log)
	}
	return res.Header
}

// TestServeOnAFake7900XTX: the whole path, from the kernel's files over the choice of a device to tokens in a stream.
func TestServeOnAFake7900XTX(t *testing.T) {
	r := New(t, "xtx")
	hearth := buildHearth(t)
	t.Run("hip asked for", func(t *testing.T) {
		s := r.serve(t, hearth, "xtx", "--backend", "hip")
		if backend, device, pci := s.placed(t); backend != "hip" || device != "ROCm0" || pci != "0000:03:00.0" {
			t.Errorf("runs on %s, %s at %s\n%s", backend, device, pci, s.log)
		}
		if h := s.chat(t); h.Get("X-Hearth-Backend") != "hip" || h.Get("X-Hearth-Device") != "0000:03:00.0" || h.Get("X-Hearth-Fallback") != "" {
			t.Errorf("the reply says %v", h)
		}
		_, text := s.get(t, "/metrics")
		if !bytes.Contains(text, []byte(`hearth_device_memory_total_bytes{memory="vram",name="AMD Radeon RX 7900 XTX",pci="0000:03:00.0"} 2.575302656e+10`)) {
			t.Errorf("the card's sensors are not in the metrics:\n%s", text)
		}
	})
	t.Run("auto does not trust wrong products", func(t *testing.T) {
		s := r.serve(t, hearth, "xtx")
		if backend, _, _ := s.placed(t); backend != "cpu" {
			t.Errorf("runs on %s\n%s", backend, s.log)
		}
		if !strings.Contains(s.log.String(), "wrong result: ROCm0") {
			t.Errorf("the reason is not in the log:\n%s", s.log)
		}
		s.chat(t)
	})
}

// TestServeRefusesAFakeR9700: no code object for gfx1201 in Debian's plugin. Nothing is loaded to find that out, and the
// model runs on the next best: the card's Vulkan driver where it has one, else the CPU.
func TestServeRefusesAFakeR9700(t *testing.T) {
	for _, c := range []struct{ name, backend, pci string }{{"without Vulkan", "cpu", ""}, {"with Vulkan", "vulkan", "0000:84:00.0"}} {
		t.Run(c.name, func(t *testing.T) {
			r := New(t, "r9700")
			if c.backend == backends.Vulkan {
				r.Disguise(t, "AMD Radeon AI PRO R9700 (RADV GFX1201)", backends.PCI(c.pci))
			}
			s := r.serve(t, buildHearth(t), "r9700")
			if backend, _, pci := s.placed(t); backend != c.backend || pci != c.pci {
				t.Errorf("runs on %s at %q", backend, pci)
			}
			log := s.log.String()
			for _, want := range []string{"no code object for gfx1201", "use Vulkan"} {
				if !strings.Contains(log, want) {
					t.Errorf("%q is not in the log:\n%s", want, log)
				}
			}
			if strings.Contains(log, "SIGABRT") || strings.Contains(log, "ROCm error") {
				t.Errorf("HIP was tried all the same:\n%s", log)
			}
			if _, text := s.get(t, "/metrics"); !bytes.Contains(text, []byte(`hearth_backend_fallback_total{model="toy"} 1`)) {
				t.Error("the fallback is not counted")
			}
			if _, text := s.get(t, "/api/ps"); !bytes.Contains(text, []byte(`no code object for gfx1201`)) {
				t.Errorf("ps does not say why: %s", text)
			}
			if h := s.chat(t); h.Get("X-Hearth-Backend") != c.backend || !strings.Contains(h.Get("X-Hearth-Fallback"), "no code object for gfx1201") {
				t.Errorf("the reply says %v", h)
			}
		})
	}
}
