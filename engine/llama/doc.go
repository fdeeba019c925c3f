// Package llama is hearth's binding to llama.cpp: the only package that uses
// cgo. It owns the C++ shim, every handle llama.cpp gives out, and the guards
// that keep a wrong argument from reaching an assertion that would abort the
// process. Policy (what to decode, whom to evict) lives above it, in
// engine/batch and engine/worker, which is its only caller in the product.
//
// The objects form a tree:
//
//	Runtime            the library: plugins, devices, log (one per process)
//	  Model            weights, vocabulary, metadata
//	    Context        KV memory and compute buffers
//	    Adapter        LoRA weights for the model's contexts
//	    Grammar        GBNF automaton over the model's vocabulary
//	  Batch            input rows of one step, in C memory
//	  Sampler, Row     the fused sampling kernel and one request's settings
//
// Concurrency: Runtime and Model may be used from any number of goroutines. A
// Context, and what is set on it, belongs to one goroutine at a time, which for
// a worker should be locked to its OS thread (GNU OpenMP keeps one team of
// threads per calling thread); overlapping calls panic, Context.Abort excepted.
// Batch, Row and Grammar are plain values to be used by one goroutine at
// a time; different ones may be used in parallel.
//
// Memory: what C keeps, C allocates. Logits rows and embeddings are views of
// the context's memory, valid until its next Decode, Step or Close. Every
// handle has an idempotent Close; a handle collected without one is logged with
// the place it was opened.
package llama

// #cgo pkg-config: hearth-engine
// #cgo CFLAGS: -O3 -Wall -Wextra
// #cgo CXXFLAGS: -std=c++17 -O2 -Wall -Wextra
// #cgo LDFLAGS: -ldl -lpthread -lm -Wl,--wrap=pthread_create
// #cgo noescape hs_step
// #cgo nocallback hs_step
// #cgo noescape hs_decode
// #cgo nocallback hs_decode
// #cgo noescape hs_sync
// #cgo nocallback hs_sync
// #cgo noescape hs_seq_rm
// #cgo nocallback hs_seq_rm
// #cgo noescape hs_seq_cp
// #cgo nocallback hs_seq_cp
// #cgo noescape hs_pos_min
// #cgo nocallback hs_pos_min
// #cgo noescape hs_pos_max
// #cgo nocallback hs_pos_max
// #cgo noescape hs_sample
// #cgo nocallback hs_sample
// #cgo noescape hs_chain_accept
// #cgo nocallback hs_chain_accept
// #cgo noescape hs_grammar_check
// #cgo nocallback hs_grammar_check
// #cgo noescape hs_grammar_accept
// #cgo nocallback hs_grammar_accept
// #include "shim.h"
// #include "sampler.h"
import "C"

// Token is an id in a model's vocabulary; Pos a position in a sequence; SeqID
// the number of a sequence in a context. They are aliases so that callers can
// hold them without importing this package.
type (
	Token = int32
	Pos   = int32
	SeqID = int32
)

// NullToken stands for "no such token" (a vocabulary without EOT, say).
const NullToken Token = -1
