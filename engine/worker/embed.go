package worker

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hearth/engine"
)

// gather is how long the embedder waits for more texts when it has few: about one small batch on a GPU.
const gather = 5 * time.Millisecond

// embedder is the loop of a worker whose model makes embeddings: it packs texts of all callers into batches.
type embedder struct {
	model  Model
	log    *slog.Logger
	stop   chan struct{}
	work   chan *embedJob
	tokens int // most tokens of a batch, and so of one text
	texts  int // most texts of a batch

	mu    sync.Mutex
	state engine.Stats

	began   atomic.Int64 // ns since start of the running batch, 0: none
	started time.Time
}

// embedJob is the texts of one call.
type embedJob struct {
	texts [][]engine.Token
	out   [][]float32
	left  int // texts without result
	err   error
	done  chan struct{}
	ctx   context.Context
}

// embedText is one text of one job.
type embedText struct {
	job    *embedJob
	i      int
	passed int // batches that were made since it came
}

func (t *embedText) len() int { return len(t.job.texts[t.i]) }

// passedMost is how many batches a text may be too long for; then it is in the next one.
const passedMost = 4

// before orders texts. Short ones go together: a batch's attention costs the square of what is in it. But while short ones come all the
// time a long one would never have its turn.
func (t *embedText) before(o *embedText) int {
	if n := max(o.passed, passedMost-1) - max(t.passed, passedMost-1); n != 0 {
		return n
	}
	return t.len() - o.len()
}

func newEmbedder(m Model, log *slog.Logger) *embedder {
	e := &embedder{model: m, log: log, stop: make(chan struct{}), work: make(chan *embedJob, 64), started: time.Now()}
	e.tokens, e.texts = m.EmbedLimits()
	return e
}

// do tokenises a call's inputs, has them computed, and normalises the result.
func (e *embedder) do(ctx context.Context, req *engine.EmbedRequest) (engine.EmbedResult, error) {
	info := e.model.Info()
	if req.Rerank != info.Rerank {
		return engine.EmbedResult{}, &engine.Error{
			Kind: engine.KindUnsupported, Field: "model", Message: map[bool]string{
				true: "this model makes embeddings; it cannot rerank", false: "this is a rerank model; it makes no embeddings",
			}[req.Rerank],
		}
	}
	j := &embedJob{done: make(chan struct{}), ctx: ctx}
	res := engine.EmbedResult{}
	for i := range req.Inputs {
		var toks []engine.Token
		var err error
		if req.Rerank {
			toks, err = rerankPrompt(e.model, req.Query, &req.Inputs[i], info.VocabSize)
		} else {
			toks, err = tokenize(e.model, &req.Inputs[i], info.VocabSize)
		}
		switch {
		case err != nil:
			return res, err
		case len(toks) == 0:
			return res, engine.Invalid("input", fmt.Sprintf("%d is empty", i))
		case len(toks) > e.tokens:
			return res, &engine.Error{
				Kind: engine.KindContextLength, Field: "input", PromptTokens: len(toks), ContextTokens: e.tokens,
				Message: fmt.Sprintf("This model's maximum context length is %d tokens, but input %d has %d tokens.", e.tokens, i, len(toks)),
			}
		}
		j.texts = append(j.texts, toks)
		res.PromptTokens = append(res.PromptTokens, len(toks))
	}
	j.out, j.left = make([][]float32, len(j.texts)), len(j.texts)
	if j.left == 0 {
		return res, nil
	}
	gone := &engine.Error{Kind: engine.KindUnavailable, Message: "the worker is stopping"}
	select {
	case e.work <- j:
	case <-ctx.Done():
		return res, context.Cause(ctx)
	case <-e.stop:
		return res, gone
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		return res, context.Cause(ctx)
	case <-e.stop:
		return res, gone
	}
	if j.err != nil {
		return res, j.err
	}
	res.Vectors = j.out
	if req.Normalize {
		for _, v := range res.Vectors {
			normalize(v)
		}
	}
	return res, nil
}

// normalize scales v to length 1; a zero vector stays.
func normalize(v []float32) {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return
	}
	f := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= f
	}
}

// run computes batches until stop is closed (nil) or the backend fails (ErrBackend).
func (e *embedder) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var pending []embedText
	for {
		var ok bool
		if pending, ok = e.collect(pending); !ok {
			return nil
		}
		slices.SortStableFunc(pending, func(a, b embedText) int { return a.before(&b) })
		n := e.fit(pending)
		if n == 0 {
			continue
		}
		if err := e.compute(pending[:n]); err != nil {
			for _, t := range pending {
				t.job.fail(err)
			}
			return fmt.Errorf("%w: embed: %w", ErrBackend, err)
		}
		pending = slices.Delete(pending, 0, n)
		for i := range pending {
			pending[i].passed++
		}
	}
}

// collect takes calls until a batch is full or none came for the gather time; it blocks only without pending texts.
func (e *embedder) collect(pending []embedText) ([]embedText, bool) {
	var late <-chan time.Time
	for {
		var first <-chan *embedJob
		if len(pending) == 0 {
			late = nil
		} else if late == nil {
			t := time.NewTimer(gather)
			defer t.Stop()
			late = t.C
		}
		first = e.work
		total := 0
		for _, t := range pending {
			total += t.len()
		}
		if total >= e.tokens || len(pending) >= e.texts {
			return pending, true
		}
		select {
		case j := <-first:
			for i := range j.texts {
				pending = append(pending, embedText{job: j, i: i})
			}
		case <-late:
			return pending, true
		case <-e.stop:
			return pending, false
		}
	}
}

// fit drops the texts of callers that went away from the front and counts how many fit one batch.
func (e *embedder) fit(pending []embedText) int {
	total := 0
	for n, t := range pending {
		total += t.len()
		if total > e.tokens || n == e.texts {
			return n
		}
	}
	return len(pending)
}

// compute runs one batch.
func (e *embedder) compute(texts []embedText) error {
	live := texts[:0:0]
	batch := make([][]engine.Token, 0, len(texts))
	tokens := 0
	for _, t := range texts {
		if t.job.ctx.Err() == nil && t.job.err == nil {
			live = append(live, t)
			batch = append(batch, t.job.texts[t.i])
			tokens += len(t.job.texts[t.i])
		}
	}
	if len(batch) == 0 {
		return nil
	}
	began := time.Now()
	e.began.Store(int64(time.Since(e.started)) | 1)
	err := e.model.Embed(batch, func(i int, v []float32) {
		t := live[i]
		t.job.out[t.i] = slices.Clone(v)
		if t.job.left--; t.job.left == 0 {
			close(t.job.done)
		}
	})
	e.began.Store(0)
	e.mu.Lock()
	e.state.Steps++
	e.state.PromptTokens += uint64(tokens)
	e.state.LastStep, e.state.PrefillRows = time.Since(began), tokens
	e.mu.Unlock()
	return err
}

// fail ends a job once.
func (j *embedJob) fail(err error) {
	if j.err == nil && j.left > 0 {
		j.err = &engine.Error{Kind: engine.KindUnavailable, Message: "the engine failed", RetryAfter: time.Second, Cause: err}
		close(j.done)
	}
}

func (e *embedder) age() int64 {
	if b := e.began.Load(); b != 0 {
		return int64(time.Since(e.started)) - b
	}
	return 0
}

func (e *embedder) stats() *engine.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.state
	return &s
}
