package template

import (
	"errors"
	"fmt"
	"time"
)

// Budget bounds what compiling and rendering one template may cost. Zero fields take DefaultBudget's values.
type Budget struct {
	Source int           // bytes of template source
	Steps  int           // loop iterations, macro calls, assignments and outputs of one render, copied values included
	Depth  int           // nested macro calls and recursive loops
	Output int           // bytes of text of one render, macros' results counted where they are made and where they are used
	Time   time.Duration // wall time of one render
}

// DefaultBudget leaves room for the largest known templates (17 kB of source, about 20 steps a message) with a thousand
// messages and 10 MB of text, and stops what cannot be meant.
func DefaultBudget() Budget {
	return Budget{Source: 256 << 10, Steps: 2_000_000, Depth: 100, Output: 64 << 20, Time: 5 * time.Second}
}

func (b Budget) withDefaults() Budget {
	def := DefaultBudget()
	fill := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	fill(&b.Source, def.Source)
	fill(&b.Steps, def.Steps)
	fill(&b.Depth, def.Depth)
	fill(&b.Output, def.Output)
	if b.Time == 0 {
		b.Time = def.Time
	}
	return b
}

// Errors of Compile and Render. All are wrapped; test with errors.Is and errors.AsType.
var (
	// ErrBudget is a render or template that is larger than its Budget; the error's text says which part.
	ErrBudget = errors.New("template budget exceeded")
	// ErrBusy is returned while MaxAbandoned renders that ran out of time have not ended yet.
	ErrBusy = errors.New("too many template renders are stuck")
)

// RaisedError is what the template itself refused with, by calling raise_exception.
type RaisedError struct{ Message string }

// Error spells the template's message.
func (e *RaisedError) Error() string { return "the chat template says: " + e.Message }

func overBudget(what string, limit any) error {
	return fmt.Errorf("%w: more than %v %s", ErrBudget, limit, what)
}
