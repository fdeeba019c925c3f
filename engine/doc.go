// Package engine holds hearth's inference domain: what a request for tokens is, which events answer it, what a
// loaded model can say about itself, and the errors that may come back. It has values and one interface (Model),
// and no behaviour beyond validation.
//
// The front end (server) builds Requests and consumes Streams; engine/supervisor implements Model by talking to a
// worker process; engine/worker turns Requests into llama.cpp steps. None of them shares state through this package:
// every type here is a plain value, safe to copy, and safe for concurrent reads. A Stream belongs to one goroutine.
package engine
