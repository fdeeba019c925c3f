// Package openai serves OpenAI's API: chat completions, completions, embeddings and models, and beside them rerank in
// the forms of Jina, Cohere and TEI. It turns wire requests into engine.Requests and events into wire replies; no wire
// type leaves it.
//
// server makes one API and mounts its Routes. All handlers run concurrently; what belongs to one request lives on its
// goroutine.
package openai

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"net/http"
	"time"

	"hearth/engine"
	"hearth/server/api"
	"hearth/server/metrics"
)

// Config is what the API works with. All fields but DefaultModel must be set.
type Config struct {
	Models    api.Models
	Metrics   *metrics.Metrics
	Templates *api.Templates
	// DefaultModel serves requests that name no model; empty: the only model there is.
	DefaultModel string
	Version      string
	Stream       api.StreamOptions
}

// API holds the handlers.
type API struct{ cfg Config }

// New makes the handlers.
func New(cfg Config) *API { return &API{cfg: cfg} }

// Routes lists the handlers and their paths.
func (a *API) Routes() []api.Route {
	return []api.Route{
		{Method: http.MethodPost, Paths: api.WithV1("/chat/completions"), Handler: a.chatCompletions},
		{Method: http.MethodPost, Paths: api.WithV1("/completions"), Handler: a.completions},
		{Method: http.MethodPost, Paths: api.WithV1("/embeddings"), Handler: a.embeddings},
		{Method: http.MethodPost, Paths: api.WithV1("/rerank", "/reranking"), Handler: a.rerank},
		{Method: http.MethodGet, Paths: api.WithV1("/models"), Handler: a.listModels},
		{Method: http.MethodGet, Paths: api.WithV1("/models/*id"), Handler: a.getModel},
	}
}

// acquire returns the model that the request names.
func (a *API) acquire(ctx context.Context, o *api.Object) (engine.Model, func(), error) {
	name := o.Str("model", "")
	if err := o.Err(); err != nil {
		return nil, nil, err
	}
	return api.Acquire(ctx, a.cfg.Models, name, a.cfg.DefaultModel)
}

// newID returns a fresh id such as "chatcmpl-0123456789abcdef01234567".
func newID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// fingerprint names what a seed's repeatability depends on: build, model file, backend and its settings.
func (a *API) fingerprint(info engine.Info) string {
	h := fnv.New64a()
	fmt.Fprintln(h, a.cfg.Version, info.LlamaVersion, info.Path, info.SizeBytes, info.Backend, info.Device.Name, info.Context, info.KVLayout)
	return fmt.Sprintf("fp_%016x", h.Sum64())
}

// head is what all chunks and replies of one request begin with.
type head struct {
	id, model, fingerprint string
	created                time.Time
}

func (a *API) newHead(prefix string, info engine.Info) head {
	return head{id: newID(prefix), model: info.Name, fingerprint: a.fingerprint(info), created: time.Now()}
}

// append appends {"id":...,"object":object,"created":...,"model":...,"system_fingerprint":..., without closing it.
func (h head) append(b []byte, object string) []byte {
	b = append(b, `{"id":"`...)
	b = append(b, h.id...)
	b = append(b, `","object":"`...)
	b = append(b, object...)
	b = fmt.Appendf(b, `","created":%d,"model":`, h.created.Unix())
	b = api.AppendString(b, h.model)
	b = append(b, `,"system_fingerprint":"`...)
	b = append(b, h.fingerprint...)
	return append(b, `",`...)
}
