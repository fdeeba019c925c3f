package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"time"

	"google.golang.org/grpc"

	"hearth/engine/enginepb"
	"hearth/engine/worker"
)

// closeLimit is how long freeing the model may take after the order to stop; the process ends in any case, which frees
// whatever is left. A driver that hangs in its own teardown is what makes the limit necessary.
const closeLimit = 3 * time.Second

// leastProcs is how many goroutines may run or be in a call into C at a time, whatever the number of CPUs: a step and a
// prompt that is being tokenised each hold one for milliseconds, until the runtime's monitor takes it, which the engine
// lets wake late (engine/llama/threads.c).
const leastProcs = 4

func serve(ctx context.Context, in *invocation) int {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	socket := fs.String("socket", "", "path of the unix socket to listen on")
	dir := fs.String("bundle", "", "engine bundle (default: the one this binary lies in)")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	if code, done := in.parse(fs); done {
		return code
	}
	if *socket == "" {
		fmt.Fprintln(in.stderr, "hearth-engine: serve needs --socket")
		return exitUsage
	}
	log, err := in.logger(*level)
	if err != nil {
		return in.fail(err)
	}
	opener, err := in.opener(*dir, log)
	if err != nil {
		return in.fail(err)
	}
	l, err := listen(*socket)
	if err != nil {
		return in.fail(err)
	}
	if runtime.GOMAXPROCS(0) < leastProcs {
		runtime.GOMAXPROCS(leastProcs)
	}
	svc := worker.NewService(opener, in.stdout, log)
	g := worker.Register(svc)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	fmt.Fprintln(in.stdout, enginepb.ListeningLine)
	select {
	case <-ctx.Done():
	case <-svc.Done():
	case err := <-served:
		return in.fail(err)
	}
	return shutDown(svc, g, log)
}

// listen opens the socket for the user alone.
func listen(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("protect the socket: %w", err)
	}
	return l, nil
}

// shutDown ends the service and says how the process should exit.
func shutDown(svc *worker.Service, g *grpc.Server, log *slog.Logger) int {
	code := exitOK
	if err := svc.Err(); err != nil {
		code = exitFailed
		if errors.Is(err, worker.ErrBackend) {
			// The backend cannot be trusted any more, not even to be taken down.
			g.Stop()
			return enginepb.ExitBackendFault
		}
	}
	closed := make(chan struct{})
	go func() {
		svc.Close()
		close(closed)
	}()
	t := time.NewTimer(closeLimit)
	defer t.Stop()
	select {
	case <-closed:
	case <-t.C:
		log.Warn("freeing the model takes too long, leaving it to the kernel")
	}
	g.Stop()
	return code
}
