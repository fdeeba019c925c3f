package main

import (
	"cmp"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"hearth/engine"
)

// TestLayoutOnGPU runs unshared clients on a real GPU and shows what the choice of the KV layout does. It needs a model
// ($HEARTH_TEST_GPU_MODEL) and a machine with a GPU that the bundle's Vulkan plugin sees.
func TestLayoutOnGPU(t *testing.T) {
	path := os.Getenv("HEARTH_TEST_GPU_MODEL")
	if path == "" {
		t.Skip("HEARTH_TEST_GPU_MODEL names no model")
	}
	var env []string
	if icd := os.Getenv("VK_DRIVER_FILES"); icd != "" {
		env = append(env, "VK_DRIVER_FILES="+icd)
	}
	if n := os.Getenv("GGML_VK_VISIBLE_DEVICES"); n != "" { // names a software driver, which is not taken otherwise
		env = append(env, "GGML_VK_VISIBLE_DEVICES="+n)
	}
	for _, layout := range strings.Split(cmp.Or(os.Getenv("HEARTH_TEST_GPU_LAYOUTS"), "unified,streams,auto"), ",") {
		began := time.Now()
		m, p := load(t, engine.LoadSpec{
			Path: path, Backend: "vulkan", GPULayers: -1, KVLayout: layout, Context: 2048, Cells: 16 * 2048, MaxSequences: 16,
		}, env...)
		t.Logf("%s: loaded in %s on %s, layout %s", layout, time.Since(began).Round(time.Millisecond), m.Info().Device.Description, m.Info().KVLayout)
		for round := range 4 {
			began := time.Now()
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					a, err := ask(t.Context(), m, greedy(words(512, round*16+i), 256))
					if err != nil || len(a.tokens[0]) != 256 {
						t.Errorf("%d tokens, %v", len(a.tokens[0]), err)
					}
				})
			}
			wg.Wait()
			t.Logf("%s, round %d: 16 clients, %.0f tokens/s", layout, round, 16*256/time.Since(began).Seconds())
		}
		for line := range strings.Lines(p.Status()[0].Stderr) {
			if strings.Contains(line, "layout") || strings.Contains(line, "slow step") {
				t.Log(strings.TrimSpace(line))
			}
		}
		p.Close()
	}
}
