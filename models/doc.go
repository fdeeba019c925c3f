// Package models is the store of model weights: which models are here, under which names, in which files.
//
// Weights are plain GGUF files. Each model has a folder below the store's root, named like the model, with its files
// and a manifest:
//
//	<root>/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
//	<root>/smollm2/hearth.json
//	<root>/bartowski/Qwen3-8B-GGUF@Q4_K_M/...      (the model bartowski/Qwen3-8B-GGUF:Q4_K_M)
//
// A model added from a local path has only a manifest; its files stay where they are.
//
// cmd/hearth and models/hub call it. A Store may be used from any goroutine, and several processes may share a root:
// changes take a lock file, manifests and files appear by rename, so readers need no lock.
package models
