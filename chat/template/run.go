package template

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ardanlabs/jinja"
)

// MaxAbandoned is how many renders of one template that overran their time may still be running.
const MaxAbandoned = 8

// run is the state of one render. Only the goroutine that renders touches it, until done is closed.
type run struct {
	budget   Budget
	now      time.Time
	deadline time.Time

	steps, depth, output int
	err                  error // the first refusal; the evaluator may have wrapped it
}

// globals returns the hooks and functions that templates see, bound to r.
func (r *run) globals() map[string]jinja.Value {
	fn := func(name string, f func(args []jinja.Value) (jinja.Value, error)) jinja.Value {
		return jinja.NewCallable(name, func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) { return f(args) })
	}
	none := jinja.None()
	return map[string]jinja.Value{
		hookStep: fn(hookStep, func(args []jinja.Value) (jinja.Value, error) {
			if len(args) == 2 && args[1].IsInt() && args[1].AsInt() > int64(r.budget.Depth) {
				return none, r.fail(overBudget("nested calls", r.budget.Depth))
			}
			return none, r.step(1, weight(args))
		}),
		hookEnter: fn(hookEnter, func(args []jinja.Value) (jinja.Value, error) {
			if r.depth++; r.depth > r.budget.Depth {
				return none, r.fail(overBudget("nested calls", r.budget.Depth))
			}
			return none, r.step(1, weight(args))
		}),
		hookLeave: fn(hookLeave, func([]jinja.Value) (jinja.Value, error) {
			r.depth--
			return none, nil
		}),
		hookOut:           fn(hookOut, func(args []jinja.Value) (jinja.Value, error) { return r.value(args) }),
		hookSet:           fn(hookSet, func(args []jinja.Value) (jinja.Value, error) { return r.value(args) }),
		hookAttr:          fn(hookAttr, r.attribute),
		hookCopy:          fn(hookCopy, func(args []jinja.Value) (jinja.Value, error) { return r.copyValue(first(args), 0) }),
		"range":           fn("range", r.rangeOf),
		"raise_exception": fn("raise_exception", r.raise),
		"strftime_now": fn("strftime_now", func(args []jinja.Value) (jinja.Value, error) {
			format := "%Y-%m-%d"
			if v := first(args); v.IsString() {
				format = v.AsString()
			}
			return jinja.NewString(strftime(r.now, format)), nil
		}),
	}
}

func weight(args []jinja.Value) int {
	if v := first(args); v.IsInt() {
		return int(v.AsInt())
	}
	return 0
}

func first(args []jinja.Value) jinja.Value {
	if len(args) == 0 {
		return jinja.Undefined()
	}
	return args[0]
}

func (r *run) fail(err error) error {
	if r.err == nil {
		r.err = err
	}
	return r.err
}

// step accounts for n steps and text bytes of output. The clock is read every 64 steps.
func (r *run) step(n, text int) error {
	before := r.steps
	r.steps += n
	r.output += text
	switch {
	case r.steps > r.budget.Steps:
		return r.fail(overBudget("steps", r.budget.Steps))
	case r.output > r.budget.Output:
		return r.fail(overBudget("bytes of text", r.budget.Output))
	case before>>6 != r.steps>>6 && time.Now().After(r.deadline):
		return r.fail(overBudget("of wall time", r.budget.Time))
	}
	return nil
}

// value accounts for a value that is printed or assigned, and returns it.
func (r *run) value(args []jinja.Value) (jinja.Value, error) {
	v, text := first(args), 0
	if v.IsString() {
		text = len(v.AsString())
	}
	return v, r.step(1, text)
}

// attribute checks that a value assigned to a namespace's attribute does not hold the namespace.
func (r *run) attribute(args []jinja.Value) (jinja.Value, error) {
	if len(args) != 2 {
		return jinja.Undefined(), r.fail(errors.New("an assignment to an attribute needs a value"))
	}
	if args[0].IsDict() {
		nodes := 0
		if r.holds(args[1], args[0].AsDict(), 0, &nodes) {
			return jinja.Undefined(), r.fail(errors.New("a namespace cannot hold itself"))
		}
		if err := r.step(nodes/16, 0); err != nil {
			return jinja.Undefined(), err
		}
	}
	return args[1], r.step(1, 0)
}

// holds looks for the dict in v, counting the values it visits. A value that is deeper than any JSON that came in
// counts as holding it.
func (r *run) holds(v jinja.Value, dict *jinja.Dict, depth int, nodes *int) bool {
	if *nodes++; depth > maxValueDepth || *nodes > r.budget.Steps*16 {
		return true
	}
	switch {
	case v.IsList():
		for _, item := range v.AsList().Items {
			if r.holds(item, dict, depth+1, nodes) {
				return true
			}
		}
	case v.IsDict():
		d := v.AsDict()
		if d == dict {
			return true
		}
		for _, item := range d.Data {
			if r.holds(item, dict, depth+1, nodes) {
				return true
			}
		}
	}
	return false
}

