package backends

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
)

// Optional is a value that may be unknown. The zero Optional is unknown; in JSON that is null.
type Optional[T any] struct {
	value T
	known bool
}

// Some returns a known value.
func Some[T any](v T) Optional[T] { return Optional[T]{value: v, known: true} }

// Get returns the value, and whether it is known. An unknown value is T's zero.
func (o Optional[T]) Get() (T, bool) { return o.value, o.known }

// Known says whether there is a value.
func (o Optional[T]) Known() bool { return o.known }

// Or returns the value, or fallback when it is unknown.
func (o Optional[T]) Or(fallback T) T {
	if o.known {
		return o.value
	}
	return fallback
}

// IsZero lets `json:",omitzero"` leave unknown values out.
func (o Optional[T]) IsZero() bool { return !o.known }

// String spells the value, or "unknown".
func (o Optional[T]) String() string {
	if !o.known {
		return "unknown"
	}
	return fmt.Sprint(o.value)
}

// MarshalJSON writes the value, or null.
func (o Optional[T]) MarshalJSON() ([]byte, error) {
	if !o.known {
		return []byte("null"), nil
	}
	return json.Marshal(o.value)
}

// UnmarshalJSON reads a value; null is unknown.
func (o *Optional[T]) UnmarshalJSON(b []byte) error {
	if bytes.Equal(bytes.TrimSpace(b), []byte("null")) {
		*o = Optional[T]{}
		return nil
	}
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*o = Some(v)
	return nil
}

// MinKnown returns the smallest known value, unknown when none is.
func MinKnown[T cmp.Ordered](values ...Optional[T]) Optional[T] {
	var least Optional[T]
	for _, v := range values {
		if n, ok := v.Get(); ok && (!least.known || n < least.value) {
			least = v
		}
	}
	return least
}
