package worker

import (
	"log/slog"
	"time"

	"hearth/engine/batch"
)

// phases adds up where the time of decode-only steps goes. The device waits in all of them but decode.
type phases struct {
	steps, rows                  int
	plan, decode, sample, commit time.Duration
	reused                       uint64 // graphs, when the sums began
}

// phaseSteps is after how many decode-only steps the means are logged.
const phaseSteps = 512

// note adds a step and logs the means from time to time.
func (p *phases) note(l *loop, rows int, plan, decode, sample, commit time.Duration) {
	p.steps++
	p.rows += rows
	p.plan, p.decode, p.sample, p.commit = p.plan+plan, p.decode+decode, p.sample+sample, p.commit+commit
	if p.steps < phaseSteps {
		return
	}
	n, reused := time.Duration(p.steps), l.model.GraphsReused()
	st := l.sched.Stats()
	l.log.Info("decode-only steps, means", slog.Int("steps", p.steps), slog.Float64("rows", float64(p.rows)/float64(p.steps)),
		slog.Duration("plan", p.plan/n), slog.Duration("decode", p.decode/n), slog.Duration("sample", p.sample/n),
		slog.Duration("commit", p.commit/n), slog.Uint64("graphs_reused_in_all_steps", reused-min(reused, p.reused)),
		slog.Int("span", st.Span), slog.Int("cells_cached", st.CellsCached), slog.Int("host_tokens", st.HostTokens), slog.Uint64("evictions", st.Evictions))
	*p = phases{reused: reused}
}

// prefillPhases adds up what steps with prefill rows are like: how good the cost model's guesses are shows here.
type prefillPhases struct {
	steps, decodes, prefills, pads, evaluations int
	predicted, took, off                        time.Duration
}

// prefillSteps is after how many of them the means are logged.
const prefillSteps = 128

func (p *prefillPhases) note(l *loop, st *batch.Step, took time.Duration) {
	p.steps++
	p.decodes, p.prefills, p.pads = p.decodes+st.Decodes, p.prefills+st.Prefills, p.pads+st.Pads
	p.evaluations += st.Evaluations
	p.predicted, p.took, p.off = p.predicted+st.Predicted, p.took+took, p.off+(took-st.Predicted).Abs()
	if p.steps < prefillSteps {
		return
	}
	n, f := time.Duration(p.steps), 1/float64(p.steps)
	l.log.Info("steps with prompts, means", slog.Float64("decodes", float64(p.decodes)*f), slog.Float64("prefills", float64(p.prefills)*f),
		slog.Float64("pads", float64(p.pads)*f), slog.Float64("evaluations", float64(p.evaluations)*f), slog.Duration("took", p.took/n),
		slog.Duration("predicted", p.predicted/n), slog.Duration("off_by", p.off/n))
	*p = prefillPhases{}
}
