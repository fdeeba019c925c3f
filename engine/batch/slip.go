package batch

import "time"

// slip is by how much the time between tokens exceeds what the cost model predicts: half of the steps take longer than predicted, and
// sampling, planning and sending come on top of each.
type slip struct {
	off      float64 // running mean of |taken - predicted| of steps with prefill rows, seconds
	overhead float64 // running mean of what a step takes beside its decode, seconds

	planned time.Duration // when the last step was planned, what its decode took, and its moves; took 0: unknown
	took    time.Duration
	moved   time.Duration
}

const (
	// slipGain is the weight of a step in the means.
	slipGain = 0.05
	// slipTrust is how many mean deviations are held back.
	slipTrust = 1.0
	// slipMost bounds what one step may teach, as a part of what it should take, and slipReserve what is held back, as a part of the
	// target: on a CPU, where steps vary most, what is held back is missing for prompts.
	slipMost, slipReserve = 0.2, 0.06
)

// begin notes that a step is planned now.
func (p *slip) begin(now time.Duration) {
	if p.took > 0 {
		over := (now - p.planned - p.took - p.moved).Seconds()
		p.overhead += slipGain * (min(max(0, over), slipMost*p.took.Seconds()) - p.overhead)
	}
	p.planned, p.took, p.moved = now, 0, 0
}

// observe learns from a step's decode.
func (p *slip) observe(st *Step, took time.Duration) {
	p.took = took
	if st.Prefills == 0 || st.Predicted <= 0 {
		return
	}
	off := min((took - st.Predicted).Abs().Seconds(), slipMost*st.Predicted.Seconds())
	p.off += slipGain * (off - p.off)
}

// of is what to keep in reserve for that many steps within a target, in seconds.
func (p *slip) of(steps int, target float64) float64 {
	return min(p.off*slipTrust+p.overhead*float64(steps), slipReserve*target)
}
