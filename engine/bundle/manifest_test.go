package bundle

import (
	"errors"
	"strings"
	"testing"
)

const good = `{
  "schema": 1, "name": "hip", "llama_version": "0.7.0", "ggml_version": "0.27.0", "source": "debian",
  "loader": "lib/ld-linux-x86-64.so.2", "library_path": ["lib", "mesa/lib"],
  "plugins": [
    {"name": "blas", "path": "backends/libggml-blas.so", "kind": "blas"},
    {"name": "cpu-haswell", "path": "backends/libggml-cpu-haswell.so", "kind": "cpu"},
    {"name": "cpu-x64", "path": "backends/libggml-cpu-x64.so", "kind": "cpu"},
    {"name": "hip", "path": "/cache/libggml-hip.so", "kind": "hip"}
  ],
  "gfx_targets": ["gfx1100"], "vulkan_icds": ["mesa/icd.d/radeon_icd.json"],
  "rocblas_library": "lib/rocblas/4.4.1/library",
  "packages": [{"name": "libllama0", "version": "1:0.7.0+dfsg-2", "sha256": "00"}],
  "added_by_a_newer_tool": true
}`

func TestParseManifest(t *testing.T) {
	m, err := ParseManifest(strings.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "hip" || len(m.Plugins) != 4 || m.Plugins[0].Kind != KindBLAS || m.Plugins[3].Kind != KindHIP || m.GFXTargets[0] != "gfx1100" {
		t.Errorf("parsed %+v", m)
	}
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseManifest(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	if again.Loader != m.Loader || len(again.Packages) != 1 {
		t.Errorf("after a round trip: %+v", again)
	}
}

func TestParseManifestRefuses(t *testing.T) {
	for name, c := range map[string]struct{ from, to, says string }{
		"newer schema":           {`"schema": 1`, `"schema": 2`, "schema"},
		"name with a slash":      {`"name": "hip"`, `"name": "../x"`, "name"},
		"no version":             {`"llama_version": "0.7.0"`, `"llama_version": ""`, "llama_version"},
		"unknown source":         {`"source": "debian"`, `"source": "rpm"`, "source"},
		"loader without path":    {`"library_path": ["lib", "mesa/lib"]`, `"library_path": []`, "library_path"},
		"library path outside":   {`"mesa/lib"`, `"../../lib"`, "library_path"},
		"colon in library path":  {`"mesa/lib"`, `"mesa:lib"`, "library_path"},
		"plugin outside":         {`"backends/libggml-cpu-x64.so"`, `"../libggml-cpu-x64.so"`, "plugins"},
		"plugin without a path":  {`"/cache/libggml-hip.so"`, `""`, "plugins"},
		"driver file outside":    {`"mesa/icd.d/radeon_icd.json"`, `"../radeon_icd.json"`, "vulkan_icds"},
		"plugins of wrong type":  {`"gfx_targets": ["gfx1100"]`, `"gfx_targets": 3`, "gfx_targets"},
		"text after the object":  {`"added_by_a_newer_tool": true` + "\n}", `"x": 1} {}`, "after the object"},
		"cut in the middle":      {`"added_by_a_newer_tool": true` + "\n}", `"x": `, "unexpected EOF"},
		"larger than any should": {`"0.27.0"`, `"` + strings.Repeat("x", maxManifest) + `"`, "larger"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, c.from, c.to, 1)
			if text == good {
				t.Fatalf("%q is not in the manifest", c.from)
			}
			_, err := ParseManifest(strings.NewReader(text))
			if !errors.Is(err, ErrManifest) {
				t.Fatalf("error %v, want ErrManifest", err)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q does not name %q", err, c.says)
			}
		})
	}
}

// FuzzParseManifest: whatever the bytes, no panic, and what is accepted survives a round trip.
func FuzzParseManifest(f *testing.F) {
	f.Add(good)
	f.Add(`{"schema":1,"name":"a","llama_version":"1","source":"system"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseManifest(strings.NewReader(text))
		if err != nil {
			if !errors.Is(err, ErrManifest) {
				t.Fatalf("%v is not ErrManifest", err)
			}
			return
		}
		data, err := m.Encode()
		if err != nil {
			t.Fatalf("accepted, but cannot be written: %v", err)
		}
		if _, err := ParseManifest(strings.NewReader(string(data))); err != nil {
			t.Fatalf("accepted, but not after a round trip: %v", err)
		}
	})
}
