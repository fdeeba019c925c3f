// Package worker is the inside of a hearth-engine process: one loaded model, the step loop that runs requests on it, and
// the gRPC service through which the supervisor speaks to it.
//
//	gRPC goroutines            preparing goroutines          the loop (one goroutine, one OS thread)
//	submit, cancel  ---------> tokenise, build samplers ---> inbox -> plan -> decode -> sample -> text -> frame
//	sender <---------------------------------------------------------------- one frame per step and session
//
// What computes is behind the interfaces of backend.go: engine/worker/native implements them with llama.cpp, tests with
// a fake whose tokens depend on every token before them. The decisions are made by engine/batch. This package is pure
// Go; cmd/hearth-engine brings the parts together.
//
// Concurrency: the loop owns the context, the scheduler and every job that it has taken from the inbox. Everything else
// reaches it through the inbox, which never blocks the sender; it reaches everything else through the sessions' frames
// and a few atomics, which never block the loop. The vocabulary is read from any goroutine.
package worker
