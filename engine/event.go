package engine

import (
	"context"
	"time"
)

// FinishReason says why a choice ended; empty while it runs.
type FinishReason string

// Finish reasons. Wire formats map them to their own words.
const (
	FinishStop      FinishReason = "stop"      // end-of-generation token or stop string
	FinishLength    FinishReason = "length"    // MaxTokens reached, or the context is full
	FinishCancelled FinishReason = "cancelled" // the caller went away
	FinishError     FinishReason = "error"     // Event.Err says what
)

// Event is one step's news about one choice of a request. Text is complete UTF-8 with stop strings already cut away;
// it may be empty when a token's bytes are held back, and then comes with a later event.
type Event struct {
	Choice int
	Text   string
	// Tokens are the ids sampled for this choice since the last event, in order. Held-back text does not hold them back.
	Tokens   []Token
	Logprobs []TokenLogprob // one for each token when Request.Logprobs is set
	Finish   FinishReason
	// StopString is the stop string that ended the choice, if one did.
	StopString string
	// Prefill reports progress of the prompt (Choice is 0); nil otherwise.
	Prefill *Prefill
	// Usage stands on the last event of the request, whichever choice that is.
	Usage *Usage
	Err   error // with FinishError: an *Error
}

// TokenLogprob is a sampled token, its log-probability under the untouched softmax (nats), and alternatives.
type TokenLogprob struct {
	Token   Token
	Bytes   []byte // the token's own bytes, not necessarily valid UTF-8
	Logprob float32
	Top     []TokenLogprob // most likely first; without Top of their own
}

// Prefill is how far a prompt is: Cached tokens came from the prefix cache, Done counts them too.
type Prefill struct{ Cached, Done, Total int }

// Usage is what a request cost, in tokens and wall time measured in the worker.
type Usage struct {
	PromptTokens     int // of a request that ended before its first token: those that were computed, or found in the cache
	CachedTokens     int // prompt tokens that were not computed again; never more than PromptTokens-1
	CompletionTokens int // over all choices, end-of-generation tokens included
	Queue            time.Duration
	Prefill          time.Duration // admission to the first sampled token
	Decode           time.Duration // first sampled token to the end
	Preemptions      int
	Seed             uint64
}

// Stream delivers the events of one request, in order. It belongs to one goroutine.
type Stream interface {
	// Next returns the next event. After the event that carries Usage it returns io.EOF. A failure of the whole request
	// is an *Error. If ctx ends first the request is cancelled and ctx's error returned.
	Next(ctx context.Context) (Event, error)
	// Close cancels what still runs and frees the request's KV cells within one step. It may be called more than once.
	Close()
}
