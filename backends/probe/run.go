package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of one child.
const (
	// DefaultDeadline bounds one child. A HIP start takes 0.2..3 s on a healthy machine and up to 20 s when many code
	// objects are read from a cold disk; a hang never ends.
	DefaultDeadline = 60 * time.Second
	// TailSize is how much stderr is kept, in bytes. rocBLAS and AMD_LOG_LEVEL print their verdict last.
	TailSize  = 64 << 10
	maxStdout = 1 << 20 // bytes; a healthy child writes a few KiB
	// waitDelay is how long a killed child's pipes may stay open (a grandchild may hold them).
	waitDelay = 2 * time.Second
)

// Command is a child to start: what engine/bundle makes of `hearth-engine devices --plugin PATH`.
type Command struct {
	Path string   // program (the bundle's loader, when it has one)
	Argv []string // argv[0] included; empty: Path alone
	Env  []string // the whole environment; nothing is inherited
	Dir  string
}

// Exit says how a child ended.
type Exit struct {
	Code     int    `json:"code"`             // exit status, -1 when a signal ended it
	Signal   string `json:"signal,omitempty"` // "SIGABRT", "SIGSEGV"...
	TimedOut bool   `json:"timed_out,omitempty"`
}

// String is "exit 3", "SIGABRT" or "no answer in time".
func (e Exit) String() string {
	switch {
	case e.TimedOut:
		return "no answer in time"
	case e.Signal != "":
		return e.Signal
	}
	return fmt.Sprintf("exit %d", e.Code)
}

// Result is what a child told, how it ended and what its texts mean.
type Result struct {
	Stage        Stage         `json:"stage"`
	LlamaVersion string        `json:"llama_version,omitempty"`
	GGMLVersion  string        `json:"ggml_version,omitempty"`
	Registry     string        `json:"registry,omitempty"` // "ROCm", "Vulkan", "CPU"
	Devices      []Device      `json:"devices"`
	Gemms        []Gemm        `json:"gemms,omitempty"`
	Errors       []string      `json:"errors,omitempty"` // what the child itself reported
	Exit         Exit          `json:"exit"`
	Took         time.Duration `json:"took_ns"`
	Stderr       string        `json:"-"` // the last TailSize bytes
	Findings     []Finding     `json:"findings"`
}

// ErrSpawn is wrapped by Run's error when the child could not be started at all.
var ErrSpawn = errors.New("probe child could not be started")

// Run starts the child, waits for it at most deadline (0: DefaultDeadline) and kills its process group then. The error
// is non-nil only when no child ran; a child that died is a Result whose OK is false.
func Run(ctx context.Context, c Command, deadline time.Duration) (Result, error) {
	if deadline <= 0 {
		deadline = DefaultDeadline
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Path)
	if len(c.Argv) > 0 {
		cmd.Args = c.Argv
	}
	cmd.Env, cmd.Dir = c.Env, c.Dir
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	// Its own group, so that a helper it started dies with it; Pdeathsig, so that it does not outlive hearth.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var ended atomic.Bool // set while the leader is a zombie: afterwards its number may belong to someone else
	cmd.Cancel = func() error {
		if ended.Load() {
			return os.ErrProcessDone
		}
		return killGroup(cmd.Process.Pid)
	}
	cmd.WaitDelay = waitDelay
	stdout, stderr := &head{max: maxStdout}, NewTail(TailSize)
	cmd.Stdout, cmd.Stderr = stdout, stderr

	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return Result{Stage: StageSpawn, Devices: []Device{}, Findings: []Finding{}}, fmt.Errorf("%w: %w", ErrSpawn, err)
	}
	awaitExit(cmd.Process.Pid)
	ended.Store(true)
	timedOut := ctx.Err() != nil
	_ = killGroup(cmd.Process.Pid) // helpers it left behind; ESRCH when there are none
	_ = cmd.Wait()                 // reaps and closes the pipes; how it ended is in ProcessState
	r := interpret(stdout.buf, stderr.String())
	r.Took = time.Since(begin)
	r.Exit = exitOf(cmd.ProcessState, timedOut && !cmd.ProcessState.Success())
	return r, nil
}

// awaitExit blocks until the process is a zombie, without reaping it, so that its group can still be named safely.
func awaitExit(pid int) {
	const pPID, wExited, wNoWait = 1, 4, 0x01000000 // waitid(2), linux/wait.h
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(pid), 0, wExited|wNoWait, 0, 0)
		if errno != syscall.EINTR {
			return
		}
	}
}

func killGroup(pid int) error {
	err := syscall.Kill(-pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

func exitOf(st *os.ProcessState, timedOut bool) Exit {
	e := Exit{Code: -1, TimedOut: timedOut}
	if st == nil {
		return e
	}
	e.Code = st.ExitCode()
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = signalName(ws.Signal())
	}
	return e
}

// signalName gives the few signals that end engine processes their usual names.
func signalName(s syscall.Signal) string {
	switch s {
	case syscall.SIGABRT:
		return "SIGABRT"
	case syscall.SIGSEGV:
		return "SIGSEGV"
	case syscall.SIGBUS:
		return "SIGBUS"
	case syscall.SIGILL:
		return "SIGILL"
	case syscall.SIGKILL:
		return "SIGKILL"
	case syscall.SIGTERM:
		return "SIGTERM"
	}
	return fmt.Sprintf("signal %d", int(s))
}

// interpret turns a child's two streams into a Result; Exit and Took are the caller's.
func interpret(stdout []byte, stderr string) Result {
	t := parseTranscript(stdout)
	r := Result{
		Stage: t.stage, LlamaVersion: t.llama, GGMLVersion: t.ggml, Registry: t.registry, Devices: t.devices,
		Gemms: t.gemms, Errors: t.errors, Stderr: stderr,
	}
	if r.Devices == nil {
		r.Devices = []Device{}
	}
	addVulkanLines(r.Devices, stderr)
	// An error line carries texts of the stack as well (what dlopen said), so both are matched.
	r.Findings = Diagnose(stderr + "\n" + strings.Join(t.errors, "\n"))
	return r
}

// OK says that the child finished, and that every matrix product it began was right.
func (r *Result) OK() bool {
	if r.Stage != StageDone || r.Exit.Code != 0 || r.Exit.TimedOut {
		return false
	}
	for _, g := range r.Gemms {
		if !g.Done || !g.OK {
			return false
		}
	}
	return true
}

// Why says in one line why the result is not OK; empty when it is.
func (r *Result) Why() string {
	if r.OK() {
		return ""
	}
	if c := Causes(r.Findings, 1); c != "" {
		return c
	}
	if len(r.Errors) > 0 {
		return r.Errors[0]
	}
	for _, g := range r.Gemms {
		if g.Done && !g.OK {
			return fmt.Sprintf("wrong result: %s %s is off by %g", g.Device, g.Case, g.MaxError)
		}
	}
	if line := lastLine(r.Stderr); line != "" {
		return fmt.Sprintf("%s while at stage %q: %s", r.Exit, r.Stage, clip(line, maxEvidence))
	}
	return fmt.Sprintf("%s while at stage %q", r.Exit, r.Stage)
}

func lastLine(s string) string {
	s = strings.TrimRight(s, "\n \t")
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}
