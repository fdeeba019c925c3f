package llama_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"hearth/engine/llama"
)

// The versions the shim was written against; another one must be looked at first.
const (
	wantLlama = "0.7.0"
	wantGGML  = "0.27."
)

func TestVersion(t *testing.T) {
	l, g := llama.Version()
	if l != wantLlama || !strings.HasPrefix(g, wantGGML) {
		t.Errorf("llama.cpp %s with ggml %s, want %s with %sx", l, g, wantLlama, wantGGML)
	}
}

func TestCPULive(t *testing.T) {
	devs, err := rt.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devs {
		if d.Type == llama.DeviceCPU && d.Backend == "CPU" {
			if d.MemoryTotal == 0 || d.Description == "" {
				t.Errorf("CPU device without memory or description: %+v", d)
			}
			return
		}
	}
	t.Errorf("no CPU device in %+v", devs)
}

func TestVulkanLive(t *testing.T) {
	if vulkanSkip != "" {
		t.Skip(vulkanSkip)
	}
	devs, err := rt.Devices()
	if err != nil {
		t.Fatal(err)
	}
	pci := regexp.MustCompile(`^([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?$`)
	for _, d := range devs {
		if d.Backend == "Vulkan" {
			if d.Name != "Vulkan0" || d.MemoryTotal == 0 || !pci.MatchString(d.PCI) {
				t.Errorf("odd Vulkan device %+v", d)
			}
			return
		}
	}
	t.Errorf("no Vulkan device in %+v", devs)
}

func TestOpenErrors(t *testing.T) {
	if _, err := llama.Open(llama.Config{}); !errors.Is(err, llama.ErrRange) {
		t.Errorf("no plugins: %v", err)
	}
	_, err := llama.Open(llama.Config{CPUPlugins: []string{"/nonexistent/libggml-cpu-x.so"}})
	if !errors.Is(err, llama.ErrPlugin) || !strings.Contains(err.Error(), "/nonexistent/libggml-cpu-x.so") {
		t.Errorf("missing file: %v", err)
	}
	junk := filepath.Join(t.TempDir(), "libggml-cpu-junk.so")
	if err := os.WriteFile(junk, []byte("not ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := llama.Open(llama.Config{CPUPlugins: []string{junk}}); !errors.Is(err, llama.ErrPlugin) {
		t.Errorf("not a library: %v", err)
	}
	if _, err := llama.Open(llama.Config{CPUPlugins: []string{rt.CPUPlugin()}, GPUPlugin: junk}); err == nil {
		t.Error("a broken GPU plugin was accepted")
	}
}

// syncBuffer is a log sink for two goroutines.
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

// A second runtime takes over the log; closing it flushes what was written.
func TestLogReachesSlog(t *testing.T) {
	var out syncBuffer
	r, err := llama.Open(llama.Config{
		CPUPlugins: []string{rt.CPUPlugin()},
		Logger:     slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	junk := filepath.Join(t.TempDir(), "junk.gguf")
	if err := os.WriteFile(junk, []byte("GGUFjunk"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := r.LoadModel(t.Context(), junk, llama.ModelParams{}); !errors.Is(err, llama.ErrModelLoad) {
		t.Errorf("junk model: %v", err)
	}
	r.Close()
	r.Close()
	if got := out.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "source=llama.cpp") {
		t.Errorf("llama.cpp's error is not in the log: %q", got)
	}
}

func TestLeakIsReported(t *testing.T) {
	lines := make(chan string, 16)
	log := slog.New(slog.NewTextHandler(chanWriter(lines), nil))
	func() {
		if _, err := llama.NewBatch(4, 1, log); err != nil {
			t.Fatal(err)
		}
	}()
	for range 20 {
		runtime.GC()
		select {
		case l := <-lines:
			if !strings.Contains(l, "kind=batch") || !strings.Contains(l, "runtime_test.go:") {
				t.Errorf("leak report %q", l)
			}
			return
		default:
			runtime.Gosched()
		}
	}
	// The cleanup runs on its own goroutine; give it the floor once more.
	if l := <-lines; !strings.Contains(l, "kind=batch") {
		t.Errorf("leak report %q", l)
	}
}

type chanWriter chan string

func (c chanWriter) Write(p []byte) (int, error) {
	c <- string(p)
	return len(p), nil
}
