package llama

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// slack is the calling thread's timer slack in ns.
func slack(t *testing.T) uintptr {
	t.Helper()
	const get = 30 // PR_GET_TIMERSLACK
	n, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, get, 0, 0)
	if errno != 0 {
		t.Skipf("this kernel has no timer slack: %v", errno)
	}
	return n
}

// manyThreads runs f on that many threads at the same time.
func manyThreads(n int, f func()) {
	var all, done sync.WaitGroup
	all.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
			f()
		})
	}
	done.Wait()
}

func TestThreadsKeepTheirTimerSlack(t *testing.T) {
	most := slack(t)
	var mu sync.Mutex
	manyThreads(16, func() {
		s := slack(t)
		mu.Lock()
		defer mu.Unlock()
		most = max(most, s)
	})
	if most >= 1e6 {
		t.Errorf("a thread that may compute has a timer slack of %d ns", most)
	}
}

func TestOnlyTheMonitorMayWakeLate(t *testing.T) {
	slack(t)
	manyThreads(16, func() {})
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(tasks) < 2 {
		t.Fatalf("%d threads, %v", len(tasks), err)
	}
	read, late := 0, 0
	for _, task := range tasks {
		// The kernel has the file of a thread here, not below task.
		b, err := os.ReadFile(filepath.Join("/proc", filepath.Base(task), "timerslack_ns"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			t.Skipf("the slack of other threads takes a privilege to read: %v", err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		if read++; n >= 1e6 {
			late++
		}
	}
	if read == 0 {
		t.Skip("this kernel does not tell the slack of threads")
	}
	if late != 1 {
		t.Errorf("%d of %d threads have the monitor's timer slack, not one", late, len(tasks))
	}
}
