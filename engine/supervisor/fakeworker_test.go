package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"hearth/engine"
	"hearth/engine/enginepb"
)

// The tests start their own binary again as a worker process: `TESTBINARY fakeworker key=value... serve --socket PATH`.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "fakeworker" {
		fakeWorker(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

// fakeServer speaks the worker's protocol and makes up tokens: number i of a choice is 100*(choice+1)+i, its text "<i> ".
type fakeServer struct {
	enginepb.UnimplementedWorkerServer
	opt  map[string]string
	life int // 1 for the first process of a test
	mu   sync.Mutex
	sent int
}

func fakeWorker(args []string) {
	f := &fakeServer{opt: map[string]string{}, life: 1}
	var socket string
	for i, a := range args {
		if k, v, ok := strings.Cut(a, "="); ok {
			f.opt[k] = v
		}
		if a == "--socket" {
			socket = args[i+1]
		}
	}
	if path := f.opt["lives"]; path != "" {
		b, _ := os.ReadFile(path)
		f.life = len(b) + 1
		_ = os.WriteFile(path, append(b, '.'), 0o600)
	}
	fmt.Fprintln(os.Stderr, "fake worker, life", f.life)
	switch f.opt["start"] {
	case "garbage":
		fmt.Println("\x7fELF what is this")
	case "silent":
	case "exit":
		fmt.Fprintln(os.Stderr, "libggml-hip.so: cannot open shared object file")
		os.Exit(3)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if f.opt["start"] == "" {
		fmt.Println(enginepb.ListeningLine)
	}
	s := grpc.NewServer()
	enginepb.RegisterWorkerServer(s, f)
	if f.opt["term"] == "ignore" {
		ignoreTerm()
	}
	if err := s.Serve(l); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// on says whether the option is set for this life: "crash=5@2" counts only in the second one, "crash=5" in every one.
func (f *fakeServer) on(key string) (string, bool) {
	v, ok := f.opt[key]
	if !ok {
		return "", false
	}
	v, life, limited := strings.Cut(v, "@")
	if limited && !strings.Contains(life, strconv.Itoa(f.life)) {
		return "", false
	}
	return v, true
}

func (f *fakeServer) Load(spec *enginepb.LoadSpec, s enginepb.Worker_LoadServer) error {
	if err := s.Send(&enginepb.LoadEvent{Stage: "weights", Progress: 0.25}); err != nil {
		return err
	}
	if path, ok := f.on("gate"); ok { // a fifo: opens when the test opens its end
		g, err := os.Open(path)
		if err != nil {
			return err
		}
		_, _ = g.Read(make([]byte, 1))
		_ = g.Close()
	}
	switch v, _ := f.on("load"); v {
	case "invalid":
		return enginepb.StatusError(&engine.Error{Kind: engine.KindInvalid, Message: "the file is no GGUF", Field: "path"})
	case "memory":
		return enginepb.StatusError(&engine.Error{Kind: engine.KindUnavailable, Message: "out of device memory"})
	case "abort":
		fmt.Fprintln(os.Stderr, "GGML_ASSERT(ptr) failed")
		_ = syscall.Kill(os.Getpid(), syscall.SIGABRT)
		select {}
	case "stall":
		<-s.Context().Done()
		return s.Context().Err()
	}
	return s.Send(&enginepb.LoadEvent{Stage: "ready", Progress: 1, Info: enginepb.FromInfo(&engine.Info{
		Name: spec.GetName(), Backend: spec.GetBackend(), Context: 1024,
		Device: engine.Device{Name: "Fake0", PCI: f.opt["pci"]},
	})})
}

func (f *fakeServer) Serve(s enginepb.Worker_ServeServer) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	cancels := map[uint64]context.CancelFunc{}
	for {
		in, err := s.Recv()
		if err != nil {
			for _, c := range cancels {
				c()
			}
			return err
		}
		if sub := in.GetSubmit(); sub != nil {
			ctx, cancel := context.WithCancel(s.Context())
			cancels[in.Id] = cancel
			wg.Go(func() { f.generate(ctx, s, in.Id, enginepb.ToRequest(sub)) })
		} else if in.GetCancel() && cancels[in.Id] != nil {
			cancels[in.Id]()
			fmt.Fprintln(os.Stderr, "cancelled", in.Id)
		}
	}
}

// generate sends one frame for each token of the request's choices.
func (f *fakeServer) generate(ctx context.Context, s enginepb.Worker_ServeServer,
	id uint64, r engine.Request,
) {
	send := func(fr *enginepb.WorkerFrame) {
		f.mu.Lock()
		defer f.mu.Unlock()
		_ = s.Send(fr)
	}
	if r.Prompt.Segments[0].Text == "refuse" {
		send(&enginepb.WorkerFrame{Failures: []*enginepb.Failure{{Id: id, Error: enginepb.FromError(engine.ContextLength(9, 8))}}})
		return
	}
	fmt.Println(enginepb.AdmittedPrefix + fmt.Sprint(id))
	if r.Prompt.Segments[0].Text == "crash" {
		f.die()
	}
	made := make([]int, r.Choices())
	for c, toks := range r.Resume {
		made[c] = len(toks)
	}
	for i := 0; i < r.MaxTokens; i++ {
		for c := range made {
			if made[c] > i { // resumed
				continue
			}
			if ctx.Err() != nil {
				return
			}
			ev := engine.Event{Choice: c, Tokens: []engine.Token{engine.Token(100*(c+1) + i)}, Text: fmt.Sprintf("%d ", i)}
			if i == r.MaxTokens-1 {
				ev.Finish = engine.FinishLength
				if c == len(made)-1 {
					ev.Usage = &engine.Usage{CompletionTokens: len(made) * r.MaxTokens, Seed: *r.Sampling.Seed}
				}
			}
			send(&enginepb.WorkerFrame{
				Events: []*enginepb.Event{enginepb.FromEvent(id, &ev)},
				Stats:  enginepb.FromStats(&engine.Stats{Running: 1, CompletionTokens: uint64(i)}),
			})
			made[c]++
			f.mu.Lock()
			f.sent++
			sent := f.sent
			f.mu.Unlock()
			if v, ok := f.on("crash"); ok && strconv.Itoa(sent) == v {
				f.die()
			}
		}
	}
}

// die ends the process the way the option "how" says.
func (f *fakeServer) die() {
	fmt.Fprintln(os.Stderr, "Memory access fault by GPU node-1")
	switch f.opt["how"] {
	case "fault":
		os.Exit(enginepb.ExitBackendFault)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	default:
		_ = syscall.Kill(os.Getpid(), syscall.SIGABRT)
	}
	select {}
}

func (f *fakeServer) Tokenize(_ context.Context, r *enginepb.TokenizeRequest) (*enginepb.TokenizeReply, error) {
	p := enginepb.ToPrompt(r.GetPrompt())
	if p.Segments[0].Text == "bad" {
		return nil, enginepb.StatusError(engine.Invalid("content", "is bad"))
	}
	if p.Segments[0].Text == "crash" {
		if _, ok := f.on("tokcrash"); ok {
			f.die()
		}
	}
	return &enginepb.TokenizeReply{Tokens: []int32{int32(len(p.Segments[0].Text)), int32(f.life)}}, nil
}

func (f *fakeServer) Detokenize(_ context.Context, r *enginepb.DetokenizeRequest) (*enginepb.DetokenizeReply, error) {
	return &enginepb.DetokenizeReply{Text: fmt.Append(nil, r.GetTokens())}, nil
}

func (f *fakeServer) Health(ctx context.Context, _ *enginepb.HealthRequest) (*enginepb.HealthReply, error) {
	if _, ok := f.on("mute"); ok {
		<-ctx.Done()
		return nil, errors.New("mute")
	}
	out := &enginepb.HealthReply{Loaded: true, Stats: enginepb.FromStats(&engine.Stats{Steps: 7})}
	if _, ok := f.on("hang"); ok {
		out.StepAgeNs, out.StepPredictedNs = int64(time.Hour), int64(time.Millisecond)
	}
	return out, nil
}
