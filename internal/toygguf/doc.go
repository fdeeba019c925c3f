// Package toygguf writes tiny GGUF models with seeded random weights for tests.
//
// It owns the on-disk form of the toys: which metadata keys and tensors each
// architecture needs so that llama.cpp loads it, and a small vocabulary whose
// tokenisation a test can predict. Every package whose tests need a model file
// calls Write; nothing in the product does. Output depends on the Spec alone,
// so two writes of one Spec are the same bytes.
//
// The package keeps no state; Write may be called from any number of
// goroutines as long as their paths differ.
package toygguf
