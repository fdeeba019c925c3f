package worker

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// warmRoom is how many cells of cached prefixes may go for warming up: computing them again takes less time than the one step
// that meets a new shape.
const warmRoom = 4096

// warmWait is how long nobody must have asked for anything before warming up goes on: a step that meets a new shape takes up to
// two seconds, and cannot be interrupted.
const warmWait = 2 * time.Second

const (
	// compareWait is how much longer than usual nobody must have asked for anything before the layouts are compared at the cost of what
	// is cached, or once more: that takes seconds, and everything cached is lost.
	compareWait = 30
	// compareTries is how often a message may end the comparison before the layout that there is stays for good.
	compareTries = 3
)

// warmLater does what start-up had no time for, if there is any, nothing to do and little to lose, until a message comes: first the
// shapes, then the comparison of the layouts. It reports whether it did something.
func (l *loop) warmLater() (bool, error) {
	if st := l.sched.Stats(); st.CellsUsed > warmRoom || st.Jobs > 0 || len(l.sessions) > 0 {
		return false, nil
	}
	if !l.warms() {
		return l.here != nil, l.compareLayouts()
	}
	if err := l.sched.Clear(); err != nil {
		return false, fmt.Errorf("%w: warm up: %w", ErrBackend, err)
	}
	if err := l.model.Clear(); err != nil {
		return false, fmt.Errorf("%w: warm up: %w", ErrBackend, err)
	}
	moved := l.later.moved
	costs, err := l.later.goOn(func() bool { return len(l.wake) > 0 || l.stopping() })
	if err != nil {
		return false, fmt.Errorf("%w: warm up: %w", ErrBackend, err)
	}
	l.prime(layoutState{costs: costs})
	if h := l.later.cfg.Host; l.later.moved && !moved {
		l.sched.PrimeMoves(h.Save, h.Load)
		if l.here != nil {
			l.here.cfg.Host = h
		}
	}
	if l.here != nil {
		l.here.costs = append(l.here.costs, costs...)
	}
	if len(l.later.missed) == 0 {
		l.log.Info("all shapes are warmed up")
		l.later = nil
	}
	return true, nil
}

// compareLayouts measures the other layout of the KV cache, and goes on in the better one. A message ends it; the next quiet moment
// begins it again, with what was compiled.
func (l *loop) compareLayouts() error {
	if l.here == nil {
		return nil
	}
	ctx, end := l.untilMessage()
	began := l.now()
	first, states, costs, auto, err := bothLayouts(ctx, l.model, *l.here, time.Now().Add(time.Hour), l.log, func(string, float64) {})
	interrupted := ctx.Err() != nil
	end()
	if err != nil && !interrupted {
		return fmt.Errorf("%w: compare the layouts: %w", ErrBackend, err)
	}
	if err != nil { // a message came
		if _, err := l.model.Relayout(first.cfg.Layout); err != nil {
			return fmt.Errorf("%w: back to the %s layout: %w", ErrBackend, first.cfg.Layout, err)
		}
		if l.tries++; l.tries == compareTries {
			l.log.Info("there is no quiet moment to compare the KV layouts in: the one that there is stays", "layout", first.cfg.Layout.String())
			l.here = nil
		}
	} else {
		l.here = nil
	}
	if err := l.sched.Relayout(first.cfg); err != nil {
		return fmt.Errorf("%w: compare the layouts: %w", ErrBackend, err)
	}
	l.prime(first)
	if auto {
		l.layouts = states
		l.sched.AutoLayout(costs)
		l.log.Info("the KV layout follows the load", "now", first.cfg.Layout.String(), "costs", costs, "compared_in", l.now()-began)
	}
	return nil
}

// untilMessage returns a context that ends with the next message or the loop. end must be called before the loop waits again.
func (l *loop) untilMessage() (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-l.wake:
			select { // it is for the loop; another post may have left the same token
			case l.wake <- struct{}{}:
			default:
			}
		case <-l.stop:
		case <-ctx.Done():
		}
		cancel()
	})
	return ctx, func() {
		cancel()
		watching.Wait()
	}
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

// warms says that there are shapes left to warm up.
func (l *loop) warms() bool { return l.later != nil && len(l.later.missed) > 0 }

// wait is how long a quiet moment must have lasted for what is next.
func (l *loop) wait() time.Duration {
	if l.wished {
		return l.quiet / 2
	}
	if !l.warms() && (l.tries > 0 || l.sched.Stats().CellsUsed > 0) {
		return compareWait * l.quiet
	}
	return l.quiet
}

// rest waits for a message or the end, and changes the layout or goes on with the warm-up when there is time.
func (l *loop) rest() error {
	var quiet <-chan time.Time
	if l.here != nil || l.warms() || l.wished {
		t := time.NewTimer(l.wait())
		defer t.Stop()
		quiet = t.C
	}
	select {
	case <-l.wake:
	case <-l.stop:
	case <-quiet:
		if l.wished {
			return l.relayout()
		}
		_, err := l.warmLater()
		return err
	}
	return nil
}
