package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/enginepb"
)

// Service is the gRPC service of a worker process. Make one with NewService, register it, and end the process when Done
// is closed.
type Service struct {
	enginepb.UnimplementedWorkerServer
	opener Opener
	notes  io.Writer
	log    *slog.Logger
	prep   chan struct{} // bounds preparing goroutines

	mu      sync.Mutex
	loading bool
	closed  bool
	model   Model
	loop    *loop
	embed   *embedder
	done    chan struct{}
	err     error
	wg      sync.WaitGroup
}

// NewService makes a service that will load its model with opener. What it works on is written to notes (the
// process's stdout; its Write must allow concurrent calls) in lines of enginepb.AdmittedPrefix and QueuedPrefix.
func NewService(opener Opener, notes io.Writer, log *slog.Logger) *Service {
	return &Service{
		opener: opener, notes: notes, log: log, done: make(chan struct{}),
		// Tokenising is short; more at once than there are cores only makes each slower.
		prep: make(chan struct{}, max(2, runtime.GOMAXPROCS(0))),
	}
}

// Done is closed when the model can no longer run; Err then says why (ErrBackend). Close does not close it.
func (s *Service) Done() <-chan struct{} { return s.done }

// Err is why Done is closed.
func (s *Service) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the step loop, waits for it, and frees the model. Streams that are still open get no more events.
func (s *Service) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	m, l, e := s.model, s.loop, s.embed
	s.mu.Unlock()
	if l != nil {
		close(l.stop)
		m.Abort()
	}
	if e != nil {
		close(e.stop)
		m.Abort()
	}
	s.wg.Wait()
	if m != nil {
		m.Close()
	}
}

// stages are the shares of a load in the progress that Load reports.
func stages() map[string][2]float64 {
	return map[string][2]float64{
		"weights": {0, 0.8}, "context": {0.8, 0.82}, "self-test": {0.82, 0.85}, "warm-up": {0.85, 1},
	}
}

// Load implements enginepb.WorkerServer.
func (s *Service) Load(in *enginepb.LoadSpec, stream enginepb.Worker_LoadServer) error {
	s.mu.Lock()
	busy := s.loading || s.closed
	s.loading = true
	s.mu.Unlock()
	if busy {
		return enginepb.StatusError(engine.Invalid("path", "was loaded before; a worker loads one model"))
	}
	spec := enginepb.ToLoadSpec(in)
	if err := spec.Validate(); err != nil {
		return enginepb.StatusError(err)
	}
	began := time.Now()
	var info engine.Info
	var err error
	onThreadThatEnds(func() { info, err = s.open(stream.Context(), spec, s.reporter(stream)) })
	if err != nil {
		s.log.Error("load failed", "err", err)
		return enginepb.StatusError(err)
	}
	info.Name = spec.Name
	info.LoadTime = time.Since(began)
	return stream.Send(&enginepb.LoadEvent{Stage: "ready", Progress: 1, Info: enginepb.FromInfo(&info)})
}

// reporter sends progress, at most one event per percent and stage.
func (s *Service) reporter(stream enginepb.Worker_LoadServer) func(string, float64) {
	share := stages()
	var mu sync.Mutex
	last, lastStage := 0.0, ""
	return func(stage string, f float64) {
		mu.Lock()
		defer mu.Unlock()
		// A second layout is tested and warmed after the first: the stages come again, the progress does not go back.
		p := max(last, share[stage][0]+f*(share[stage][1]-share[stage][0]))
		if stage == lastStage && p-last < 0.01 {
			return
		}
		last, lastStage = p, stage
		if err := stream.Send(&enginepb.LoadEvent{Stage: stage, Progress: float32(p)}); err != nil {
			s.log.Debug("send progress", "err", err)
		}
	}
}

