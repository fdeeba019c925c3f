package template

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"strconv"

	"github.com/ardanlabs/jinja"
)

// maxValueDepth is how deep JSON given to a template may nest. The evaluator recurses over values.
const maxValueDepth = 100

// parseJSON turns JSON into a template value; objects keep the order of their keys, which prompts depend on.
func parseJSON(raw []byte) (jinja.Value, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	v, err := readValue(dec, 0)
	if err != nil {
		return v, fmt.Errorf("read template value: %w", err)
	}
	return v, nil
}

func readValue(dec *jsontext.Decoder, depth int) (jinja.Value, error) {
	if depth > maxValueDepth {
		return jinja.None(), overBudget("levels in a value", maxValueDepth)
	}
	token, err := dec.ReadToken()
	if err != nil {
		return jinja.None(), err
	}
	switch token.Kind() {
	case 't', 'f':
		return jinja.NewBool(token.Bool()), nil
	case '"':
		return jinja.NewString(token.String()), nil
	case '0':
		text := token.String()
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return jinja.NewInt(i), nil
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return jinja.None(), fmt.Errorf("number %s: %w", text, err)
		}
		return jinja.NewFloat(f), nil
	case '[':
		var items []jinja.Value
		for dec.PeekKind() != ']' {
			item, err := readValue(dec, depth+1)
			if err != nil {
				return jinja.None(), err
			}
			items = append(items, item)
		}
		_, err := dec.ReadToken()
		return jinja.NewList(items), err
	case '{':
		out := jinja.NewDict()
		for dec.PeekKind() != '}' {
			name, err := dec.ReadToken()
			if err != nil {
				return jinja.None(), err
			}
			key := name.String()
			item, err := readValue(dec, depth+1)
			if err != nil {
				return jinja.None(), err
			}
			out.AsDict().Set(key, item)
		}
		_, err := dec.ReadToken()
		return out, err
	}
	return jinja.None(), nil
}

// argumentsValue is what a template gets as a call's arguments: an object where the text is one and the template can
// take one.
func argumentsValue(text string, asObject bool) jinja.Value {
	if !asObject {
		return jinja.NewString(text)
	}
	if text == "" {
		return jinja.NewDict()
	}
	v, err := parseJSON([]byte(text))
	if err != nil || !v.IsDict() {
		return jinja.NewString(text) // what the model wrote was no object: the template prints it as it is
	}
	return v
}
