package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"hearth/engine"
)

// StatusClientClosed is what the log says when the client went away before the answer; it is never sent.
const StatusClientClosed = 499

// Error is a failure as the HTTP client sees it. Handlers return it, or any other error, which Classify turns into one.
type Error struct {
	Status     int
	Type       string // OpenAI's error type, such as "invalid_request_error"
	Code       string // empty: null
	Param      string // the request field at fault; empty: null
	Message    string
	Hint       string
	RetryAfter time.Duration // 0: no header
	// PromptTokens and ContextTokens are sent when both are known, beside the code context_length_exceeded.
	PromptTokens, ContextTokens int
	// Kind is the value of the metric label hearth_errors_total{kind}.
	Kind  string
	Cause error // for the log, never sent
}

// Error spells the message and its cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Message + ": " + e.Cause.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Error types and codes in OpenAI's spelling.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"

	CodeContextLength = "context_length_exceeded"
	CodeModelNotFound = "model_not_found"
	CodeUnsupported   = "unsupported"
)

// defaultRetryAfter is sent with 429 and 503 when the engine does not know better. Without the header the official
// SDKs retry within half a second.
const defaultRetryAfter = 2 * time.Second

// BadField is a 400 about one request field; reason continues the sentence "<field> ...".
func BadField(field, reason string) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: TypeInvalidRequest, Param: field, Kind: string(engine.KindInvalid),
		Message: field + " " + reason,
	}
}

// Unsupported is a 400 about a field that is valid but that this server or model cannot honour.
func Unsupported(field, reason string) *Error {
	e := BadField(field, reason)
	e.Code, e.Kind = CodeUnsupported, string(engine.KindUnsupported)
	return e
}

// Classify turns any error into one that can be written. It returns nil for nil.
func Classify(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*engine.Error](err); ok {
		return fromEngine(e)
	}
	if tooBig, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &Error{
			Status: http.StatusRequestEntityTooLarge, Type: TypeInvalidRequest, Code: "request_too_large", Kind: "too_large",
			Message: fmt.Sprintf("the request body is larger than %d bytes", tooBig.Limit), Cause: err,
		}
	}
	if errors.Is(err, context.Canceled) {
		return &Error{Status: StatusClientClosed, Type: TypeServer, Kind: string(engine.KindCancelled), Message: "the client closed the request", Cause: err}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Error{
			Status: http.StatusServiceUnavailable, Type: TypeServer, Code: "timeout", Kind: string(engine.KindUnavailable),
			Message: "the request took too long", RetryAfter: defaultRetryAfter, Cause: err,
		}
	}
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: "internal_error", Kind: string(engine.KindInternal), Message: "internal server error", Cause: err}
}

func fromEngine(e *engine.Error) *Error {
	out := &Error{
		Status: http.StatusBadRequest, Type: TypeInvalidRequest, Param: e.Field, Kind: string(e.Kind),
		Message: e.Message, Hint: e.Hint, Cause: e.Cause,
	}
	switch e.Kind {
	case engine.KindInvalid:
	case engine.KindUnsupported:
		out.Code = CodeUnsupported
	case engine.KindContextLength:
		out.Code, out.PromptTokens, out.ContextTokens = CodeContextLength, e.PromptTokens, e.ContextTokens
	case engine.KindNotFound:
		out.Status, out.Code = http.StatusNotFound, CodeModelNotFound
	case engine.KindOverloaded:
		out.Status, out.Type, out.Code = http.StatusTooManyRequests, TypeRateLimit, "rate_limit_exceeded"
		out.RetryAfter = max(e.RetryAfter, defaultRetryAfter)
	case engine.KindUnavailable:
		out.Status, out.Type, out.Code = http.StatusServiceUnavailable, TypeServer, "model_unavailable"
		out.RetryAfter = max(e.RetryAfter, defaultRetryAfter)
	case engine.KindCancelled:
		out.Status, out.Type = StatusClientClosed, TypeServer
	default:
		out.Status, out.Type, out.Code = http.StatusInternalServerError, TypeServer, "internal_error"
	}
	return out
}

// AppendBody appends the JSON body {"error":{...}} in OpenAI's shape: message, type, param and code always stand there,
// param and code as a string or null.
func (e *Error) AppendBody(b []byte) []byte {
	b = append(b, `{"error":{"message":`...)
	b = AppendString(b, e.Message)
	b = append(b, `,"type":`...)
	b = AppendString(b, e.Type)
	b = append(b, `,"param":`...)
	b = appendStringOrNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = appendStringOrNull(b, e.Code)
	if e.Hint != "" {
		b = append(b, `,"hint":`...)
		b = AppendString(b, e.Hint)
	}
	if e.PromptTokens > 0 && e.ContextTokens > 0 {
		b = fmt.Appendf(b, `,"n_prompt_tokens":%d,"n_ctx":%d`, e.PromptTokens, e.ContextTokens)
	}
	return append(b, "}}"...)
}

// WriteError writes e as the whole response. It must not be called after the first byte of another answer. For a
// client that is gone it writes nothing.
func WriteError(w http.ResponseWriter, e *Error) {
	if e.Status == StatusClientClosed {
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(e.AppendBody(nil)) // a failed write means that the client is gone: nobody is left to tell
}
