package api

import (
	"bytes"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"hearth/engine"
)

// Value is one JSON value of a request body and where it stands, for errors such as
// "messages[1].content must be a string, got a number".
type Value struct {
	Path string
	Raw  jsontext.Value
}

// Object is a decoded JSON object of a request body. Members whose value is null count as absent, unknown members are
// ignored, and of a repeated member the last one counts. Its getters remember the first error, which Err returns, so
// that a decoder can read all fields and check once. It belongs to one goroutine.
type Object struct {
	path    string
	members []member
	err     error
}

type member struct {
	name  string
	value jsontext.Value
}

// DecodeBody reads the request's body as one JSON object.
func DecodeBody(r *http.Request) (*Object, error) {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		// As JSON it would only be malformed. A compressed body could also unfold to any size.
		return nil, &Error{
			Status: http.StatusUnsupportedMediaType, Type: TypeInvalidRequest, Code: "unsupported_encoding",
			Kind: string(engine.KindUnsupported), Message: "the request body has a Content-Encoding, it must be sent as it is",
		}
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		// A client that announces much and sends nothing must not make the server allocate it.
		buf.Grow(int(min(r.ContentLength, 1<<20)) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(r.Body); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, err
		}
		if r.Context().Err() != nil {
			return nil, r.Context().Err()
		}
		return nil, &Error{
			Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: "invalid_body", Kind: string(engine.KindInvalid),
			Message: "the request body could not be read", Cause: err,
		}
	}
	return DecodeObject(buf.Bytes())
}

// DecodeObject parses data as one JSON object. The object keeps data.
func DecodeObject(data []byte) (*Object, error) {
	trimmed := bytes.TrimLeft(data, " \t\r\n")
	if len(trimmed) == 0 {
		return nil, badJSON("it is empty, a JSON object is needed", nil)
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data), decodeOptions()...)
	if err := dec.SkipValue(); err != nil {
		return nil, syntaxError(data, err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		at := dec.InputOffset()
		return nil, badJSON(fmt.Sprintf("there is something behind the object, at byte %d", at), nil)
	}
	if kind := jsontext.Value(trimmed).Kind(); kind != '{' {
		return nil, badJSON("it must be an object, got "+kindName(kind), nil)
	}
	return Value{Raw: trimmed}.Object()
}

func decodeOptions() []jsontext.Options {
	return []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
}

func syntaxError(data []byte, err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return badJSON("it could not be parsed", err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return badJSON(fmt.Sprintf("it ends too early, after byte %d", len(data)), err)
	}
	at := min(int(syntax.ByteOffset), len(data))
	line := bytes.Count(data[:at], []byte{'\n'}) + 1
	column := at - bytes.LastIndexByte(data[:at], '\n')
	return badJSON(fmt.Sprintf("%v at byte %d (line %d, column %d)", syntax.Err, at, line, column), err)
}

func badJSON(reason string, cause error) error {
	return &Error{
		Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: "invalid_json", Kind: string(engine.KindInvalid),
		Message: "the request body is not valid JSON: " + reason, Cause: cause,
	}
}

// Kind says what the value is, as jsontext.Kind does: 'n', 't', 'f', '"', '0', '{' or '['.
func (v Value) Kind() jsontext.Kind { return v.Raw.Kind() }

// IsNull reports whether the value is null.
func (v Value) IsNull() bool { return v.Raw.Kind() == 'n' }

func (v Value) mustBe(what string) error {
	return BadField(v.name(), "must be "+what+", got "+kindName(v.Kind()))
}

func (v Value) name() string {
	if v.Path == "" {
		return "the request body"
	}
	return v.Path
}

// Str returns the value as a string.
func (v Value) Str() (string, error) {
	if v.Kind() != '"' {
		return "", v.mustBe("a string")
	}
	s, err := jsontext.AppendUnquote(nil, v.Raw)
	if err != nil && len(s) == 0 && len(v.Raw) > 2 {
		return "", BadField(v.name(), "is not a valid string")
	}
	return string(s), nil
}

