package llama_test

import (
	"errors"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

// The same greedy prompt gives the same 32 tokens on the CPU and through
// Vulkan. LogitScale makes the choices clear, so that rounding does not decide.
func TestVulkanAgreesWithCPU(t *testing.T) {
	if vulkanSkip != "" {
		t.Skip(vulkanSkip)
	}
	path := toyPath(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 3, LogitScale: 8})
	gen := func(p llama.ModelParams) []llama.Token {
		t.Helper()
		m, err := rt.LoadModel(t.Context(), path, p)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		c, err := m.NewContext(llama.ContextParams{Ctx: 256, Batch: 64, KVUnified: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b := newBatch(t, 64, 1)
		in := prompt(40, 1)
		tok := llama.Argmax(feed(t, c, b, 0, 0, in))
		out := []llama.Token{tok}
		for i := range 31 {
			tok = llama.Argmax(feed(t, c, b, 0, len(in)+i, []llama.Token{tok}))
			out = append(out, tok)
		}
		return out
	}
	cpu := gen(llama.ModelParams{})
	gpu := gen(llama.ModelParams{Devices: []string{"Vulkan0"}, GPULayers: -1})
	for i := range cpu {
		if cpu[i] != gpu[i] {
			t.Fatalf("token %d differs:\nCPU    %v\nVulkan %v", i, cpu, gpu)
		}
	}
}

// The HIP plugin loads where there is no AMD GPU, shows no device, and asking
// for one is a typed error.
func TestHIPWithoutDevice(t *testing.T) {
	if hipSkip != "" {
		t.Skip(hipSkip)
	}
	devs, err := rt.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devs {
		if d.Backend == "ROCm" {
			t.Skipf("there is a device: %+v", d)
		}
	}
	path := toyPath(t, toygguf.Spec{Kind: toygguf.Llama, Layers: 2})
	_, err = rt.LoadModel(t.Context(), path, llama.ModelParams{Devices: []string{"ROCm0"}, GPULayers: -1})
	if !errors.Is(err, llama.ErrRange) {
		t.Errorf("a device that is not there: %v", err)
	}
}
