package api

import (
	"context"
	"time"
)

// Request is what the middleware knows about the request being served.
type Request struct {
	// ID is what the client calls the request (X-Request-Id), or one we made up. A client may repeat it.
	ID string
	// Tenant separates API keys; empty when no keys are configured. It is derived from the key and never logged.
	Tenant string
	Start  time.Time
}

type requestKey struct{}

// WithRequest returns ctx carrying r.
func WithRequest(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// RequestFrom returns what WithRequest put into ctx, or a Request that starts now.
func RequestFrom(ctx context.Context) *Request {
	if r, ok := ctx.Value(requestKey{}).(*Request); ok {
		return r
	}
	return &Request{Start: time.Now()}
}

// CauseOf returns the reason for which ctx ended in place of err, when err comes from that end: a client that went away
// and a server that is shutting down look alike to what was waiting, but not to the log and the client.
func CauseOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
