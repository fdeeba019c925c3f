package engine

import (
	"fmt"
	"slices"
	"time"
)

// LoadSpec says which file to load and how. The supervisor sends it to a fresh worker.
type LoadSpec struct {
	// Name is what clients call the model; Path is its GGUF file (the first part of a split one).
	Name, Path string
	// Backend is "hip", "vulkan" or "cpu"; Device is the backend's device name ("ROCm0"), empty for its only one.
	Backend, Device string
	// WantPCI, when set, is the PCI id the device must report after load; a mismatch refuses the start.
	WantPCI string
	// GPULayers is how many layers to offload; negative: all. Ignored by the CPU backend.
	GPULayers int
	// Context is tokens for one sequence (0: the model's own, capped at DefaultContext); Cells is the KV pool for all
	// sequences (0: Context times a small factor chosen by the worker and rounded to 256).
	Context, Cells int
	// MaxSequences bounds requests that decode at the same time (0: DefaultMaxSequences).
	MaxSequences int
	// Chunk is n_batch and n_ubatch: the largest number of tokens in one step (0: 512).
	Chunk int
	// Threads for decode steps (0: physical cores, or 1 when all layers are offloaded).
	Threads int
	// FlashAttention is "auto", "on" or "off"; KVType names ggml types for K and V ("f16", "q8_0"); empty: auto, f16.
	FlashAttention, KVTypeK, KVTypeV string
	// KVLayout is "auto", "unified" or "streams".
	KVLayout string
	// MMap maps the file instead of reading it; MLock pins it.
	MMap, MLock bool
	// Mode is "chat" (default), "embedding" or "rerank".
	Mode string
	// Pooling overrides the model's pooling for embeddings: "", "none", "mean", "cls", "last", "rank".
	Pooling string
	// ITLTarget bounds the time between tokens of running requests while others prefill (0: 50 ms or 2.5 x a decode-only step).
	ITLTarget time.Duration
	// QueueLimit bounds waiting requests (0: DefaultQueueLimit).
	QueueLimit int
	// TenantCache keeps prefixes of different tenants apart.
	TenantCache bool
	// HostCache is the most host memory that cached prefixes may move to, in bytes; 0: none. Negative: the worker chooses.
	HostCache int64
	// WindowCache is how many cells the layers with a sliding window keep: all of them ("full"), which lets prefixes of any length be
	// reused, or one window for each sequence ("window"), which takes less memory; "auto": the worker chooses.
	WindowCache string
	// CPUBLAS is whether prompts of models on the CPU are multiplied by the bundle's BLAS library: "auto": where that was measured to
	// be faster, "on" or "off". Ignored by other backends.
	CPUBLAS string
	// LoRA adapters applied to every request.
	LoRA []LoRA
}

// LoRA is an adapter file and its scale.
type LoRA struct {
	Path  string
	Scale float32
}

// Defaults of LoadSpec.
const (
	DefaultContext      = 8192
	DefaultMaxSequences = 32
	DefaultChunk        = 512
	DefaultQueueLimit   = 512
)

// Validate names the first bad field.
func (s *LoadSpec) Validate() error {
	switch {
	case s.Path == "":
		return Invalid("path", "must name a GGUF file")
	case s.Context < 0 || s.Cells < 0 || s.Chunk < 0 || s.Threads < 0 || s.QueueLimit < 0:
		return Invalid("context", "and the other sizes must not be negative")
	case s.MaxSequences < 0 || s.MaxSequences > 255:
		return Invalid("max_sequences", "must be between 0 and 255 (llama.cpp's limit is 256)")
	}
	oneOf := []struct {
		field, v string
		allowed  []string
	}{
		{"backend", s.Backend, []string{"", "hip", "vulkan", "cpu"}},
		{"flash_attention", s.FlashAttention, []string{"", "auto", "on", "off"}},
		{"kv_layout", s.KVLayout, []string{"", "auto", "unified", "streams"}},
		{"window_cache", s.WindowCache, []string{"", "auto", "full", "window"}},
		{"cpu_blas", s.CPUBLAS, []string{"", "auto", "on", "off"}},
		{"mode", s.Mode, []string{"", "chat", "embedding", "rerank"}},
		{"pooling", s.Pooling, []string{"", "none", "mean", "cls", "last", "rank"}},
	}
	for _, c := range oneOf {
		if !slices.Contains(c.allowed, c.v) {
			return Invalid(c.field, fmt.Sprintf("is %q, must be one of %q", c.v, c.allowed[1:]))
		}
	}
	return nil
}
