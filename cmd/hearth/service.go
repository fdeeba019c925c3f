package main

import (
	"cmp"
	"context"

	"hearth/engine"
	"hearth/engine/supervisor"
	"hearth/models"
	"hearth/models/gguf"
	"hearth/server/api"
)

// service is the server's view of the store and the worker pool. It may be called from any goroutine.
type service struct {
	store *models.Store
	pool  *supervisor.Pool
	// passed says which better backends were passed over when the model was placed, and how often; nil: none.
	passed func(model string) (reason string, count int)
}

// Acquire implements api.Models.
func (s *service) Acquire(ctx context.Context, name string) (engine.Model, func(), error) {
	return s.pool.Acquire(ctx, name)
}

// List implements api.Models.
func (s *service) List(context.Context) ([]api.ModelEntry, error) {
	all, _, err := s.store.List()
	if err != nil {
		return nil, err
	}
	out := make([]api.ModelEntry, 0, len(all))
	for _, e := range all {
		caps, ok := capabilities(e.Summary)
		if !ok {
			continue // Acquire would refuse it
		}
		out = append(out, api.ModelEntry{
			Name: e.Name, Aliases: e.Aliases, Created: e.Added, SizeBytes: uint64(e.Size()), Digest: e.Files[0].SHA256,
			Source: e.Source, Architecture: e.Summary.Architecture, Quantization: e.Summary.Quantization,
			Params: e.Summary.Parameters, ContextTrain: int(e.Summary.ContextLength), Capabilities: caps,
		})
	}
	return out, nil
}

func capabilities(s gguf.Summary) (caps []string, ok bool) {
	switch s.Kind {
	case gguf.KindChat:
		return []string{"completion"}, true
	case gguf.KindEmbedding:
		return []string{"embedding"}, true
	case gguf.KindRerank:
		return []string{"rerank"}, true
	}
	return nil, false
}

// Loaded implements api.Models.
func (s *service) Loaded() []api.Status {
	all := s.pool.Status()
	out := make([]api.Status, 0, len(all))
	for _, st := range all {
		a := api.Status{
			Name: st.Name, Progress: st.Progress, PID: st.PID, Restarts: st.Restarts, LoadedAt: st.Since,
			ExpiresAt: st.Expires, FallbackReason: st.Fallback, Fallbacks: st.Fallbacks,
		}
		if s.passed != nil {
			reason, count := s.passed(st.Name)
			a.Fallbacks += count
			a.FallbackReason = cmp.Or(a.FallbackReason, reason)
		}
		switch st.State {
		case supervisor.StateReady:
			a.State, a.Info, a.Stats = api.StateReady, st.Info, st.Stats
			if a.Stats.CellsTotal == 0 { // no step yet
				a.Stats.CellsTotal = st.Info.Cells
			}
		case supervisor.StateStopping:
			a.State = api.StateStopping
		case supervisor.StateFailed:
			a.State, a.Err = api.StateFailed, st.LastError
		default: // loading, or loading again after a crash
			a.State = api.StateLoading
		}
		if e, err := s.store.Get(st.Name); err == nil {
			a.Digest = e.Files[0].SHA256
		}
		out = append(out, a)
	}
	return out
}

// Fallback implements api.Models.
func (s *service) Fallback(name string) string {
	if why := s.pool.Fallback(name); why != "" || s.passed == nil {
		return why
	}
	reason, _ := s.passed(name)
	return reason
}

// Stop implements api.Models.
func (s *service) Stop(_ context.Context, name string) error { return s.pool.Stop(name) }
