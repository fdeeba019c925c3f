package enginepb

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"hearth/engine"
)

// FromError converts an error for the wire; nil stays nil. An error that is no *engine.Error becomes KindInternal with
// a message that gives nothing away, its text as the cause.
func FromError(err error) *Error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*engine.Error](err)
	if !ok {
		return &Error{Kind: string(engine.KindInternal), Message: "the engine failed", Cause: err.Error()}
	}
	out := &Error{
		Kind: string(e.Kind), Message: e.Message, Field: e.Field, Hint: e.Hint, RetryAfterNs: int64(e.RetryAfter),
		PromptTokens: int64(e.PromptTokens), ContextTokens: int64(e.ContextTokens),
	}
	if e.Cause != nil {
		out.Cause = e.Cause.Error()
	}
	return out
}

// ToError is the inverse of FromError; the cause comes back as text only.
func ToError(e *Error) *engine.Error {
	if e == nil {
		return nil
	}
	out := &engine.Error{
		Kind: engine.Kind(e.Kind), Message: e.Message, Field: e.Field, Hint: e.Hint, RetryAfter: duration(e.RetryAfterNs),
		PromptTokens: int(e.PromptTokens), ContextTokens: int(e.ContextTokens),
	}
	if e.Cause != "" {
		out.Cause = errors.New(e.Cause)
	}
	return out
}

// codeOf is the gRPC code that stands beside the details, for readers of logs; only the details are read back.
func codeOf(k engine.Kind) codes.Code {
	switch k {
	case engine.KindInvalid, engine.KindContextLength:
		return codes.InvalidArgument
	case engine.KindNotFound:
		return codes.NotFound
	case engine.KindUnsupported:
		return codes.Unimplemented
	case engine.KindOverloaded:
		return codes.ResourceExhausted
	case engine.KindUnavailable:
		return codes.Unavailable
	case engine.KindCancelled:
		return codes.Canceled
	default:
		return codes.Internal
	}
}

// StatusError is what a service method returns: a gRPC status with the *engine.Error in its details.
func StatusError(err error) error {
	if err == nil {
		return nil
	}
	e := FromError(err)
	s := status.New(codeOf(engine.Kind(e.Kind)), e.Message)
	if d, derr := s.WithDetails(e); derr == nil {
		s = d
	}
	return s.Err()
}

// FromStatusError is the inverse: the *engine.Error of the details. A status without them is one of gRPC's own, which
// means that the worker is gone or going: KindUnavailable, or KindCancelled when the caller gave up.
func FromStatusError(err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.Canceled) {
			return &engine.Error{Kind: engine.KindCancelled, Message: "the request was cancelled", Cause: err}
		}
		return &engine.Error{Kind: engine.KindUnavailable, Message: "the model's worker is not reachable", Cause: err}
	}
	for _, d := range s.Details() {
		if e, ok := d.(*Error); ok {
			return ToError(e)
		}
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		return &engine.Error{Kind: engine.KindCancelled, Message: "the request was cancelled", Cause: err}
	case codes.ResourceExhausted: // gRPC's own: a message above MaxMessageBytes
		return &engine.Error{Kind: engine.KindInvalid, Message: "the request is too large for the engine", Cause: err}
	default:
		return &engine.Error{Kind: engine.KindUnavailable, Message: "the model's worker is not reachable", Cause: err}
	}
}
