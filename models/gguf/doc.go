// Package gguf reads the header of GGUF model files: what a model is, how large it is, what it can do.
//
// A file comes from the network or from a half-finished copy, so no size field in it is believed. Check walks the
// header with a bounded reader and refuses what the bytes of the file cannot hold; only a file that passed is handed
// to github.com/gpustack/gguf-parser-go, which knows the metadata keys of every architecture and estimates memory.
// Tensor data is never read.
//
// models, models/fit and models/hub call it. All functions are safe for concurrent use; a File is immutable.
package gguf
