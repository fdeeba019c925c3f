package api

import (
	"encoding/json/jsontext"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"hearth/engine"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD; U+2028 and U+2029 are escaped, since
// some clients split event streams at them.
func AppendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			b = appendEscaped(b, c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			start = i + 1
		case r == '\u2028' || r == '\u2029':
			b = append(b, s[start:i]...)
			b = append(b, `\u202`...)
			b = append(b, hexDigits[r&0xf])
			start = i + size
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendEscaped(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}

func appendStringOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return AppendString(b, s)
}

// minusInfinity stands for a log-probability of minus infinity, which JSON cannot spell. OpenAI sends this value.
const minusInfinity = -9999.0

// AppendLogprob appends a log-probability in nats.
func AppendLogprob(b []byte, v float32) []byte {
	f := float64(v)
	if math.IsNaN(f) || f < minusInfinity {
		f = minusInfinity
	}
	return strconv.AppendFloat(b, f, 'g', 8, 64)
}

// AppendFloat appends a finite number; NaN and infinities, which JSON cannot spell, become 0.
func AppendFloat(b []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		f = 0
	}
	return strconv.AppendFloat(b, f, 'g', -1, 64)
}

// writePiece is how much of a body goes out under one deadline, in bytes: a slow client gets a new one for each piece.
const writePiece = 64 << 10

// WriteJSON writes body, which must be JSON, as the whole response. timeout is how long a piece of it may wait for a client
// that does not read; 0: for ever. It returns when the body is out of the server's hands, or with KindCancelled.
func WriteJSON(w http.ResponseWriter, status int, body []byte, timeout time.Duration) error {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	ctl := http.NewResponseController(w) // recorders in tests have no deadlines
	if timeout > 0 {
		defer func() { _ = ctl.SetWriteDeadline(time.Time{}) }() // net/http leaves it on a connection that serves more requests
	}
	for piece := range slices.Chunk(body, writePiece) {
		if timeout > 0 {
			_ = ctl.SetWriteDeadline(time.Now().Add(timeout))
		}
		if _, err := w.Write(piece); err != nil {
			return ClientGone(err)
		}
	}
	if err := ctl.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return ClientGone(err)
	}
	return nil
}

// ClientGone says that a write failed: nobody reads any more.
func ClientGone(err error) error {
	return &engine.Error{Kind: engine.KindCancelled, Message: "the client stopped reading", Cause: err}
}

// kindName says what a JSON value is, for error messages.
func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "not JSON"
}
