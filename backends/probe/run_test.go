package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain turns the test binary into the child that FAKE_CHILD asks for.
func TestMain(m *testing.M) {
	if mode := os.Getenv("FAKE_CHILD"); mode != "" {
		child(mode)
		return
	}
	os.Exit(m.Run())
}

func child(mode string) {
	switch mode {
	case "healthy":
		fmt.Print(healthy)
	case "abort":
		fmt.Print(healthy[:strings.Index(healthy, `{"event":"gemm"`)])
		fmt.Println(`{"event":"gemm","device":"ROCm0","case":"f16","state":"start"}`)
		fmt.Fprintln(os.Stderr, "rocBLAS error: Cannot read /usr/lib/rocblas/library/TensileLibrary.dat: No such file or directory for GPU arch : gfx1151")
		_ = syscall.Exec("/bin/sh", []string{"sh", "-c", "kill -ABRT $$"}, nil)
	case "noload":
		fmt.Println(`{"schema":1,"event":"start"}`)
		fmt.Println(`{"event":"error","stage":"load","message":"libamdhip64.so.6: cannot open shared object file: No such file or directory"}`)
		os.Exit(3)
	case "hang":
		fmt.Println(`{"schema":1,"event":"start"}`)
		_ = syscall.Pause()
	case "helper": // a helper that keeps the pipes open and must die with the group
		c := exec.Command("/bin/sh", "-c", `exec 3>"$FIFO"; exec sleep 3600`)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if c.Start() != nil {
			os.Exit(9)
		}
		if _, err := os.ReadFile(os.Getenv("READY")); err != nil || os.Getenv("STAY") == "" {
			os.Exit(1)
		}
		_ = syscall.Pause()
	case "loud":
		for range 40000 {
			fmt.Fprintln(os.Stderr, "some chatter of a library that logs a lot of lines")
			fmt.Println("and on stdout as well, which is no place for it")
		}
		fmt.Fprintln(os.Stderr, "ROCm error: invalid device function")
		os.Exit(134)
	case "env":
		fmt.Println(`{"schema":1,"event":"start","llama_version":"` + strconv.Itoa(len(os.Environ())) + `"}`)
	}
}

func fake(t *testing.T, mode string, env ...string) Command {
	t.Helper()
	return Command{Path: os.Args[0], Env: append(env, "FAKE_CHILD="+mode)}
}

func TestRunHealthy(t *testing.T) {
	r, err := Run(context.Background(), fake(t, "healthy"), 0)
	if err != nil || !r.OK() || len(r.Devices) != 1 {
		t.Fatalf("err %v, result %+v", err, r)
	}
}

func TestRunAbortIsDiagnosed(t *testing.T) {
	r, err := Run(context.Background(), fake(t, "abort"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() || r.Exit.Signal != "SIGABRT" || r.Stage != StageGemm || len(r.Devices) != 1 {
		t.Errorf("exit %v stage %q", r.Exit, r.Stage)
	}
	if len(r.Findings) == 0 || r.Findings[0].ID != "rocblas-no-tensile" || !strings.Contains(r.Why(), "rocBLAS has no kernel files") {
		t.Errorf("findings %+v why %q", r.Findings, r.Why())
	}
}

func TestRunReportedErrorIsDiagnosed(t *testing.T) {
	r, err := Run(context.Background(), fake(t, "noload"), 0)
	if err != nil || r.Exit.Code != 3 || r.Stage != StageLoad || len(r.Findings) != 1 || r.Findings[0].ID != "lib-missing" {
		t.Errorf("err %v, result %+v", err, r)
	}
}

func TestRunKillsAHang(t *testing.T) {
	r, err := Run(context.Background(), fake(t, "hang"), 300*time.Millisecond)
	if err != nil || !r.Exit.TimedOut || r.OK() || r.Stage != StageLoad {
		t.Errorf("err %v, result %+v", err, r)
	}
	if !strings.Contains(r.Why(), "no answer in time") {
		t.Errorf("why %q", r.Why())
	}
}

func TestRunKillsTheGroup(t *testing.T) {
	for _, stay := range []string{"", "1"} { // the child ends before its helper, or hangs with it
		fifo, ready := filepath.Join(t.TempDir(), "fifo"), filepath.Join(t.TempDir(), "ready")
		if err := errors.Join(syscall.Mkfifo(fifo, 0o600), syscall.Mkfifo(ready, 0o600)); err != nil {
			t.Fatal(err)
		}
		gone := make(chan error)
		go func() {
			f, err := os.Open(fifo) // returns once the helper has the other end
			if err == nil {
				err = os.WriteFile(ready, nil, 0) // lets the child go on
			}
			if err == nil {
				_, err = io.Copy(io.Discard, f) // ends when the helper is dead
			}
			gone <- err
		}()
		begin := time.Now()
		if _, err := Run(context.Background(), fake(t, "helper", "FIFO="+fifo, "READY="+ready, "STAY="+stay), time.Second); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); stay == "" && took > waitDelay {
			t.Errorf("a helper held the pipes for %v", took)
		}
		select {
		case err := <-gone:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the helper outlived its group")
		}
	}
}

func TestRunBoundsOutput(t *testing.T) {
	r, err := Run(context.Background(), fake(t, "loud"), 0)
	if err != nil || len(r.Stderr) > TailSize || len(r.Findings) != 1 || r.Exit.Code != 134 {
		t.Errorf("err %v, %d bytes of stderr, findings %+v, exit %v", err, len(r.Stderr), r.Findings, r.Exit)
	}
}

func TestRunInheritsNothing(t *testing.T) {
	t.Setenv("ROCR_VISIBLE_DEVICES", "9")
	r, err := Run(context.Background(), fake(t, "env"), 0)
	if err != nil || r.LlamaVersion != "1" {
		t.Errorf("child saw %s variables, err %v", r.LlamaVersion, err)
	}
}

func TestRunMissingProgram(t *testing.T) {
	_, err := Run(context.Background(), Command{Path: "/nonexistent/hearth-engine"}, 0)
	if !errors.Is(err, ErrSpawn) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
}

func TestTail(t *testing.T) {
	for _, c := range []struct {
		writes []string
		want   string
	}{
		{[]string{"abc"}, "abc"},
		{[]string{"abc\n", "defg\n"}, "defg\n"},
		{[]string{"12345678"}, "12345678"},
		{[]string{"1\n345678", "9"}, "3456789"},
		{[]string{"a\nb\nc\nd\ne\nf\n"}, "d\ne\nf\n"},
	} {
		tail := NewTail(8)
		for _, w := range c.writes {
			if n, err := tail.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatal(n, err)
			}
		}
		if got := tail.String(); got != c.want {
			t.Errorf("%q -> %q, want %q", c.writes, got, c.want)
		}
	}
}
