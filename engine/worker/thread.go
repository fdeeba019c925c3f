package worker

import (
	"os"
	"runtime"
	"syscall"
)

// onThreadThatEnds runs f on an OS thread that ends with it, and waits. GNU OpenMP keeps a team for every thread that has
// computed, and as soon as there are more team members than CPUs it lets all teams wait instead of spin: with a team left behind
// by the warm-up, or by the conversion of the weights for AMX, SmolLM2 on two cores decoded 27 tok/s instead of 150.
//
// The process's first thread cannot end: Go parks it, and its team stays. If the scheduler picks it, it is held until f has run on
// another one.
func onThreadThatEnds(f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if syscall.Gettid() != os.Getpid() {
			defer close(done)
			f()
			return // locked still, so the thread ends
		}
		defer runtime.UnlockOSThread()
		onThreadThatEnds(f)
		close(done)
	}()
	<-done
}