// Bool returns the value as a boolean.
func (v Value) Bool() (bool, error) {
	switch v.Kind() {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, v.mustBe("a boolean")
}

// Float returns the value as a finite number.
func (v Value) Float() (float64, error) {
	if v.Kind() != '0' {
		return 0, v.mustBe("a number")
	}
	f, err := strconv.ParseFloat(string(v.Raw), 64)
	if err != nil || math.IsInf(f, 0) {
		return 0, BadField(v.name(), "is too large a number")
	}
	return f, nil
}

// Int returns the value as an integer. A number such as 16.0 is one.
func (v Value) Int() (int64, error) {
	if v.Kind() != '0' {
		return 0, v.mustBe("an integer")
	}
	if i, err := strconv.ParseInt(string(v.Raw), 10, 64); err == nil {
		return i, nil
	}
	f, err := strconv.ParseFloat(string(v.Raw), 64)
	switch {
	case err != nil || math.Abs(f) >= 1<<63:
		return 0, BadField(v.name(), "is too large an integer")
	case f != math.Trunc(f):
		return 0, BadField(v.name(), "must be an integer, got "+string(v.Raw))
	}
	return int64(f), nil
}

// Items returns the elements of an array, nulls included.
func (v Value) Items() ([]Value, error) {
	if v.Kind() != '[' {
		return nil, v.mustBe("an array")
	}
	var items []Value
	err := v.walk(func(_ string, raw jsontext.Value) {
		items = append(items, Value{Path: fmt.Sprintf("%s[%d]", v.Path, len(items)), Raw: raw})
	})
	return items, err
}

// Ints returns an array of integers that fit an int32. It is for token lists, which may be long.
func (v Value) Ints() ([]int32, error) {
	if v.Kind() != '[' {
		return nil, v.mustBe("an array of integers")
	}
	var out []int32
	var first error
	err := v.walk(func(_ string, raw jsontext.Value) {
		i, err := Value{Raw: raw}.Int()
		if err == nil && (i < math.MinInt32 || i > math.MaxInt32) {
			err = errors.ErrUnsupported
		}
		if err != nil && first == nil {
			first = BadField(fmt.Sprintf("%s[%d]", v.Path, len(out)), "must be a token id, got "+shorten(string(raw)))
		}
		out = append(out, int32(i))
	})
	return out, errors.Join(first, err)
}

func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

// Object returns the members of an object.
func (v Value) Object() (*Object, error) {
	if v.Kind() != '{' {
		return nil, v.mustBe("an object")
	}
	o := &Object{path: v.Path}
	err := v.walk(func(name string, raw jsontext.Value) {
		o.members = append(o.members, member{name, raw})
	})
	if err != nil {
		return nil, err
	}
	return o, nil
}

// walk calls f for every element of the array or member of the object v. The raw values alias v.Raw.
func (v Value) walk(f func(name string, raw jsontext.Value)) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.Raw), decodeOptions()...)
	open, err := dec.ReadToken()
	if err != nil {
		return syntaxError(v.Raw, err)
	}
	isObject := open.Kind() == '{'
	for {
		if k := dec.PeekKind(); k == '}' || k == ']' {
			return nil
		}
		var name string
		if isObject {
			token, err := dec.ReadToken()
			if err != nil {
				return syntaxError(v.Raw, err)
			}
			name = token.String()
		}
		raw, err := dec.ReadValue()
		if err != nil {
			return syntaxError(v.Raw, err)
		}
		end := dec.InputOffset()
		f(name, v.Raw[end-int64(len(raw)):end])
	}
}

// FirstKind returns the kind of an array's first element, or 0 when it is empty.
func (v Value) FirstKind() (jsontext.Kind, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.Raw), decodeOptions()...)
	if _, err := dec.ReadToken(); err != nil {
		return 0, syntaxError(v.Raw, err)
	}
	if k := dec.PeekKind(); k != ']' {
		return k, nil
	}
	return 0, nil
}