// open loads the model, tests and warms it, and starts its loop.
func (s *Service) open(ctx context.Context, spec engine.LoadSpec, progress func(string, float64)) (engine.Info, error) {
	m, err := s.opener.Open(ctx, spec, progress)
	if err != nil {
		return engine.Info{}, err
	}
	info, cfg := m.Info(), m.Config()
	cfg.TenantCache, cfg.QueueLimit, cfg.ITLTarget = spec.TenantCache, spec.QueueLimit, spec.ITLTarget
	var l *loop
	var e *embedder
	if info.Embedding || info.Rerank {
		e = newEmbedder(m, s.log)
	} else {
		if l, err = s.prepareLoop(ctx, m, &cfg, &info, progress); err != nil {
			m.Close()
			return engine.Info{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		m.Close()
		return engine.Info{}, &engine.Error{Kind: engine.KindUnavailable, Message: "the worker is stopping"}
	}
	s.model, s.loop, s.embed = m, l, e
	s.wg.Go(func() {
		var err error
		if l != nil {
			err = l.run()
		} else {
			err = e.run()
		}
		if err == nil {
			return
		}
		s.log.Error("the engine cannot go on", "err", err)
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(s.done)
	})
	return info, nil
}

// prepareLoop tests what the library does not promise, runs every shape once, and makes the loop.
func (s *Service) prepareLoop(ctx context.Context, m Model, cfg *batch.Config, info *engine.Info, progress func(string, float64)) (*loop, error) {
	began := time.Now()
	if !m.Async() {
		cfg.NoPad = true // graphs are cheap there, and a padding row is computed like any other
	}
	first, err := prepareLayout(ctx, m, *cfg, began.Add(warmUpLimit), false, s.log, progress)
	if err != nil {
		return nil, err
	}
	layouts, costs, auto := map[batch.Layout]layoutState{}, batch.LayoutCosts{}, false
	if m.CanRelayout() && !first.warmer.isSlow() && time.Since(began) < warmUpAll-compareLeast {
		if first, layouts, costs, auto, err = bothLayouts(ctx, m, first, began.Add(warmUpAll), s.log, progress); err != nil {
			return nil, err
		}
	}
	info.Features = append(info.Features, first.features...)
	info.KVLayout, info.Cells, info.WindowCells = first.cfg.Layout.String(), first.cfg.Cells, first.cfg.WindowCells
	s.log.Info("tested and warmed up", "took", time.Since(began), "layout", info.KVLayout, "shapes", len(first.costs))
	l, err := newLoop(m, first.cfg, s.notes, s.log)
	if err != nil {
		return nil, err
	}
	l.prime(first)
	l.later = first.warmer
	if auto {
		s.log.Info("the KV layout follows the load", "now", first.cfg.Layout.String(), "costs", costs)
		l.layouts = layouts
		l.sched.AutoLayout(costs)
	} else if m.CanRelayout() && !first.warmer.isSlow() {
		l.here = &first
	}
	return l, nil
}

// ready returns the loaded model, or KindUnavailable.
func (s *Service) ready() (Model, *loop, *embedder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.model == nil || s.closed {
		return nil, nil, nil, &engine.Error{Kind: engine.KindUnavailable, Message: "the model is not loaded", RetryAfter: time.Second}
	}
	return s.model, s.loop, s.embed, nil
}

// Serve implements enginepb.WorkerServer.
func (s *Service) Serve(stream enginepb.Worker_ServeServer) error {
	m, l, _, err := s.ready()
	if err != nil {
		return enginepb.StatusError(err)
	}
	sess := newSession()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { send(ctx, stream, sess, l, s.log) })
	defer func() {
		cancel()
		if l != nil {
			l.post(message{kind: msgGone, session: sess})
		}
	}()
	for {
		in, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch body := in.GetBody().(type) {
		case *enginepb.ClientFrame_Submit:
			if l == nil {
				sess.fail(in.GetId(), &engine.Error{Kind: engine.KindUnsupported, Message: "this model makes embeddings, not text", Field: "model"})
				continue
			}
			id := in.GetId()
			l.post(message{kind: msgAnnounce, session: sess, wire: id})
			wg.Go(func() { s.prepare(m, l, sess, id, body.Submit) })
		case *enginepb.ClientFrame_Cancel:
			if l != nil {
				l.post(message{kind: msgCancel, session: sess, wire: in.GetId()})
			}
		}
	}
}

// prepare builds a job and gives it to the loop.
func (s *Service) prepare(m Model, l *loop, sess *session, id uint64, in *enginepb.Request) {
	s.prep <- struct{}{}
	defer func() { <-s.prep }()
	s.note(enginepb.AdmittedPrefix, id)
	req := enginepb.ToRequest(in)
	j, err := prepare(m, req, l.context)
	if err != nil {
		sess.fail(id, err)
		l.post(message{kind: msgFailed, session: sess, wire: id})
		return
	}
	s.note(enginepb.QueuedPrefix, id)
	j.id, j.wire, j.session = batch.JobID(l.ids.Add(1)), id, sess
	l.post(message{kind: msgSubmit, session: sess, wire: id, job: j})
}

// note tells the supervisor what becomes of a request, in one write.
func (s *Service) note(prefix string, id uint64) {
	if _, err := io.WriteString(s.notes, prefix+strconv.FormatUint(id, 10)+"\n"); err != nil {
		s.log.Debug("write a note", "err", err) // the supervisor is gone; the end of its connection says so as well
	}
}

// send writes the session's frames to the stream until it breaks.
func send(ctx context.Context, stream enginepb.Worker_ServeServer, sess *session, l *loop, log *slog.Logger) {
	for {
		select {
		case <-sess.wake:
		case <-ctx.Done():
			return
		}
		f := sess.take()
		if f == nil {
			continue
		}
		many := len(f.Events) > holdEvents
		if err := stream.Send(f); err != nil {
			log.Debug("send frame", "err", err) // Recv fails as well and ends the session
			return
		}
		sess.recycle(f)
		if many && l != nil {
			l.post(message{kind: msgSent, session: sess})
		}
	}
}

// Tokenize implements enginepb.WorkerServer.
func (s *Service) Tokenize(_ context.Context, in *enginepb.TokenizeRequest) (*enginepb.TokenizeReply, error) {
	m, _, _, err := s.ready()
	if err != nil {
		return nil, enginepb.StatusError(err)
	}
	p := enginepb.ToPrompt(in.GetPrompt())
	toks, err := tokenize(m, &p, m.Info().VocabSize)
	return &enginepb.TokenizeReply{Tokens: toks}, enginepb.StatusError(err)
}

// Detokenize implements enginepb.WorkerServer.
func (s *Service) Detokenize(_ context.Context, in *enginepb.DetokenizeRequest) (*enginepb.DetokenizeReply, error) {
	m, _, _, err := s.ready()
	if err != nil {
		return nil, enginepb.StatusError(err)
	}
	size := m.Info().VocabSize
	var out []byte
	for _, t := range in.GetTokens() {
		if t < 0 || int(t) >= size {
			return nil, enginepb.StatusError(engine.Invalid("tokens", "holds an id outside the vocabulary"))
		}
		out = append(out, m.SpecialPiece(t)...)
	}
	return &enginepb.DetokenizeReply{Text: out}, nil
}

// Embed implements enginepb.WorkerServer.
func (s *Service) Embed(ctx context.Context, in *enginepb.EmbedRequest) (*enginepb.EmbedReply, error) {
	_, _, e, err := s.ready()
	if err != nil {
		return nil, enginepb.StatusError(err)
	}
	if e == nil {
		return nil, enginepb.StatusError(&engine.Error{Kind: engine.KindUnsupported, Field: "model", Message: "this model was not loaded for embeddings"})
	}
	req := enginepb.ToEmbedRequest(in)
	res, err := e.do(ctx, &req)
	if err != nil {
		return nil, enginepb.StatusError(err)
	}
	return enginepb.FromEmbedResult(&res), nil
}

// Health implements enginepb.WorkerServer.
func (s *Service) Health(context.Context, *enginepb.HealthRequest) (*enginepb.HealthReply, error) {
	_, l, e, err := s.ready()
	out := &enginepb.HealthReply{Loaded: err == nil}
	switch {
	case l != nil:
		if began := l.stepBegan.Load(); began != 0 {
			out.StepAgeNs = int64(l.now()) - began
			out.StepPredictedNs = l.stepPredicted.Load()
		}
		out.Stats = enginepb.FromStats(l.stats.Load())
	case e != nil:
		out.StepAgeNs = e.age()
		out.Stats = enginepb.FromStats(e.stats())
	}
	return out, nil
}

// Register puts the service into a new gRPC server with the protocol's limits.
func Register(s *Service) *grpc.Server {
	g := grpc.NewServer(
		grpc.MaxRecvMsgSize(enginepb.MaxMessageBytes), grpc.MaxSendMsgSize(enginepb.MaxMessageBytes),
		grpc.InitialWindowSize(4<<20), grpc.InitialConnWindowSize(8<<20))
	enginepb.RegisterWorkerServer(g, s)
	return g
}
