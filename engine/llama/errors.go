package llama

// #include "shim.h"
import "C"

import (
	"errors"
	"strconv"
)

// Sentinels for errors.Is. Every failure of this package is an *Error that
// wraps one of them, except context errors from a cancelled load.
var (
	ErrClosed      = errors.New("handle is closed")
	ErrInUse       = errors.New("handle is still in use")
	ErrRange       = errors.New("argument out of range")
	ErrUnsupported = errors.New("not supported by this model or context")

	ErrPlugin    = errors.New("plugin cannot be loaded")
	ErrGPUPlugin = errors.New("another GPU plugin is loaded in this process")
	ErrModelLoad = errors.New("model cannot be loaded")
	ErrContext   = errors.New("context cannot be created")
	ErrAdapter   = errors.New("adapter cannot be loaded")

	ErrBatchFull    = errors.New("batch is full")
	ErrInvalidBatch = errors.New("invalid batch")
	ErrPosition     = errors.New("positions do not continue the sequence")
	ErrNoKVSlot     = errors.New("no room in the KV cache")
	ErrAborted      = errors.New("decode aborted")
	ErrCompute      = errors.New("backend failed to compute")
	ErrOutOfMemory  = errors.New("out of memory")
	ErrException    = errors.New("exception in the engine")
	ErrPoisoned     = errors.New("context is unusable after a backend failure")

	ErrPartial = errors.New("this cache cannot drop part of a sequence")
	ErrState   = errors.New("sequence state cannot be saved or restored")

	ErrTokenize    = errors.New("text cannot be tokenized")
	ErrGrammar     = errors.New("invalid grammar")
	ErrRejected    = errors.New("token does not fit the grammar")
	ErrNoCandidate = errors.New("no token can be sampled")
)

// Error is a failed call: what was tried, which sentinel it is, and the words
// of llama.cpp where it had any.
type Error struct {
	Op    string // "decode", "load model", ...
	Kind  error  // one of this package's sentinels
	Msg   string // detail, may be empty
	Index int    // batch entry the error is about, -1 when it is about none
}

func (e *Error) Error() string {
	s := "llama: " + e.Op + ": " + e.Kind.Error()
	if e.Index >= 0 {
		s += " (entry " + strconv.Itoa(e.Index) + ")"
	}
	if e.Msg != "" {
		s += ": " + e.Msg
	}
	return s
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Kind }

func fail(op string, kind error, msg string) error {
	return &Error{Op: op, Kind: kind, Msg: msg, Index: -1}
}

// shimError turns a shim code into an error; kind is what a plain refusal
// (HS_FAILED) means for this call.
func shimError(op string, kind error, code C.int, e *C.hs_err) error {
	switch code {
	case C.HS_OK:
		return nil
	case C.HS_EXCEPTION:
		kind = ErrException
	case C.HS_NOMEM:
		kind = ErrOutOfMemory
	case C.HS_RANGE:
		kind = ErrRange
	case C.HS_POSITION:
		kind = ErrPosition
	case C.HS_BUSY:
		kind = ErrGPUPlugin
	}
	out := &Error{Op: op, Kind: kind, Index: -1}
	if e != nil {
		out.Msg, out.Index = C.GoString(&e.msg[0]), int(e.index)
	}
	return out
}

// decodeError does the same for the codes of llama_decode.
func decodeError(code C.int, e *C.hs_err) error {
	kind := ErrCompute // -3 and anything not listed
	switch code {
	case 1:
		kind = ErrNoKVSlot
	case 2:
		kind = ErrAborted
	case -1:
		kind = ErrInvalidBatch
	case -2:
		kind = ErrOutOfMemory
	}
	return shimError("decode", kind, code, e)
}
