package api

import (
	"fmt"
	"slices"
)

// Get returns the named member; a null one is absent.
func (o *Object) Get(name string) (Value, bool) {
	for _, m := range slices.Backward(o.members) {
		if m.name == name {
			v := Value{Path: o.at(name), Raw: m.value}
			return v, !v.IsNull()
		}
	}
	return Value{}, false
}

// First returns the first of the named members that is present, for fields with aliases.
func (o *Object) First(names ...string) (Value, bool) {
	for _, name := range names {
		if v, ok := o.Get(name); ok {
			return v, true
		}
	}
	return Value{}, false
}

// Has reports whether the named member is there and not null.
func (o *Object) Has(name string) bool {
	_, ok := o.Get(name)
	return ok
}

// Each calls f for every member in the order of the body, nulls included.
func (o *Object) Each(f func(name string, v Value)) {
	for _, m := range o.members {
		f(m.name, Value{Path: o.at(m.name), Raw: m.value})
	}
}

func (o *Object) at(name string) string {
	if o.path == "" {
		return name
	}
	return o.path + "." + name
}

// Err returns the first error of the getters.
func (o *Object) Err() error { return o.err }

// Fail records err unless one is recorded already; nil is ignored.
func (o *Object) Fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

// Str returns a string member, or def when it is absent.
func (o *Object) Str(name, def string) string { return get(o, name, def, Value.Str) }

// Bool returns a boolean member, or def when it is absent.
func (o *Object) Bool(name string, def bool) bool { return get(o, name, def, Value.Bool) }

// Int returns an integer member within [low, high], or def when it is absent.
func (o *Object) Int(name string, def, low, high int64) int64 {
	i := get(o, name, def, Value.Int)
	if o.Has(name) && o.err == nil && (i < low || i > high) {
		o.Fail(BadField(o.at(name), fmt.Sprintf("must be between %d and %d, got %d", low, high, i)))
		return def
	}
	return i
}

// Float returns a number member within [low, high], or def when it is absent.
func (o *Object) Float(name string, def float32, low, high float64) float32 {
	f := get(o, name, float64(def), Value.Float)
	if o.Has(name) && o.err == nil && (f < low || f > high) {
		o.Fail(BadField(o.at(name), fmt.Sprintf("must be between %g and %g, got %g", low, high, f)))
		return def
	}
	return float32(f)
}

// Object returns an object member, or nil when it is absent or wrong.
func (o *Object) Object(name string) *Object { return get(o, name, nil, Value.Object) }

func get[T any](o *Object, name string, def T, read func(Value) (T, error)) T {
	v, ok := o.Get(name)
	if !ok {
		return def
	}
	t, err := read(v)
	if err != nil {
		o.Fail(err)
		return def
	}
	return t
}
