package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hearth/bench/load"
)

// Server is one contender.
type Server struct {
	Name string
	// Argv starts it; "{port}" is replaced by Port.
	Argv []string
	Env  []string // beside the caller's environment
	Port int
	// ReadyPath answers 200 when requests will be served ("/ready", "/health").
	ReadyPath string
	// Model is the name to send in requests; empty: the first of GET /v1/models once the server is ready.
	Model string
	// WorkerName, when set, is part of the command line of the child process whose memory counts; empty: the process itself.
	WorkerName string
	// LogFile takes stdout and stderr.
	LogFile string
}

// Process is a started Server.
type Process struct {
	Server
	cmd   *exec.Cmd
	log   *os.File
	done  chan struct{}
	err   error
	ready time.Duration // start to first 200 on ReadyPath
}

func (p *Process) url() string { return "http://127.0.0.1:" + strconv.Itoa(p.Port) }

// Start runs the server and waits until it is ready, its process ends, or ctx does.
func Start(ctx context.Context, s Server) (*Process, error) {
	argv := make([]string, len(s.Argv))
	for i, a := range s.Argv {
		argv[i] = strings.ReplaceAll(a, "{port}", strconv.Itoa(s.Port))
	}
	p := &Process{Server: s, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	log, err := os.Create(s.LogFile)
	if err != nil {
		return nil, err
	}
	p.log = log
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), s.Env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	begin := time.Now()
	if err := p.cmd.Start(); err != nil {
		log.Close()
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := p.waitReady(ctx); err != nil {
		p.Stop()
		return nil, fmt.Errorf("%s did not become ready: %w; its log is %s", s.Name, err, s.LogFile)
	}
	p.ready = time.Since(begin)
	if p.Model == "" {
		if err := p.askModel(ctx); err != nil {
			p.Stop()
			return nil, fmt.Errorf("models of %s: %w", s.Name, err)
		}
	}
	return p, nil
}

// askModel takes the first model of the server's list.
func (p *Process) askModel(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url()+"/v1/models", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return err
	}
	if len(list.Data) == 0 {
		return errors.New("the list is empty")
	}
	p.Model = list.Data[0].ID
	return nil
}

// Client returns a load client for the process. timeout bounds one request; 0: ten minutes.
func (p *Process) Client(timeout time.Duration) *load.Client {
	// A connection for each request: llama-server closes idle ones after five seconds, in the middle of the next request.
	tr := &http.Transport{DisableKeepAlives: true}
	return &load.Client{BaseURL: p.url(), Model: p.Model, HTTP: &http.Client{Transport: tr}, IgnoreEOS: true, Timeout: timeout}
}

func (p *Process) waitReady(ctx context.Context) error {
	client := &http.Client{Timeout: 2 * time.Second}
	tick := time.NewTicker(5 * time.Millisecond) // the resolution of the start-up figure
	defer tick.Stop()
	for {
		resp, err := client.Get(p.url() + p.ReadyPath)
		if err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return errors.Join(errors.New("the process ended"), p.err)
		case <-tick.C:
		}
	}
}

// Stop ends the process: SIGTERM, then SIGKILL after ten seconds.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.cmd.Process.Kill()
		<-p.done
	}
	p.log.Close()
}

// Memory is a process's memory in bytes, from /proc/PID/smaps_rollup and status. Pss counts pages shared with other
// processes (the model file in the page cache, when two servers map it) by their share; Anon is private memory only.
type Memory struct {
	RSS  uint64 `json:"rss_bytes"`
	PSS  uint64 `json:"pss_bytes"`
	Anon uint64 `json:"anonymous_bytes"`
	Peak uint64 `json:"peak_rss_bytes"`
}

// memory reads the front process and, when the server has a worker, the worker apart.
func (p *Process) memory() (front, worker Memory, err error) {
	front, err = readMemory("/proc", p.cmd.Process.Pid)
	if err != nil || p.WorkerName == "" {
		return front, front, err
	}
	pid, err := findChild("/proc", p.cmd.Process.Pid, p.WorkerName)
	if err != nil {
		return front, Memory{}, err
	}
	worker, err = readMemory("/proc", pid)
	return front, worker, err
}

func readMemory(proc string, pid int) (Memory, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	rollup, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return Memory{}, err
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return Memory{}, err
	}
	r, s := parseKiB(string(rollup)), parseKiB(string(status))
	return Memory{RSS: r["Rss"], PSS: r["Pss"], Anon: r["Anonymous"], Peak: s["VmHWM"]}, nil
}

// parseKiB reads "Name:   123 kB" lines into bytes.
func parseKiB(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) != 2 || f[1] != "kB" {
			continue
		}
		if v, err := strconv.ParseUint(f[0], 10, 64); err == nil {
			out[name] = v << 10
		}
	}
	return out
}

// findChild returns the descendant of pid whose command line holds name.
func findChild(proc string, pid int, name string) (int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0, err
	}
	parent, cmdline := map[int]int{}, map[int]string{}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err1 := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		cmd, err2 := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline"))
		if err1 != nil || err2 != nil {
			continue // it ended meanwhile
		}
		// the second field is the name in parentheses and may hold anything
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) > 1 {
			parent[id], _ = strconv.Atoi(f[1])
			cmdline[id] = string(cmd)
		}
	}
	for id, cmd := range cmdline {
		if !strings.Contains(cmd, name) {
			continue
		}
		for up := parent[id]; up > 1; up = parent[up] {
			if up == pid {
				return id, nil
			}
		}
	}
	return 0, fmt.Errorf("process %d has no child named %q", pid, name)
}
