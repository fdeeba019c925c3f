package batch

import (
	"math"
	"time"
)

// slip watches the time between tokens against what was predicted of it, and keeps in reserve what covers all but the worst few: half
// of the steps take longer than predicted, and sampling, planning and sending come on top of each. A fixed margin is too little behind
// long contexts, where predictions are worst, and wasted where they are good: on the GPU measured a tenth of a millisecond decides whether
// 256 prompt rows fit beside 32 decode rows, or 192.
type slip struct {
	// Behind short contexts, and behind long ones, where predictions are worse.
	near, far quantile
	share     float64 // running share of the gaps that have prompt rows in them

	since     time.Duration // when the last step with decode rows ended, or a first token came while nothing decoded; 0: nobody waits for a token
	predicted time.Duration // of the steps since then
	moved     time.Duration // in moves to and from host memory since then
	prompts   bool          // prompt rows were in them
	deep      bool          // behind long contexts
	spoiled   bool          // one of them failed, copied sequences, or nobody knows what it took
}

// quantile is a running quantile.
type quantile struct {
	at     float64 // seconds
	spread float64 // running mean of how far observations are from it, which is how fast it moves
}

const (
	// slipLate is the part of all gaps that may be longer than promised. Those without prompt rows never are, so where few gaps have
	// some the reserve covers less of them, slipLeast at least; slipSpan is over about how many gaps their share is taken.
	slipLate, slipLeast, slipSpan = 0.01, 0.9, 64
	// slipStep is how far one gap moves the reserve, in mean distances from it.
	slipStep = 0.25
	// slipStart and slipStartFar are what is held back before anything was seen, in seconds.
	slipStart, slipStartFar = 0.001, 0.0025
	// slipGain is the weight of a gap in the spread.
	slipGain = 0.05
	// slipMost bounds what one gap may teach, as a part of what it should take.
	slipMost = 0.2
	// slipReserve and slipReserveCPU bound what is held back, as a part of the target: on a CPU steps vary most, with the machine's other
	// work, and what is held back is missing for prompts.
	slipReserve, slipReserveCPU = 0.08, 0.04
)

func newSlip() slip { return slip{near: quantile{at: slipStart}, far: quantile{at: slipStartFar}} }

// passed takes a step that was computed; now is when it ended, deep whether its prompt rows were planned behind a long context, decoding whether
// anything goes on decoding.
func (p *slip) passed(now time.Duration, st *Step, deep, known, decoding bool) {
	p.predicted += st.Predicted
	p.prompts = p.prompts || st.Prefills > 0
	p.deep = p.deep || deep
	p.spoiled = p.spoiled || !known || st.Predicted <= 0
	if st.Decodes == 0 && p.since > 0 {
		return
	}
	if st.Decodes > 0 && p.since > 0 {
		p.end(now)
	}
	p.begin(now)
	if !decoding {
		p.since = 0
	}
}

// begin starts a gap.
func (p *slip) begin(now time.Duration) {
	p.since, p.predicted, p.moved, p.prompts, p.deep, p.spoiled = now, 0, 0, false, false, false
}

// end learns from a gap that ends now.
func (p *slip) end(now time.Duration) {
	with := 0.0
	if p.prompts {
		with = 1
	}
	p.share += (with - p.share) / slipSpan
	if !p.prompts || p.spoiled {
		return
	}
	predicted := p.predicted.Seconds()
	most := slipMost * predicted
	off := min(max((now-p.since-p.moved).Seconds()-predicted, -most), most)
	p.class(p.deep).observe(off, min(slipLate/max(p.share, slipLate), 1-slipLeast))
}

func (p *slip) class(deep bool) *quantile {
	if deep {
		return &p.far
	}
	return &p.near
}

// observe moves the quantile so that late of all observations are above it.
func (q *quantile) observe(x, late float64) {
	q.spread += slipGain * (math.Abs(x-q.at) - q.spread)
	if x > q.at {
		q.at += (1 - late) * slipStep * q.spread
	} else {
		q.at -= late * slipStep * q.spread
	}
	q.at = max(0, q.at)
}

// of is what to keep in reserve within a target, in seconds; most is the part of it that may be kept.
func (p *slip) of(deep bool, target, most float64) float64 {
	return min(p.class(deep).at, most*target)
}

// prefillsDeep reports whether the first prompt is computed behind a long context.
func (s *Scheduler) prefillsDeep() bool {
	if s.mem.base != nil {
		return s.mem.base.Span() >= deep
	}
	return s.prefills[0].have >= deep
}

const (
	// turnGain is the weight of a step in the mean of what a turn takes, turnMost the most that is believed, as a part of the step.
	turnGain, turnMost = 0.2, 0.5
	// turnTrust is how many turns are learnt from after a decode-only step that was none: what steps take without a turn must be known, or
	// turns and they are told apart at random. At first it is, from the warm-up.
	turnTrust = 32
)

// turnTime is what a decode-only step behind prompt rows takes longer, in seconds: behind another shape the backend builds its graph
// anew (2.5 of 13 ms on the GPU measured).
func (s *Scheduler) turnTime() float64 { return max(0, s.turn) }

// learnTurn takes what a decode-only step took and was predicted to take without a turn, both in seconds, and returns what it would have
// taken without one.
func (s *Scheduler) learnTurn(took, predicted float64) float64 {
	switch {
	case predicted <= 0:
		return took
	case !s.afterPrompt:
		s.turns = turnTrust
		return took
	case s.turns > 0:
		s.turns--
		most := turnMost * predicted
		s.turn += turnGain * (min(max(took-predicted, -most), most) - s.turn)
	}
	return max(took-s.turn, leastStep)
}
