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

// FitLayoutCosts takes measures of both layouts. The price of a cell is the slope that all numbers of rows of a layout have in common,
// each with a base of its own: long caches of many sequences say most, where a few short ones are lost in noise. The base is that of
// about so many rows as both layouts were measured with. ok is false when the measures are too few or make no sense.
func FitLayoutCosts(ms []Measure, rows int, evaluation time.Duration) (c LayoutCosts, ok bool) {
	groups := map[Measure]*spread{} // by layout and rows
	for _, m := range ms {
		k := Measure{Layout: m.Layout, Rows: m.Rows}
		if groups[k] == nil {
			groups[k] = &spread{}
		}
		groups[k].add(float64(m.Cells), m.Time.Seconds())
	}
	var sxx, sxy, slope [2]float64
	for k, g := range groups {
		sxx[k.Layout] += g.sxx
		sxy[k.Layout] += g.sxy
	}
	for l := range slope {
		if sxx[l] <= 0 {
			return c, false
		}
		slope[l] = sxy[l] / sxx[l]
	}
	nearest := 0
	for k := range groups {
		other := Measure{Layout: LayoutStreams - k.Layout, Rows: k.Rows}
		if groups[other] != nil && (nearest == 0 || distance(k.Rows, rows) < distance(nearest, rows)) {
			nearest = k.Rows
		}
	}
	if nearest == 0 {
		return c, false
	}
	base := func(l Layout) float64 {
		g := groups[Measure{Layout: l, Rows: nearest}]
		return g.y - slope[l]*g.x
	}
	c = LayoutCosts{
		Base:        min(base(LayoutUnified), base(LayoutStreams)),
		UnifiedCell: slope[LayoutUnified], StreamsCell: slope[LayoutStreams],
		Evaluation: evaluation.Seconds(),
	}
	return c, c.Base > 0 && c.UnifiedCell > 0 && c.StreamsCell > 0
}

// distance orders numbers of rows by how near they are, the larger of two equally near ones first.
func distance(rows, to int) int {
	if rows >= to {
		return 2 * (rows - to)
	}
	return 2*(to-rows) + 1
}

// spread is points around their means.
type spread struct{ n, x, y, sxx, sxy float64 }

func (s *spread) add(x, y float64) {
	s.n++
	dx, dy := x-s.x, y-s.y
	s.x, s.y = s.x+dx/s.n, s.y+dy/s.n
	s.sxx += dx * (x - s.x)
	s.sxy += dx * (y - s.y)
}

// Sharing describes the recent decode steps, as means over roughly the last 400.
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
	// sharingKeep is the weight of the past in a look: looks of about sharingSpan steps count, which is some seconds.
	sharingKeep = 1 - float64(sharingEvery)/sharingSpan
	sharingSpan = 400
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
	if s.auto && chooseLayout(s.layoutCosts(), *sh, s.cfg.Layout, drainGain) != s.cfg.Layout {
		s.better += sharingEvery
	} else {
		s.better = max(0, s.better-4*sharingEvery)
	}
}

// Sharing returns what the recent decode steps were like.
func (s *Scheduler) Sharing() Sharing { return s.sharing }
