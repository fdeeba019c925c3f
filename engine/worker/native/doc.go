// Package native is the worker's model on llama.cpp: it implements the interfaces of engine/worker with engine/llama.
//
// cmd/hearth-engine makes an Opener from the plugins of its engine bundle and hands it to the service. Sizes that the
// load order leaves open are chosen here, because only here is known what the model and the device are.
//
// Concurrency: as worker.Model says. The vocabulary, Info, NewRow and Abort are for any goroutine, the rest belongs to
// the step loop; engine/llama panics when two goroutines meet in one context.
package native
