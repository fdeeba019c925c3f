package engine

import (
	"errors"
	"fmt"
	"time"
)

// Kind classes errors by what a caller can do about them.
type Kind string

// Kinds of Error, with the HTTP status that the front end gives them.
const (
	KindInvalid       Kind = "invalid"        // 400: Field says which
	KindContextLength Kind = "context_length" // 400: the prompt does not fit
	KindNotFound      Kind = "not_found"      // 404: no such model
	KindUnsupported   Kind = "unsupported"    // 400: this model cannot do that
	KindOverloaded    Kind = "overloaded"     // 429: queue full, RetryAfter says when
	KindUnavailable   Kind = "unavailable"    // 503: loading, restarting, or gone; RetryAfter says when
	KindCancelled     Kind = "cancelled"      // 499: the caller went away
	KindInternal      Kind = "internal"       // 500
)

// Error is what the engine's methods return. Message is fit for a client; Cause is for logs.
type Error struct {
	Kind       Kind
	Message    string
	Field      string        // the request field at fault, in OpenAI's spelling; may be empty
	Hint       string        // what to do about it, may be empty
	RetryAfter time.Duration // for KindOverloaded and KindUnavailable
	// PromptTokens and ContextTokens stand beside KindContextLength.
	PromptTokens, ContextTokens int
	Cause                       error
}

// Error spells the message and its cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %v", e.Message, e.Cause)
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// KindOf returns the kind of the first *Error in err's chain, KindInternal for other errors, and "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}

// Invalid is a KindInvalid error about one request field; reason continues the sentence "<field> ...".
func Invalid(field, reason string) *Error {
	return &Error{Kind: KindInvalid, Field: field, Message: field + " " + reason}
}

// ContextLength is the error for a prompt of prompt tokens on a context of limit tokens. Agents look for the phrase
// "maximum context length is N tokens" to start compacting.
func ContextLength(prompt, limit int) *Error {
	return &Error{
		Kind: KindContextLength, Field: "messages", PromptTokens: prompt, ContextTokens: limit,
		Message: fmt.Sprintf("This model's maximum context length is %d tokens, but the prompt has %d tokens.", limit, prompt),
	}
}
