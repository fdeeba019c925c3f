package llama_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

func blasPlugin(t *testing.T) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(rt.CPUPlugin()), "libggml-blas.so")
	if _, err := os.Stat(path); err != nil {
		t.Skip("the bundle has no BLAS plugin")
	}
	return path
}

func TestMeasureBLAS(t *testing.T) {
	plugin := blasPlugin(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path := toyPath(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 2, Embd: 256, Heads: 4, HeadsKV: 2, FF: 768})
	g, err := rt.MeasureBLAS(plugin, path, 1)
	if err != nil {
		t.Fatal(err)
	}
	// Q and output, K and V, gate and up, down; the toy's weights are F32, of which no float copy is made.
	if !slices.Equal(g.Types, []string{"f32"}) || g.Shapes != 4 || g.Measured != 4 || g.Buffer != 0 {
		t.Errorf("gain %+v", g)
	}
	if g.CPU <= 0 || g.BLAS <= 0 || g.Share() <= 0 {
		t.Errorf("times %+v", g)
	}
	devices, err := rt.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(devices, func(d llama.Device) bool { return d.Type == llama.DeviceAccel }) {
		t.Errorf("measuring registered the device: %+v", devices)
	}
}

func TestMeasureBLASRefuses(t *testing.T) {
	plugin := blasPlugin(t)
	good := toyPath(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 2})
	bad := filepath.Join(t.TempDir(), "bad.gguf")
	if err := os.WriteFile(bad, []byte("GGUF, but no more than that"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"/nowhere/libggml-blas.so", good}, {plugin, bad}, {plugin, "/nowhere/model.gguf"}, {"/lib/x86_64-linux-gnu/libm.so.6", good}} {
		if _, err := rt.MeasureBLAS(c[0], c[1], 1); !errors.Is(err, llama.ErrPlugin) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if (llama.BLASGain{}).Share() != 1 {
		t.Error("nothing measured counts as a gain")
	}
}
