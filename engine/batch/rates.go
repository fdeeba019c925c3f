package batch

import (
	"math"
	"time"
)

// leastPromise is what the time between tokens may be, however fast decode steps are.
const leastPromise = 50 * time.Millisecond

const (
	// targetFactor is what the time between tokens may be, in decode-only steps, where that is more than leastPromise: as those with about as
	// many rows usually are, or as this one is where that is less. A long sequence that has just joined the others does not loosen the
	// promise. On a CPU, where little is held back, it is less.
	targetFactor, targetFactorCPU = 3.0, 2.5
)

// promise is the time between tokens that n decode rows are promised, which take base alone, in seconds.
func (s *Scheduler) promise(n int, base float64) float64 {
	if s.cfg.ITLTarget > 0 {
		return s.cfg.ITLTarget.Seconds()
	}
	factor := targetFactor
	if s.cfg.NoPad {
		factor = targetFactorCPU
	}
	if u := &s.usual[bucketOf(n)]; u.n > 0 {
		base = min(base, u.t)
	}
	return max(leastPromise.Seconds(), base*factor)
}

// decodeTimeOf is what a step of n decode rows takes, in seconds; 0: unknown.
func (s *Scheduler) decodeTimeOf(n int) float64 {
	return s.cost.decodeTime(evaluation{rows: int32(n), decodes: int32(n), kv: int32(s.span())})
}

// bulkTime is what a row of a prompt takes in the best step without decode rows, in seconds; 0: unknown.
func (s *Scheduler) bulkTime() float64 {
	best, limit := 0.0, min(int32(s.room()), s.cost.largest())
	idle := s.idleTarget()
	for _, rows := range sizes {
		if rows = min(rows, limit); rows <= 0 {
			break
		}
		if t, ok := s.cost.predict(s.rowsOf(rows, 0)); ok && t <= idle && (best == 0 || t/float64(rows) < best) {
			best = t / float64(rows)
		}
		if rows == limit {
			break
		}
	}
	return best
}

// besideTime is what a row of a prompt takes of everybody's time when prompts are computed beside n decode rows and these get their tokens as
// promised, in seconds; 0: unknown.
func (s *Scheduler) besideTime(n int) float64 {
	base := s.decodeTimeOf(n)
	if base <= 0 {
		return 0
	}
	target := s.promise(n, base)
	best, fits, took := math.Inf(1), int32(0), base
	for _, rows := range sizes {
		t, ok := s.cost.predict(s.rowsOf(rows, int32(n)))
		if !ok || rows > int32(s.room()) {
			break
		}
		if t > target {
			if between := float64(fits) + (target-took)/(t-took)*float64(rows-fits); t > took && between >= 1 {
				best = min(best, target/between) // what lies between fits, too
			}
			break
		}
		fits, took, best = rows, t, min(best, t/float64(rows))
	}
	if !math.IsInf(best, 1) {
		return best
	}
	// Nothing fits: a quarter of the time goes to prompts all the same (granted).
	least := int32(max(1, min(s.cfg.MinPrefill, s.room())))
	t, ok := s.cost.predict(s.rowsOf(least, int32(n)))
	if !ok {
		return 0
	}
	return 4 * max(t-base, leastStep) / float64(least)
}

// rowsOf is a step of prompt rows beside decode rows, in one evaluation.
func (s *Scheduler) rowsOf(rows, decodes int32) load {
	s.loads = append(s.loads[:0], evaluation{rows: rows + decodes, decodes: decodes, kv: int32(s.span())})
	return s.loads
}
