package worker

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// A test's goroutine may itself sit on the first thread; many rounds meet the case that the new goroutine is put there.
func TestOnThreadThatEnds(t *testing.T) {
	for range 300 {
		var tid int
		onThreadThatEnds(func() { tid = syscall.Gettid() })
		if tid == os.Getpid() {
			t.Fatal("ran on the first thread, which never ends")
		}
		for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
			if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(tid)); err != nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("thread %d is still there", tid)
			}
		}
	}
}
