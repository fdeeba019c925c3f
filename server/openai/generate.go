package openai

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"hearth/engine"
	"hearth/server/api"
	"hearth/server/metrics"
)

// job is one generation request, decoded as far as is possible without the model.
type job struct {
	out    output
	body   *api.Object
	prefix string // of the reply's id
	field  string // where the prompt stands, for errors about it
	// plan makes the engine's requests, one per prompt, all with the same N.
	plan func(ctx context.Context, model engine.Model) ([]engine.Request, error)
	// shape makes what encodes the reply; plan has run before.
	shape func(h head) shape
}

// shape encodes the reply of one wire format. It belongs to one request.
type shape interface {
	// chunk appends the SSE events for ev. done is set with the last event.
	chunk(b []byte, ev *engine.Event) []byte
	// tail appends what ends a stream: usage if it was asked for, and [DONE].
	tail(b []byte, u engine.Usage) []byte
	// reply appends the whole body of a reply that is not streamed.
	reply(b []byte, choices []choice, u engine.Usage) []byte
}

// choice is one finished continuation.
type choice struct {
	text     []byte
	logprobs []engine.TokenLogprob
	finish   engine.FinishReason
}

// generate runs the job and answers.
func (a *API) generate(c *gin.Context, j job) error {
	ctx := c.Request.Context()
	if !j.out.stream {
		return renameField(a.collect(c, ctx, j), j.field)
	}
	// The stream exists before the model does: a load or a long prefill must not look like a dead server. Until its
	// first event or ping errors still go out as plain HTTP errors.
	stream := api.NewEventStream(c.Writer, a.cfg.Stream)
	defer stream.Close()
	err := a.stream(ctx, j, stream)
	if err != nil {
		err = renameField(api.CauseOf(ctx, err), j.field)
		stream.Fail(err)
	}
	return err
}

func (a *API) stream(ctx context.Context, j job, out *api.EventStream) error {
	run, err := a.start(ctx, j)
	if err != nil {
		return err
	}
	defer run.close()
	s := j.shape(run.head)
	var buf []byte
	for {
		ev, err := run.next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if buf = s.chunk(buf[:0], &ev); len(buf) > 0 {
			if err := out.Write(buf); err != nil {
				return api.ClientGone(err)
			}
		}
	}
	usage, err := run.result()
	if err != nil {
		return err
	}
	if err := out.Write(s.tail(buf[:0], usage)); err != nil {
		return api.ClientGone(err)
	}
	return nil
}

// renameField makes an error about the prompt's length name the request field that holds the prompt.
func renameField(err error, field string) error {
	e, ok := errors.AsType[*engine.Error](err)
	if !ok || e.Kind != engine.KindContextLength {
		return err
	}
	renamed := *e
	renamed.Field = field
	return &renamed
}

// reply sends a whole reply.
func (a *API) reply(c *gin.Context, body []byte) error {
	return api.WriteJSON(c.Writer, http.StatusOK, body, a.cfg.Stream.WriteTimeout)
}

func (a *API) collect(c *gin.Context, ctx context.Context, j job) error {
	run, err := a.start(ctx, j)
	if err != nil {
		return err
	}
	defer run.close()
	choices := make([]choice, run.choices)
	for {
		ev, err := run.next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		ch := &choices[ev.Choice]
		ch.text = append(ch.text, ev.Text...)
		ch.logprobs = append(ch.logprobs, ev.Logprobs...)
		if ev.Finish != "" {
			ch.finish = ev.Finish
		}
	}
	usage, err := run.result()
	if err != nil {
		return err
	}
	body := j.shape(run.head).reply(nil, choices, usage)
	return a.reply(c, body)
}

// running is a generation under way: its events and what they cost.
type running struct {
	head    head
	choices int
	source  source
	release func()

	started    time.Time
	instrument *metrics.Model
	lastToken  []time.Time // per choice; zero before the first token
	anyToken   bool
	usage      *engine.Usage
}

// start acquires the model and queues the requests.
func (a *API) start(ctx context.Context, j job) (*running, error) {
	model, release, err := a.acquire(ctx, j.body)
	if err != nil {
		return nil, err
	}
	ok := false
	defer func() {
		if !ok {
			release()
		}
	}()
	info := model.Info()
	if info.Embedding || info.Rerank {
		return nil, &engine.Error{Kind: engine.KindUnsupported, Field: "model", Message: "model " + info.Name + " makes embeddings, it does not generate text"}
	}
	h := a.newHead(j.prefix, info)
	requests, err := j.plan(ctx, model)
	if err != nil {
		return nil, err
	}
	meta := api.RequestFrom(ctx)
	instrument := a.cfg.Metrics.Model(info.Name)
	for i := range requests {
		r := &requests[i]
		r.ID, r.Tenant, r.Spent = h.id, meta.Tenant, instrument.Spent
		if len(requests) > 1 {
			r.ID = subID(h.id, i)
		}
	}
	src, err := newSource(ctx, model, requests)
	if err != nil {
		return nil, err
	}
	ok = true
	n := requests[0].Choices() * len(requests)
	return &running{
		head: h, choices: n, source: src, release: release, started: meta.Start,
		instrument: instrument, lastToken: make([]time.Time, n),
	}, nil
}

// next returns the next event that is not a failure, and observes its latency.
func (r *running) next(ctx context.Context) (engine.Event, error) {
	ev, err := r.source.next(ctx)
	if err != nil {
		return ev, err
	}
	switch {
	case ev.Finish == engine.FinishError && ev.Err != nil:
		return ev, ev.Err
	case ev.Finish == engine.FinishError:
		return ev, &engine.Error{Kind: engine.KindInternal, Message: "the engine failed"}
	case ev.Finish == engine.FinishCancelled:
		if err := ctx.Err(); err != nil {
			return ev, err
		}
		return ev, &engine.Error{Kind: engine.KindUnavailable, Message: "the model was stopped while it answered"}
	case ev.Choice < 0 || ev.Choice >= r.choices:
		return ev, &engine.Error{Kind: engine.KindInternal, Message: "the engine failed", Cause: errors.New("event for a choice that was not asked for")}
	}
	if ev.Usage != nil {
		r.usage = ev.Usage
	}
	if n := len(ev.Tokens); n > 0 {
		now := time.Now()
		switch last := r.lastToken[ev.Choice]; {
		case !r.anyToken:
			r.anyToken = true
			r.instrument.FirstToken(now.Sub(r.started))
		case !last.IsZero():
			r.instrument.Tokens(n, now.Sub(last))
		}
		r.lastToken[ev.Choice] = now
	}
	return ev, nil
}

// result returns the usage after the last event.
func (r *running) result() (engine.Usage, error) {
	if r.usage == nil {
		return engine.Usage{}, &engine.Error{Kind: engine.KindInternal, Message: "the engine failed", Cause: errors.New("a stream ended without usage")}
	}
	return *r.usage, nil
}

// close cancels what still runs and gives the model back.
func (r *running) close() {
	r.source.close()
	r.release()
	r.instrument.Done(time.Since(r.started))
}
