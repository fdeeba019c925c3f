package batch

import "time"

// A layout is changed while nothing runs. A load that never pauses gets a pause made when the other layout is much better:
// nothing is admitted for a moment, and what still runs then gives its place up and is computed again.
const (
	// drainAfter is for how many decode steps the other layout must have looked so much better: a pause, a new context and what was
	// cached cost a second or two, which a burst does not pay back. Twice as many after each pause that was given up.
	drainAfter = 1024
	// drainGain is how much faster the other layout must be.
	drainGain = 1.25
	// drainLimit bounds how long admission stops, and again how long it may take to compute what did not end.
	drainLimit = time.Second
)

// AutoLayout lets the scheduler propose the better layout by EventRelayout: whenever a Commit leaves nothing running, and after
// a pause that it makes when much is to be won.
func (s *Scheduler) AutoLayout(c LayoutCosts) { s.auto, s.costs, s.atLoad = true, c, c }

// proposeLayout appends an EventRelayout when it is time for one.
func (s *Scheduler) proposeLayout(ev []Event) []Event {
	if !s.auto || s.sharing.Steps < s.proposed+sharingMin {
		return ev
	}
	if s.running > 0 {
		if !s.draining && s.better >= drainAfter<<min(s.givenUp, 10) && s.toRedo(drainLimit.Seconds()) <= drainLimit.Seconds() {
			s.draining, s.drainUntil = true, s.now+drainLimit
		}
		return ev
	}
	l := ChooseLayout(s.layoutCosts(), s.sharing, s.cfg.Layout)
	if l == s.cfg.Layout {
		s.draining, s.better = false, 0
		return ev
	}
	return s.propose(l, ev)
}

const (
	// pricedSteps is how many decode steps of about the usual number of rows must have been seen before their price of a cell counts.
	pricedSteps = 128
	// pricedTrust is the most that it is believed, as a factor of what was measured at load.
	pricedTrust = 4.0
)

// layoutCosts is what was measured at load, or the price of a cell in the present layout that shows in service, if that is higher: what
// was measured at load is short, and a GPU may have lowered its clocks meanwhile.
func (s *Scheduler) layoutCosts() LayoutCosts {
	c := s.costs
	rows := int(s.sharing.Rows + 0.5)
	if rows == 0 || s.cost.decode[bucketOf(rows)].n < pricedSteps {
		return c
	}
	perCell := s.cost.cellPrice(rows)
	if s.cfg.Layout == LayoutStreams { // the span is that of each of the rows' sequences
		c.StreamsCell = min(max(c.StreamsCell, perCell/float64(rows)), pricedTrust*s.atLoad.StreamsCell)
	} else {
		c.UnifiedCell = min(max(c.UnifiedCell, perCell), pricedTrust*s.atLoad.UnifiedCell)
	}
	return c
}

func (s *Scheduler) propose(l Layout, ev []Event) []Event {
	s.draining, s.better, s.givenUp = false, 0, 0
	s.proposed = s.sharing.Steps
	s.costs = s.layoutCosts() // the next layout begins to learn anew, and this one must not look cheaper than it was
	return append(ev, Event{Kind: EventRelayout, Layout: l})
}

// endDrain takes the places of what still runs when the pause has lasted long enough, or nothing else is left to wait for, and
// proposes the layout. It reports whether it did. When that would cost too much, the pause ends without a change.
func (s *Scheduler) endDrain() bool {
	if first := s.first(); !s.draining || (s.now < s.drainUntil && first != nil && !first.job.held) {
		return false
	}
	l := ChooseLayout(s.layoutCosts(), s.sharing, s.cfg.Layout)
	if l == s.cfg.Layout || s.toRedo(0) > drainLimit.Seconds() {
		s.draining, s.better = false, 0
		s.givenUp++
		s.proposed = s.sharing.Steps // not again soon
		return false
	}
	for _, r := range s.runs {
		if r != nil {
			s.preempt(r)
		}
	}
	s.step.Events = s.propose(l, s.step.Events)
	return true
}

// toRedo is how long it takes to compute again what runs and will not have ended within so many seconds, in seconds.
func (s *Scheduler) toRedo(within float64) (t float64) {
	steps := 0
	if step := s.cost.decodeTime(evaluation{rows: int32(s.running), decodes: int32(s.running), kv: int32(s.span())}); step > 0 {
		steps = int(within / step)
	}
	for id, r := range s.runs {
		if r != nil && (steps == 0 || r.left(s.cfg.Context) > steps) {
			n := int(s.mem.lens[id])
			t += float64(n) * s.cost.perToken(n/2, s.cfg.Chunk)
		}
	}
	return t
}
