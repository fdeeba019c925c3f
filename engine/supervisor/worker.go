package supervisor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"hearth/engine"
	"hearth/engine/enginepb"
)

// worker is one live worker with its model loaded. Tests put a fake in its place.
type worker interface {
	info() engine.Info
	pid() int
	// submit and cancel hand a request over; an error means that the connection is gone, which done reports as well.
	submit(id uint64, r *engine.Request) error
	cancel(id uint64)
	tokenize(ctx context.Context, p engine.Prompt) ([]engine.Token, error)
	detokenize(ctx context.Context, tokens []engine.Token) ([]byte, error)
	embed(ctx context.Context, r engine.EmbedRequest) (engine.EmbedResult, error)
	health(ctx context.Context) (health, error)
	// done is closed when the worker is gone and every frame of it was delivered; end then says why.
	done() <-chan struct{}
	end() exit
	// kill ends it at once, stop asks first and kills after grace. Both return when done is closed.
	kill(why string)
	stop(grace time.Duration)
}

// launcher starts workers. launch returns when the model is loaded; frames go to sink from then on, one at a time.
type launcher interface {
	launch(ctx context.Context, plan *Plan, on hooks) (worker, error)
	close()
}

// hooks are a launch's callbacks; they must not block.
type hooks struct {
	started  func(pid int)
	progress func(stage string, fraction float64)
	frame    func(*enginepb.WorkerFrame)
	note     func(ids []uint64, working bool) // what the worker works on, told before it does
}

// health is a worker's own account of its step loop.
type health struct {
	stepAge, predicted time.Duration
	stats              engine.Stats
}

// slowest step that is let pass when the scheduler had no prediction: a first use of a shape may compile pipelines.
const unpredictedLimit = 5 * time.Minute

// hung says whether the running step will not come back: older than limit and than ten times its prediction.
func (h health) hung(limit time.Duration) bool {
	if h.predicted <= 0 {
		return h.stepAge > max(limit, unpredictedLimit)
	}
	return h.stepAge > limit && h.stepAge > 10*h.predicted
}

// exit says how a worker ended.
type exit struct {
	code   int            // exit status, -1 when a signal ended it
	signal syscall.Signal // 0: none
	killed string         // why the supervisor killed it, "" when it did not
	stderr string         // what it printed last
}

// exitOf reads a finished process.
func exitOf(ps *os.ProcessState) exit {
	e := exit{code: -1}
	if ps == nil {
		return e
	}
	e.code = ps.ExitCode()
	if ws, ok := ps.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.signal = ws.Signal()
	}
	return e
}

// fault says whether the backend is the likely cause: a hang, a signal that broken code raises, or the exit code that
// the worker keeps for it. SIGKILL and SIGTERM come from outside (a person, the kernel's out-of-memory killer).
func (e exit) fault() bool {
	if e.killed != "" {
		return true
	}
	switch e.signal {
	case syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE:
		return true
	}
	// Go turns a SIGSEGV in C code into exit status 2 with a trace.
	return e.code == enginepb.ExitBackendFault || e.code == 2
}

// String says what happened, with the last words on stderr.
func (e exit) String() string {
	var s string
	switch {
	case e.killed != "":
		s = "killed: " + e.killed
	case e.signal == syscall.SIGKILL:
		s = "killed from outside (signal 9; the kernel does this when memory runs out)"
	case e.signal != 0:
		s = fmt.Sprintf("died of signal %d (%s)", int(e.signal), e.signal)
	case e.code == enginepb.ExitBackendFault:
		s = "left after a backend failure"
	default:
		s = fmt.Sprintf("exited with status %d", e.code)
	}
	if line := lastWords(e.stderr); line != "" {
		s += ": " + line
	}
	return s
}

// lastWords is the line of a dying program's stderr that says why: the last one before Go's own crash report, or that
// report's headline when it is about Go. At most 300 bytes.
func lastWords(text string) string {
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		headline := strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
		trace := strings.HasPrefix(line, "SIG") && strings.Contains(line, ": ") || strings.HasPrefix(line, "goroutine ")
		if trace && last != "" {
			break
		}
		if line != "" {
			last = line
		}
		if headline {
			break
		}
	}
	return last[:min(len(last), 300)]
}
