package api

import (
	"context"
	"sync/atomic"
	"time"
)

// Request is what the middleware knows about the request being served.
type Request struct {
	// ID is what the client calls the request (X-Request-Id), or one we made up. A client may repeat it.
	ID string
	// Tenant separates API keys; empty when no keys are configured. It is derived from the key and never logged.
	Tenant string
	Start  time.Time

	placement atomic.Pointer[Placement]
}

// Placement is where the model that serves a request runs.
type Placement struct {
	Backend string // "hip", "vulkan", "cpu"
	Device  string // PCI address, or the backend's name for a device that has none
	// Fallback says why it is not the backend that was asked for; empty: it is.
	Fallback string
}

// SetPlacement notes which model serves the request. It may run while the reply's header goes out.
func (r *Request) SetPlacement(p Placement) { r.placement.Store(&p) }

// Placement returns what SetPlacement noted last, nil before it: a stream may begin while its model still loads.
func (r *Request) Placement() *Placement { return r.placement.Load() }

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
