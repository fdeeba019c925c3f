// Package apitest has a fake of api.Models for tests of the HTTP adapters. It may be used from any goroutine.
package apitest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hearth/engine"
	"hearth/server/api"
)

// Models serves the given models. All of them count as loaded.
type Models struct {
	// OnAcquire, when set, is called before a model is handed out; its error is returned instead.
	OnAcquire func(ctx context.Context, name string) error

	mu     sync.Mutex
	models map[string]engine.Model
	states []api.Status // replaces what Loaded reports when not nil
	held   int
}

// New makes a Models of the given models, by their Info().Name.
func New(models ...engine.Model) *Models {
	m := &Models{models: make(map[string]engine.Model)}
	for _, model := range models {
		m.Add(model)
	}
	return m
}

// Add makes another model known, by its present Info().Name.
func (m *Models) Add(model engine.Model) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.models[model.Info().Name] = model
}

// SetLoaded makes Loaded report states.
func (m *Models) SetLoaded(states ...api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states = append([]api.Status{}, states...)
}

// Held is the number of models that were acquired and not released.
func (m *Models) Held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

// Acquire implements api.Models.
func (m *Models) Acquire(ctx context.Context, name string) (engine.Model, func(), error) {
	if m.OnAcquire != nil {
		if err := m.OnAcquire(ctx, name); err != nil {
			return nil, nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	model, ok := m.models[name]
	if !ok {
		return nil, nil, notFound(name)
	}
	m.held++
	var once sync.Once
	return model, func() {
		once.Do(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.held--
		})
	}, nil
}

func notFound(name string) error {
	return &engine.Error{Kind: engine.KindNotFound, Field: "model", Message: "there is no model " + strconv.Quote(name), Hint: "hearth list shows the models there are"}
}

// List implements api.Models.
func (m *Models) List(context.Context) ([]api.ModelEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []api.ModelEntry
	for name, model := range m.models {
		info := model.Info()
		out = append(out, api.ModelEntry{
			Name: name, Created: time.Unix(1_700_000_000, 0), SizeBytes: info.SizeBytes, Architecture: info.Architecture,
			Quantization: "F32", Params: info.Params, ContextTrain: info.ContextTrain, Capabilities: []string{"completion"},
		})
	}
	slices.SortFunc(out, func(a, b api.ModelEntry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Loaded implements api.Models.
func (m *Models) Loaded() []api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states != nil {
		return slices.Clone(m.states)
	}
	var out []api.Status
	for name, model := range m.models {
		out = append(out, api.Status{Name: name, State: api.StateReady, Progress: 1, Info: model.Info(), Stats: model.Stats(), PID: 4242})
	}
	slices.SortFunc(out, func(a, b api.Status) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Fallback implements api.Models: what SetLoaded said.
func (m *Models) Fallback(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.states {
		if s.Name == name {
			return s.FallbackReason
		}
	}
	return ""
}

// Stop implements api.Models.
func (m *Models) Stop(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.models[name]; !ok {
		return notFound(name)
	}
	delete(m.models, name)
	return nil
}