// copyValue copies lists and dicts, so that what is put into a list cannot be the list.
func (r *run) copyValue(v jinja.Value, depth int) (jinja.Value, error) {
	if err := r.step(1, 0); err != nil {
		return v, err
	}
	if depth > maxValueDepth {
		return v, r.fail(overBudget("levels in a value", maxValueDepth))
	}
	switch {
	case v.IsList():
		items := make([]jinja.Value, 0, v.AsList().Len())
		for _, item := range v.AsList().Items {
			c, err := r.copyValue(item, depth+1)
			if err != nil {
				return v, err
			}
			items = append(items, c)
		}
		return jinja.NewList(items), nil
	case v.IsDict():
		out := jinja.NewDict()
		for _, key := range v.AsDict().Keys {
			c, err := r.copyValue(v.AsDict().Data[key], depth+1)
			if err != nil {
				return v, err
			}
			out.AsDict().Set(key, c)
		}
		return out, nil
	}
	return v, nil
}

// rangeOf is Python's range, refused when it is longer than the steps that are left.
func (r *run) rangeOf(args []jinja.Value) (jinja.Value, error) {
	bounds := [3]int64{0, 0, 1}
	for i, v := range args {
		if i > 2 || !v.IsInt() {
			return jinja.Undefined(), r.fail(errors.New("range needs one to three integers"))
		}
		bounds[i] = v.AsInt()
	}
	switch len(args) {
	case 0:
		return jinja.Undefined(), r.fail(errors.New("range needs one to three integers"))
	case 1:
		bounds[0], bounds[1] = 0, bounds[0]
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if step == 0 {
		return jinja.Undefined(), r.fail(errors.New("range's step must not be zero"))
	}
	var items []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if err := r.step(len(items)&1, 0); err != nil { // half a step each: the loop over it counts again
			return jinja.Undefined(), err
		}
		items = append(items, jinja.NewInt(i))
		if next := i + step; (next > i) != (step > 0) {
			break // beyond the integers
		}
	}
	return jinja.NewList(items), nil
}

func (r *run) raise(args []jinja.Value) (jinja.Value, error) {
	message := "no reason given"
	if v := first(args); v.IsString() {
		message = v.AsString()
	}
	return jinja.Undefined(), r.fail(&RaisedError{message})
}

// execute renders code with vars on the calling goroutine.
func (r *run) execute(code *jinja.Template, vars map[string]jinja.Value) (text string, err error) {
	defer func() {
		if p := recover(); p != nil {
			text, err = "", fmt.Errorf("the chat template made the evaluator panic: %v", p)
		}
	}()
	for name, v := range r.globals() {
		vars[name] = v
	}
	text, err = code.RenderValues(vars)
	switch {
	case r.err != nil:
		return "", r.err
	case err != nil:
		return "", fmt.Errorf("render chat template: %w", err)
	case len(text) > r.budget.Output:
		return "", overBudget("bytes of text", r.budget.Output)
	}
	return text, nil
}

// outcome says who was first: the render's end or its time budget.
type outcome = int32

const (
	running outcome = iota
	finished
	abandoned
)

// supervise runs r on a goroutine of its own and waits for it no longer than its time budget. stuck counts the
// goroutines that are left behind; while MaxAbandoned of them live, new renders are refused.
func supervise(r *run, code *jinja.Template, vars map[string]jinja.Value, stuck *atomic.Int32) (string, error) {
	if stuck.Load() >= MaxAbandoned {
		return "", ErrBusy
	}
	type result struct {
		text string
		err  error
	}
	done := make(chan result, 1)
	var state atomic.Int32
	timer := time.NewTimer(r.budget.Time + graceTime)
	defer timer.Stop()
	r.deadline = time.Now().Add(r.budget.Time)
	go func() {
		text, err := r.execute(code, vars)
		done <- result{text, err}
		if !state.CompareAndSwap(running, finished) {
			stuck.Add(-1)
		}
	}()
	select {
	case res := <-done:
		return res.text, res.err
	case <-timer.C:
	}
	if state.CompareAndSwap(running, abandoned) {
		stuck.Add(1)
		return "", overBudget("of wall time", r.budget.Time)
	}
	res := <-done
	return res.text, res.err
}

// graceTime lets a render that checks its own deadline report it before it is given up.
const graceTime = 100 * time.Millisecond
