// Package enginepb is the protocol between the front end and a worker process: the generated messages and service of
// worker.proto, and the conversions between them and the domain types of package engine.
//
// engine/supervisor speaks the client side, engine/worker the server side; nothing else imports it, so that wire types
// reach neither the HTTP handlers nor the scheduler. The conversions are pure functions: they may be called from any
// goroutine and share slices with their argument, which must not change afterwards.
package enginepb

import "time"

// The generators come from the packages protobuf-compiler, protoc-gen-go and protoc-gen-go-grpc of Debian 12.
//
//go:generate protoc -I ../.. --go_out=../.. --go_opt=module=hearth --go-grpc_out=../.. --go-grpc_opt=module=hearth engine/enginepb/worker.proto

// ExitBackendFault is hearth-engine's exit code when llama.cpp reported a compute or allocation failure
// (llama_decode below -1). The backend's state is unknown afterwards, so the worker leaves and a fresh one starts.
const ExitBackendFault = 81

// MaxMessageBytes bounds one message in either direction. The largest are a 128k-token prompt (1 MiB of text) and an
// embedding reply of 2048 inputs with 4096 values (32 MiB).
const MaxMessageBytes = 64 << 20

// ListeningLine is what a worker prints on stdout, followed by a newline, once its socket accepts connections.
const ListeningLine = "hearth-engine listening"

// AdmittedPrefix and QueuedPrefix begin lines that a worker prints on stdout, followed by ids of requests (of the
// ClientFrames) with a space between them: that it begins to work on these (to tokenise, or to compute them), or that
// they wait for their turn again. Only what it works on can be to blame for a crash. A line is written before the work:
// what is in a pipe outlives the process, a frame in its buffers does not.
const (
	AdmittedPrefix = "admitted "
	QueuedPrefix   = "queued "
)

// duration converts the wire's nanoseconds.
func duration(ns int64) time.Duration { return time.Duration(ns) }
