package worker

import (
	"fmt"
	"time"
)

// warmRoom is how many cells of cached prefixes may go for warming up: computing them again takes less time than the one step
// that meets a new shape.
const warmRoom = 4096

// warmWait is how long nobody must have asked for anything before warming up goes on: a step that meets a new shape takes up to
// two seconds, and cannot be interrupted.
const warmWait = 2 * time.Second

// warmLater runs shapes that start-up had no time for, if there are any, nothing to do and little to lose, until a message comes. It
// reports whether it did.
func (l *loop) warmLater() (bool, error) {
	if st := l.sched.Stats(); st.CellsUsed > warmRoom || st.Jobs > 0 || len(l.sessions) > 0 {
		return false, nil
	}
	if err := l.sched.Clear(); err != nil {
		return false, fmt.Errorf("%w: warm up: %w", ErrBackend, err)
	}
	if err := l.model.Clear(); err != nil {
		return false, fmt.Errorf("%w: warm up: %w", ErrBackend, err)
	}
	costs, err := l.later.goOn(func() bool { return len(l.wake) > 0 || l.stopping() })
	if err != nil {
		return false, fmt.Errorf("%w: warm up: %w", ErrBackend, err)
	}
	l.prime(layoutState{costs: costs})
	if len(l.later.missed) == 0 {
		l.log.Info("all shapes are warmed up")
		l.later = nil
	}
	return true, nil
}

// stopping says that stop is closed.
func (l *loop) stopping() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// rest waits for a message or the end, and goes on with the warm-up when there is time.
func (l *loop) rest() error {
	var quiet <-chan time.Time
	if l.later != nil && len(l.later.missed) > 0 {
		t := time.NewTimer(l.quiet)
		defer t.Stop()
		quiet = t.C
	}
	select {
	case <-l.wake:
	case <-l.stop:
	case <-quiet:
		_, err := l.warmLater()
		return err
	}
	return nil
}
