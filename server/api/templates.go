package api

import (
	"errors"
	"sync"

	"hearth/chat/template"
	"hearth/engine"
)

// maxTemplates bounds the compiled templates that are kept. One is about 1 MB at most; a server has a handful of models.
const maxTemplates = 64

// Templates compiles models' chat templates once. It may be used by any number of goroutines.
type Templates struct {
	fallback string
	budget   template.Budget

	mu    sync.Mutex
	known map[string]*compiled // by source
}

type compiled struct {
	once sync.Once
	tmpl *template.Template
	err  error
}

// NewTemplates makes an empty cache. fallback is used for models without a template; empty: they are refused.
func NewTemplates(fallback string, budget template.Budget) *Templates {
	return &Templates{fallback: fallback, budget: budget, known: make(map[string]*compiled)}
}

// For returns the chat template of the model. A model without one, or with a broken one, is an *engine.Error of
// KindUnsupported.
func (t *Templates) For(info engine.Info) (*template.Template, error) {
	source := info.ChatTemplate
	if source == "" {
		source = t.fallback
	}
	if source == "" {
		return nil, &engine.Error{
			Kind: engine.KindUnsupported, Field: "model", Message: "model " + info.Name + " has no chat template",
			Hint: "use /v1/completions, or configure server.fallback_template",
		}
	}
	t.mu.Lock()
	c, ok := t.known[source]
	if !ok {
		if len(t.known) >= maxTemplates {
			clear(t.known)
		}
		c = &compiled{}
		t.known[source] = c
	}
	t.mu.Unlock()
	c.once.Do(func() { c.tmpl, c.err = template.Compile(source, t.budget) })
	if c.err != nil {
		return nil, &engine.Error{Kind: engine.KindUnsupported, Field: "model", Message: "the chat template of model " + info.Name + " does not compile", Cause: c.err}
	}
	return c.tmpl, nil
}

// RenderError says what a failed render means for the client.
func RenderError(err error) error {
	if raised, ok := errors.AsType[*template.RaisedError](err); ok {
		e := BadField("messages", "are refused by the model's chat template: "+raised.Message)
		e.Cause = err
		return e
	}
	switch {
	case errors.Is(err, template.ErrBusy):
		return &engine.Error{Kind: engine.KindOverloaded, Message: "chat templates take too long to render", Cause: err}
	case errors.Is(err, template.ErrNotAssistant):
		return BadField("continue_final_message", "needs a last message of role assistant")
	}
	e := BadField("messages", "cannot be rendered by the model's chat template: "+err.Error())
	e.Cause = err
	return e
}
