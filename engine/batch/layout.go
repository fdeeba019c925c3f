package batch

import "time"

// Measure is one decode step of a layout, timed on this machine: Rows sequences over Cells, which are the cells of the pool in use
// in LayoutUnified (each row reads them all) and the sum of the sequences' lengths in LayoutStreams.
type Measure struct {
	Layout Layout
	Rows   int
	Cells  int
	Time   time.Duration
}

// LayoutCosts says what decode steps cost in either layout. On a GPU (facts measured with an 8B model: 0.40 us and 0.10
// us for a cell at 8 and at 16 rows alike) the price of a cell does not depend on the number of rows.
type LayoutCosts struct {
	// Base is a decode step without a KV cache, UnifiedCell what it costs more for every cell in use, StreamsCell for
	// every token of every sequence.
	Base, UnifiedCell, StreamsCell float64 // seconds
	// Evaluation is one more graph evaluation, which streams need when prefill and decode share a step.
	Evaluation float64 // seconds
}

// FitLayoutCosts takes measures of both layouts, each with the same Rows and at least two different Cells. ok is false when they are
// too few or make no sense.
func FitLayoutCosts(ms []Measure, evaluation time.Duration) (c LayoutCosts, ok bool) {
	var base [2]float64
	var slope [2]float64
	for l := range base {
		var n, sx, sy, sxx, sxy float64
		for _, m := range ms {
			if m.Layout == Layout(l) {
				x, y := float64(m.Cells), m.Time.Seconds()
				n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
			}
		}
		den := n*sxx - sx*sx
		if n < 2 || den <= 0 {
			return c, false
		}
		slope[l] = (n*sxy - sx*sy) / den
		base[l] = (sy - slope[l]*sx) / n
	}
	c = LayoutCosts{
		Base: min(base[0], base[1]), UnifiedCell: slope[0], StreamsCell: slope[1], Evaluation: evaluation.Seconds(),
	}
	return c, c.Base > 0 && c.UnifiedCell > 0 && c.StreamsCell > 0
}

// Sharing describes the recent decode steps, as means over roughly the last thousand.
type Sharing struct {
	Rows     float64 // decode rows
	Tokens   float64 // sum of the lengths of the running sequences
	Distinct float64 // of these, tokens that no other running sequence has in its prefix, and one copy of those that several have
	Mixed    float64 // share of the steps with decode rows that had prefill rows, too
	Steps    uint64  // decode steps since the context was created
}

// layoutGain is how much faster the other layout must be to change: a new context forgets every cached prefix.
const layoutGain = 1.1

// ChooseLayout says which layout serves a load better; it keeps the current one unless the other is notably faster.
func ChooseLayout(c LayoutCosts, sh Sharing, current Layout) Layout {
	return chooseLayout(c, sh, current, layoutGain)
}

func chooseLayout(c LayoutCosts, sh Sharing, current Layout, gain float64) Layout {
	if sh.Rows < 1.5 { // alike for one client, where unified can keep more prefixes
		return current
	}
	unified := c.Base + c.UnifiedCell*sh.Distinct
	streams := c.Base + c.StreamsCell*sh.Tokens + c.Evaluation*sh.Mixed
	switch {
	case current == LayoutUnified && unified > gain*streams:
		return LayoutStreams
	case current == LayoutStreams && streams > gain*unified:
		return LayoutUnified
	}
	return current
}

const (
	// sharingEvery is how often, in steps, the running sequences are looked at.
	sharingEvery = 16
	// sharingKeep is the weight of the past in a look: looks of 1000 steps count.
	sharingKeep = 1 - float64(sharingEvery)/1000
	// sharingMin is how many decode steps must have been seen before a layout is proposed, and between two proposals.
	sharingMin = 512
)

// observeSharing averages what the step that just ran was like.
func (s *Scheduler) observeSharing() {
	sh := &s.sharing
	if s.step.Decodes == 0 {
		s.fed = true
		return
	}
	fed := s.fed || s.step.Prefills > 0
	s.fed = false
	sh.Steps++
	if sh.Steps%sharingEvery != 1 {
		return
	}
	var tokens int32
	for id, r := range s.runs {
		if r == nil {
			continue
		}
		tokens += s.mem.lens[id]
	}
	distinct := int(tokens)
	if s.running > 1 {
		distinct -= s.tree.Overlap(s.isRunning)
	}
	mixed := 0.0
	if fed {
		mixed = 1
	}
	looks := float64(sh.Steps/sharingEvery + 1)
	keep := min(sharingKeep, 1-1/looks) // a plain mean at first
	sh.Rows = keep*sh.Rows + (1-keep)*float64(s.step.Decodes)
	sh.Tokens = keep*sh.Tokens + (1-keep)*float64(tokens)
	sh.Distinct = keep*sh.Distinct + (1-keep)*float64(max(0, distinct))
	sh.Mixed = keep*sh.Mixed + (1-keep)*mixed
}

// Sharing returns what the recent decode steps were like.
func (s *Scheduler) Sharing() Sharing { return s.sharing }
