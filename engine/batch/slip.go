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
	reserve float64 // running quantile of (gap - predicted), seconds
	spread  float64 // running mean of how far it is from the reserve, which is how fast the reserve moves

	since     time.Duration // when the last step with decode rows ended, or a first token came while nothing decoded; 0: nobody waits for a token
	predicted time.Duration // of the steps since then
	moved     time.Duration // in moves to and from host memory since then
	prompts   bool          // prompt rows were in them
	spoiled   bool          // one of them failed, copied sequences, or nobody knows what it took
}

const (
	// slipQuantile is the part of the gaps with prompt rows that the reserve covers, slipStep how far, in mean deviations, one gap moves it.
	slipQuantile, slipStep = 0.98, 0.5
	// slipStart is what is held back before anything was seen, in seconds.
	slipStart = 0.001
	// slipGain is the weight of a gap in the spread.
	slipGain = 0.05
	// slipMost bounds what one gap may teach, as a part of what it should take.
	slipMost = 0.2
	// slipReserve and slipReserveCPU bound what is held back, as a part of the target: on a CPU steps vary most, with the machine's other
	// work, and what is held back is missing for prompts.
	slipReserve, slipReserveCPU = 0.08, 0.04
)

// passed takes a step that was computed; now is when it ended, decoding whether anything goes on decoding.
func (p *slip) passed(now time.Duration, st *Step, known, decoding bool) {
	p.predicted += st.Predicted
	p.prompts = p.prompts || st.Prefills > 0
	p.spoiled = p.spoiled || !known || st.Predicted <= 0
	if st.Decodes == 0 && p.since > 0 {
		return
	}
	if st.Decodes > 0 && p.since > 0 && p.prompts && !p.spoiled {
		p.observe((now - p.since - p.moved).Seconds(), p.predicted.Seconds())
	}
	p.begin(now)
	if !decoding {
		p.since = 0
	}
}

// begin starts a gap.
func (p *slip) begin(now time.Duration) {
	p.since, p.predicted, p.moved, p.prompts, p.spoiled = now, 0, 0, false, false
}

func (p *slip) observe(gap, predicted float64) {
	most := slipMost * predicted
	off := min(max(gap-predicted, -most), most)
	p.spread += slipGain * (math.Abs(off-p.reserve) - p.spread)
	if off > p.reserve {
		p.reserve += slipQuantile * slipStep * p.spread
	} else {
		p.reserve -= (1 - slipQuantile) * slipStep * p.spread
	}
	p.reserve = max(0, p.reserve)
}

// of is what to keep in reserve within a target, in seconds; most is the part of it that may be kept.
func (p *slip) of(target, most float64) float64 { return min(p.reserve, most*target) }

const (
	// turnGain is the weight of a step in the mean of what a turn takes, turnMost the most that is believed, as a part of the step.
	turnGain, turnMost = 0.2, 0.5
	// turnKeep is the part of a turn that is believed.
	turnKeep = 0.95
)

// turnTime is what the step that is planned takes longer if it has decode rows alone, in seconds: behind another shape the
// backend builds its graph anew (2.5 of 13 ms on the GPU measured).
func (s *Scheduler) turnTime() float64 {
	if !s.afterPrompt {
		return 0
	}
	return s.turn
}

// learnTurn takes what a decode-only step took and was predicted to take without a turn, both in seconds, and returns what it would have
// taken without one. Where every such step is behind prompt rows nothing tells the two apart, so the turn is drawn to 0.
func (s *Scheduler) learnTurn(took, predicted float64) float64 {
	if !s.afterPrompt || predicted <= 0 {
		return took
	}
	most := turnMost * predicted
	s.turn += turnGain * (turnKeep*min(max(took-predicted, -most), most) - s.turn)
	return max(took-s.turn, leastStep)
}
