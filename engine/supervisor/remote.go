package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"hearth/engine"
	"hearth/engine/enginepb"
)

// remote is a worker process with its model loaded, reached over gRPC.
type remote struct {
	proc   *process
	conn   *grpc.ClientConn
	client enginepb.WorkerClient
	inf    engine.Info
	gone   chan struct{}

	mu     sync.Mutex // one sender at a time
	stream enginepb.Worker_ServeClient
}

// dial connects to a worker's socket. The folder's mode keeps other users out, so the connection needs no secret.
func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(enginepb.MaxMessageBytes), grpc.MaxCallSendMsgSize(enginepb.MaxMessageBytes)),
		// One prompt may be larger than gRPC's 64 KiB window; a stalled window would hold up every request's frames.
		grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(8<<20),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("connect to the engine: %w", err)
	}
	return conn, nil
}

// loadModel runs the Load call: progress goes to report, a load without news for stall is given up.
func loadModel(ctx context.Context, conn *grpc.ClientConn, proc *process, plan *Plan, stall time.Duration,
	report func(string, float64),
) (engine.Info, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stall, func() {
		cancel(fmt.Errorf("the load made no progress for %s", stall))
	})
	defer stalled.Stop()
	go func() { // the connection would otherwise try to reconnect to a process that is gone
		select {
		case <-proc.reaped:
			cancel(fmt.Errorf("the engine %s", proc.exit()))
		case <-ctx.Done():
		}
	}()
	wrap := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		err = enginepb.FromStatusError(err)
		if engine.KindOf(err) != engine.KindUnavailable {
			return err
		}
		// Most likely it is dying: how it ended says more than the broken connection does.
		select {
		case <-proc.reaped:
			return fmt.Errorf("the engine %s", proc.exit())
		case <-time.After(time.Second):
			return err
		}
	}
	stream, err := enginepb.NewWorkerClient(conn).Load(ctx, enginepb.FromLoadSpec(&plan.Spec))
	if err != nil {
		return engine.Info{}, wrap(err)
	}
	for {
		ev, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return engine.Info{}, errors.New("the engine ended the load without describing the model")
		case err != nil:
			return engine.Info{}, wrap(err)
		}
		stalled.Reset(stall)
		if ev.Info != nil {
			return enginepb.ToInfo(ev.Info), nil
		}
		report(ev.GetStage(), float64(ev.GetProgress()))
	}
}

// serve opens the multiplexed stream and starts to deliver its frames.
func serve(conn *grpc.ClientConn, proc *process, info engine.Info, frame func(*enginepb.WorkerFrame)) (*remote, error) {
	r := &remote{proc: proc, conn: conn, client: enginepb.NewWorkerClient(conn), inf: info, gone: make(chan struct{})}
	stream, err := r.client.Serve(context.Background())
	if err != nil {
		return nil, fmt.Errorf("open the stream to the engine: %w", enginepb.FromStatusError(err))
	}
	r.stream = stream
	go r.receive(frame)
	return r, nil
}

// receive delivers frames until the stream breaks, then sees the process off.
func (r *remote) receive(frame func(*enginepb.WorkerFrame)) {
	for {
		f, err := r.stream.Recv()
		if err != nil {
			break
		}
		frame(f)
	}
	// A stream does not end on a healthy worker. Usually the process is dying already; give it a moment to do so, so
	// that its own exit status is seen and not our signal.
	t := time.NewTimer(2 * time.Second)
	select {
	case <-r.proc.reaped:
	case <-t.C:
		r.proc.kill("it ended the stream")
		<-r.proc.reaped
	}
	t.Stop()
	_ = r.conn.Close()
	r.proc.remove()
	close(r.gone)
}

func (r *remote) info() engine.Info     { return r.inf }
func (r *remote) pid() int              { return r.proc.cmd.Process.Pid }
func (r *remote) done() <-chan struct{} { return r.gone }
func (r *remote) end() exit             { return r.proc.exit() }

func (r *remote) submit(id uint64, req *engine.Request) error {
	return r.send(&enginepb.ClientFrame{Id: id, Body: &enginepb.ClientFrame_Submit{Submit: enginepb.FromRequest(req)}})
}

func (r *remote) cancel(id uint64) {
	// When this fails the worker is gone, and the request with it.
	_ = r.send(&enginepb.ClientFrame{Id: id, Body: &enginepb.ClientFrame_Cancel{Cancel: true}})
}

func (r *remote) send(f *enginepb.ClientFrame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stream.Send(f)
}

// callError words the failure of a call. A call that meets the closing of its connection is called cancelled by gRPC, but
// nobody cancelled it unless ctx says so: the worker is gone, and the call may be made again on the next one.
func callError(ctx context.Context, err error) error {
	err = enginepb.FromStatusError(err)
	if engine.KindOf(err) == engine.KindCancelled && ctx.Err() == nil {
		return &engine.Error{Kind: engine.KindUnavailable, Message: "the model's worker is not reachable", Cause: err}
	}
	return err
}

func (r *remote) tokenize(ctx context.Context, p engine.Prompt) ([]engine.Token, error) {
	out, err := r.client.Tokenize(ctx, &enginepb.TokenizeRequest{Prompt: enginepb.FromPrompt(&p)})
	return out.GetTokens(), callError(ctx, err)
}

func (r *remote) detokenize(ctx context.Context, tokens []engine.Token) ([]byte, error) {
	out, err := r.client.Detokenize(ctx, &enginepb.DetokenizeRequest{Tokens: tokens})
	return out.GetText(), callError(ctx, err)
}

func (r *remote) embed(ctx context.Context, req engine.EmbedRequest) (engine.EmbedResult, error) {
	out, err := r.client.Embed(ctx, enginepb.FromEmbedRequest(&req))
	if err != nil {
		return engine.EmbedResult{}, callError(ctx, err)
	}
	return enginepb.ToEmbedResult(out), nil
}

func (r *remote) health(ctx context.Context) (health, error) {
	out, err := r.client.Health(ctx, &enginepb.HealthRequest{})
	if err != nil {
		return health{}, callError(ctx, err)
	}
	return health{
		stepAge: time.Duration(out.GetStepAgeNs()), predicted: time.Duration(out.GetStepPredictedNs()),
		stats: enginepb.ToStats(out.GetStats()),
	}, nil
}

func (r *remote) kill(why string) {
	r.proc.kill(why)
	<-r.gone
}

func (r *remote) stop(grace time.Duration) {
	r.proc.signal(termSignal)
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-r.gone:
	case <-t.C:
		r.kill(fmt.Sprintf("it did not stop within %s", grace))
	}
}
