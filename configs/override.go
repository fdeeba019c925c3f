package configs

import (
	"fmt"
	"slices"
	"strings"
)

// Override is one element of "overrides": the settings of Run that differ for a model.
type Override struct {
	Model string
	set   map[string]any
}

// overrides reads the list and tries each element on a Run, so that a bad one is found at start and not at the first
// request.
func overrides(raw any) ([]Override, error) {
	if raw == nil {
		return nil, nil
	}
	items, ok := raw.([]any)
	if !ok {
		return nil, &FieldError{Key: "overrides", Reason: "must be a list"}
	}
	var out []Override
	for i, it := range items {
		key := fmt.Sprintf("overrides[%d]", i)
		m, ok := it.(map[string]any)
		if !ok {
			return nil, &FieldError{Key: key, Reason: "must be a mapping with model and settings of run"}
		}
		o := Override{set: map[string]any{}}
		for k, v := range m {
			if k == "model" {
				o.Model, _ = v.(string)
				continue
			}
			o.set[k] = v
		}
		if o.Model == "" {
			return nil, &FieldError{Key: key + ".model", Reason: "must name a model"}
		}
		var r Run
		if err := decode(o.set, &r); err != nil {
			return nil, &FieldError{Key: key, Reason: decodeReason(err)}
		}
		out = append(out, o)
	}
	return out, nil
}

// RunFor is Run with the overrides of the model applied, in their order. names are the model's name and aliases.
func (c *Config) RunFor(names ...string) (Run, error) {
	r := c.Run
	for i, o := range c.Overrides {
		if !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, o.Model) }) {
			continue
		}
		if err := decode(o.set, &r); err != nil {
			return r, &FieldError{Key: fmt.Sprintf("overrides[%d]", i), Reason: decodeReason(err)}
		}
	}
	return r, nil
}
