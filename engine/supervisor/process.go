package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"hearth/engine"
	"hearth/engine/enginepb"
)

// processes is the launcher that starts real worker processes.
type processes struct {
	cfg *Config
	log *slog.Logger
	// start runs exec.Cmd.Start on one OS thread that lives as long as the pool: Linux sends a child its parent-death
	// signal when the *thread* that forked it ends, and Go ends threads as it likes.
	start chan startOrder
	once  sync.Once
}

// termSignal asks a worker to leave.
const termSignal = syscall.SIGTERM

type startOrder struct {
	cmd *exec.Cmd
	err chan error
}

func newProcesses(cfg *Config, log *slog.Logger) *processes {
	p := &processes{cfg: cfg, log: log, start: make(chan startOrder)}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for o := range p.start {
			o.err <- o.cmd.Start()
		}
	}()
	return p
}

// close ends the starting thread; workers that still live get SIGKILL when hearth itself ends.
func (p *processes) close() { p.once.Do(func() { close(p.start) }) }

// loadError is a failed launch with what the worker printed.
type loadError struct {
	err    error
	stderr string
}

func (e *loadError) Error() string { return e.err.Error() }
func (e *loadError) Unwrap() error { return e.err }

// process is one running worker process.
type process struct {
	cmd    *exec.Cmd
	dir    string // holds the socket; removed at the end
	socket string
	tail   *tail
	first  *stdout
	reaped chan struct{} // closed when the process is gone

	mu     sync.Mutex
	killed string
}

// launch implements launcher.
func (p *processes) launch(ctx context.Context, plan *Plan, on hooks) (worker, error) {
	proc, err := p.spawn(plan, on.note)
	if err != nil {
		return nil, err
	}
	on.started(proc.cmd.Process.Pid)
	fail := func(err error) error {
		proc.kill("its load failed")
		<-proc.reaped
		proc.remove()
		return &loadError{err: err, stderr: proc.tail.String()}
	}
	if err := proc.listening(ctx, p.cfg.StartTimeout); err != nil {
		return nil, fail(err)
	}
	conn, err := dial(proc.socket)
	if err != nil {
		return nil, fail(err)
	}
	info, err := loadModel(ctx, conn, proc, plan, p.cfg.LoadStall, on.progress)
	if err != nil {
		conn.Close()
		return nil, fail(err)
	}
	if want, got := plan.Spec.WantPCI, info.Device.PCI; want != "" && got != "" && want != got {
		conn.Close()
		return nil, fail(&engine.Error{
			Kind:    engine.KindInternal,
			Message: fmt.Sprintf("the model came up on device %s instead of %s", got, want),
		})
	}
	w, err := serve(conn, proc, info, on.frame)
	if err != nil {
		conn.Close()
		return nil, fail(err)
	}
	return w, nil
}

// spawn starts the process in its own group, with its own folder for the socket.
func (p *processes) spawn(plan *Plan, note func([]uint64, bool)) (*process, error) {
	dir, err := os.MkdirTemp(p.cfg.RuntimeDir, "hearth-worker-")
	if err != nil {
		return nil, fmt.Errorf("make the worker's folder: %w", err)
	}
	sock := filepath.Join(dir, "s")
	if len(sock) > 107 {
		_ = os.Remove(dir)
		return nil, fmt.Errorf("the socket path %q is longer than the 107 bytes that unix sockets allow; choose a shorter runtime folder", sock)
	}
	c := plan.Launch("serve", "--socket", sock)
	t := &tail{log: p.log.With("model", plan.Spec.Name)}
	proc := &process{dir: dir, socket: sock, tail: t, first: newStdout(t, note), reaped: make(chan struct{})}
	proc.cmd = &exec.Cmd{
		Path: c.Path, Args: c.Argv, Env: environment(p.cfg.Env, plan, &c), Dir: "/",
		Stdout: proc.first, Stderr: t,
		// A grandchild may keep the pipes open; do not wait for it.
		WaitDelay:   time.Second,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	order := startOrder{cmd: proc.cmd, err: make(chan error, 1)}
	p.start <- order
	if err := <-order.err; err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	go func() {
		_ = proc.cmd.Wait() // how it ended is read from ProcessState
		close(proc.reaped)
	}()
	return proc, nil
}

// listening waits for the line that says the socket is open.
func (p *process) listening(ctx context.Context, limit time.Duration) error {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case line := <-p.first.line:
		if line != enginepb.ListeningLine {
			return fmt.Errorf("the engine printed %q where %q was expected: is it hearth-engine?", line, enginepb.ListeningLine)
		}
		return nil
	case <-p.reaped:
		return fmt.Errorf("the engine %s", p.exit())
	case <-t.C:
		return fmt.Errorf("the engine did not open its socket within %s", limit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// kill ends the whole process group; the first reason counts.
func (p *process) kill(why string) {
	p.mu.Lock()
	if p.killed == "" {
		p.killed = why
	}
	p.mu.Unlock()
	p.signal(syscall.SIGKILL)
}

// signal sends sig to the process group unless it is gone, whose id may belong to others by then.
func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.reaped:
		return
	default:
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.tail.log.Warn("signal the worker", "signal", sig.String(), "err", err)
	}
}

// exit says how it ended. Call it after reaped is closed.
func (p *process) exit() exit {
	e := exitOf(p.cmd.ProcessState)
	e.stderr = p.tail.String()
	p.mu.Lock()
	defer p.mu.Unlock()
	e.killed = p.killed
	return e
}

func (p *process) remove() {
	if err := os.RemoveAll(p.dir); err != nil {
		p.tail.log.Warn("remove the worker's folder", "err", err)
	}
}
