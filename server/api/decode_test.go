package api

import (
	"encoding/json"
	"errors"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"
)

func object(t testing.TB, body string) *Object {
	t.Helper()
	o, err := DecodeObject([]byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return o
}

func TestGetters(t *testing.T) {
	o := object(t, ` {"s":"a\u00e9\n","i":-5,"f":1.5,"whole":3.0,"t":true,"n":null,"o":{"x":{"y":[1,"b"]}},"s":"last"} `)
	if got := o.Str("s", ""); got != "last" {
		t.Errorf("a repeated member: %q", got)
	}
	if got := o.Int("i", 0, -10, 10); got != -5 {
		t.Errorf("got %d", got)
	}
	if got := o.Int("whole", 0, -10, 10); got != 3 {
		t.Errorf("got %d", got)
	}
	if got := o.Float("f", 0, 0, 2); got != 1.5 {
		t.Errorf("got %v", got)
	}
	if got := o.Float("absent", 7, 0, 2); got != 7 {
		t.Errorf("a default out of range: %v", got)
	}
	if !o.Bool("t", false) || o.Bool("n", false) || o.Has("n") || o.Has("absent") {
		t.Error("booleans and null")
	}
	y, _ := o.Object("o").Object("x").Get("y")
	items, err := y.Items()
	if err != nil || len(items) != 2 || items[1].Path != "o.x.y[1]" || string(items[1].Raw) != `"b"` {
		t.Errorf("got %+v, %v", items, err)
	}
	if err := o.Err(); err != nil {
		t.Error(err)
	}
}

func TestFirstErrorStays(t *testing.T) {
	o := object(t, `{"a":"x","b":"y"}`)
	o.Int("a", 0, 0, 1)
	o.Bool("b", false)
	if e, ok := errors.AsType[*Error](o.Err()); !ok || e.Param != "a" {
		t.Errorf("got %v", o.Err())
	}
}

func TestIntLimits(t *testing.T) {
	for body, want := range map[string]int64{
		`9223372036854775807`: math.MaxInt64, `-9223372036854775808`: math.MinInt64, `1e3`: 1000, `-0`: 0,
	} {
		if got, err := (Value{Path: "x", Raw: []byte(body)}).Int(); err != nil || got != want {
			t.Errorf("%s: %d, %v", body, got, err)
		}
	}
	for _, body := range []string{`9223372036854775808`, `1e19`, `1e999`, `1.5`, `"1"`, `true`, `[]`} {
		if got, err := (Value{Path: "x", Raw: []byte(body)}).Int(); err == nil {
			t.Errorf("%s is %d", body, got)
		}
	}
}

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "plain", "q\"b\\", "\n\r\t\x00\x1f\x7f", "é漢🙂", "<script>&", "a\u2028b\u2029"} {
		got := AppendString(nil, s)
		var back string
		if err := json.Unmarshal(got, &back); err != nil || back != s {
			t.Errorf("%q became %s, which is %q, %v", s, got, back, err)
		}
		if strings.ContainsAny(string(got), "\n\r\u2028\u2029") {
			t.Errorf("%q holds a line break", got)
		}
	}
	if got := string(AppendString(nil, "a\xffb\xc3")); got != "\"a\ufffdb\ufffd\"" {
		t.Errorf("broken UTF-8 became %s", got)
	}
}

func TestAppendNumbers(t *testing.T) {
	for f, want := range map[float32]string{-0.125: "-0.125", float32(math.Inf(-1)): "-9999", float32(math.NaN()): "-9999", 0: "0"} {
		if got := string(AppendLogprob(nil, f)); got != want {
			t.Errorf("%v became %s, want %s", f, got, want)
		}
	}
}

func TestErrorBody(t *testing.T) {
	e := &Error{Message: "no \"luck\"", Type: TypeServer}
	if got, want := string(e.AppendBody(nil)), `{"error":{"message":"no \"luck\"","type":"server_error","param":null,"code":null}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w := httptest.NewRecorder()
	WriteError(w, &Error{Status: StatusClientClosed})
	if w.Body.Len() != 0 {
		t.Errorf("a gone client got %s", w.Body)
	}
}

func FuzzDecodeObject(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,{"b":null}]}`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}", `{"a":1e400}`, ` {"a" : {"a":1,"a":2}} `} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		o, err := DecodeObject([]byte(body))
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 {
				t.Fatalf("%q: %v is no 400", body, err)
			}
			return
		}
		o.Each(func(name string, v Value) {
			_, _ = v.Str()
			_, _ = v.Int()
			_, _ = v.Float()
			_, _ = v.Ints()
			if items, err := v.Items(); err == nil {
				for _, item := range items {
					_ = item.Kind()
				}
			}
			if got, ok := o.Get(name); ok && got.Path != name {
				t.Errorf("path %q of %q", got.Path, name)
			}
		})
	})
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\xffb\u2028\"")
	f.Fuzz(func(t *testing.T, s string) {
		var back string
		if err := json.Unmarshal(AppendString(nil, s), &back); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if utf8.ValidString(s) && back != s {
			t.Errorf("%q became %q", s, back)
		}
	})
}

func BenchmarkAppendString(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendString(buf[:0], " word, \"quoted\"\n")
	}
}
