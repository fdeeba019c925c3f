package template

import (
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/ardanlabs/jinja"
)

// Template is a compiled chat template.
type Template struct {
	source string
	code   *jinja.Template
	budget Budget
	caps   Caps
	stuck  atomic.Int32 // renders given up that still run
}

// Compile parses a template and finds out what it can do. Zero fields of budget take DefaultBudget's values.
func Compile(source string, budget Budget) (t *Template, err error) {
	budget = budget.withDefaults()
	if len(source) > budget.Source {
		return nil, fmt.Errorf("compile chat template: %w", overBudget("bytes of source", budget.Source))
	}
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("compile chat template: the parser panicked: %v", p)
		}
	}()
	rewritten, err := rewrite(source)
	if err != nil {
		return nil, fmt.Errorf("compile chat template: %w", err)
	}
	code, err := jinja.Compile(rewritten)
	if err != nil {
		return nil, fmt.Errorf("compile chat template: %w", err)
	}
	t = &Template{source: source, code: code, budget: budget}
	t.caps = t.probe()
	return t, nil
}

// Caps says what the template can do.
func (t *Template) Caps() Caps { return t.caps }

// Source is the template's text as it was given to Compile.
func (t *Template) Source() string { return t.source }

// Render returns the prompt's text. Errors are *RaisedError when the template refuses the conversation, ErrBudget or
// ErrBusy when it costs too much, and others when the template is broken.
func (t *Template) Render(in Input) (string, error) {
	segments, err := t.Segments(in)
	if err != nil {
		return "", err
	}
	return Join(segments), nil
}

// Join is the text of the segments.
func Join(segments []Segment) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString(s.Text)
	}
	return b.String()
}

// renderAs renders messages, which are already normalised, with the rest of in.
func (t *Template) renderAs(in Input, messages []Message, caps Caps) (string, error) {
	vars := make(map[string]jinja.Value, 8+len(in.Kwargs))
	for name, raw := range in.Kwargs {
		v, err := parseJSON(raw)
		if err != nil {
			return "", fmt.Errorf("template variable %q: %w", name, err)
		}
		vars[name] = v
	}
	list := make([]jinja.Value, len(messages))
	for i, m := range messages {
		list[i] = messageValue(m, caps)
	}
	tools, err := toolsValue(in.Tools)
	if err != nil {
		return "", err
	}
	vars["messages"] = jinja.NewList(list)
	vars["tools"] = tools
	vars["documents"] = jinja.None()
	vars["add_generation_prompt"] = jinja.NewBool(in.AddGenerationPrompt && !in.ContinueFinal)
	vars["bos_token"] = jinja.NewString(in.BOS)
	vars["eos_token"] = jinja.NewString(in.EOS)
	return supervise(&run{budget: t.budget, now: in.Now}, t.code, vars, &t.stuck)
}

// toolsValue is None without tools: templates ask "tools is not none".
func toolsValue(tools []jsontext.Value) (jinja.Value, error) {
	if len(tools) == 0 {
		return jinja.None(), nil
	}
	list := make([]jinja.Value, len(tools))
	for i, raw := range tools {
		v, err := parseJSON(raw)
		if err != nil {
			return jinja.None(), fmt.Errorf("tool %d: %w", i, err)
		}
		list[i] = v
	}
	return jinja.NewList(list), nil
}

// ErrNotAssistant is returned for ContinueFinal when the last message is not an assistant's.
var ErrNotAssistant = errors.New("only an assistant's message can be continued")
