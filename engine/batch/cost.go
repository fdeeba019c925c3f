package batch

import (
	"math"
	"time"
)

// buckets are the row counts by which decode-only steps are priced, and to which those of more than vectorRows are padded, so that the
// backend meets few shapes.
var buckets = [...]int{1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}

// bucketOf returns the index of the smallest bucket that holds n rows.
func bucketOf(n int) int {
	return smallest(buckets[:], n)
}

// costModel predicts how long a step takes, as the sum of its evaluations: one with decode rows takes a(bucket) +
// d(bucket)*span, one with prefill rows what evaluations of its size took before and c for each row and cell that its attention
// reads. Everything is fitted online to measured steps. Seconds inside.
type costModel struct {
	equal  bool                  // prefill rows beside decode rows are evaluations of their own
	decode [len(buckets)]rls     // over {1, (span-origin)/1024}
	recent [len(buckets)]float64 // running mean of a bucket's steps, in seconds; 0: none yet
	origin [len(buckets)]int32   // span of the first observation: what does not vary must not look like a slope
	alone  prefillCosts          // an evaluation of prefill rows in a step without decode rows
	beside prefillCosts          // in a step with decode rows: what it adds to them if it is one of its own, all of it if not
	hoping bool                  // for a chunk that may be chosen: sizes that were not seen in service are thought to take less
	forgot time.Duration         // when prices were last forgotten
}

// forget takes back, once a while, the prices that nothing contradicts.
func (m *costModel) forget(now time.Duration) {
	if now-m.forgot < priceKept {
		return
	}
	m.forgot = now
	m.alone.size.forget()
	m.beside.size.forget()
}

// newCostModel knows nothing yet; tiles says that the device computes by tiles, as GPUs do.
func newCostModel(equal, tiles bool) costModel {
	fills := prefillCosts{size: sizeCosts{tiles: tiles}}
	m := costModel{equal: equal, alone: fills, beside: fills}
	for i := range m.decode {
		m.decode[i] = newRLS(1e3, 10)
	}
	return m
}

// evaluation is what one graph evaluation costs by.
type evaluation struct {
	rows    int32 // all of them
	decodes int32 // decode rows and rows that fill up their shape
	kv      int32 // cells that a row's attention reads
}

// load is the evaluations of a step.
type load []evaluation

// isDecode says whether an evaluation is priced as decode rows: with equal, the odd prefill row that comes along is one.
func (m *costModel) isDecode(e evaluation) bool {
	return e.decodes > 0 && (m.equal || e.rows == e.decodes)
}

func decodeFeatures(origin int32, e evaluation) [3]float64 {
	return [3]float64{1, float64(e.kv-origin) / 1024}
}

// observe learns from a step that took d; online says that it was in service, not at load.
func (m *costModel) observe(l load, d time.Duration, online bool) {
	t := d.Seconds()
	decodes, fills, base := 0, 0, 0.0
	var fill, dec evaluation
	for _, e := range l {
		if m.isDecode(e) {
			decodes++
			dec = e
			base += m.decodeTime(e)
			continue
		}
		fills++
		fill = e
	}
	switch {
	case decodes == 1 && fills == 0:
		m.observeDecode(dec, t)
	case decodes == 0 && fills == 1 && fill.decodes == 0:
		m.alone.observe(fill.rows, fill.kv, t, online)
	case decodes == 0 && fills == 1:
		m.beside.observe(fill.rows, fill.kv, t, online)
	case decodes > 0 && fills == 1 && base > 0:
		m.beside.observe(fill.rows, fill.kv, max(leastStep, t-base), online)
	}
}

func (m *costModel) observeDecode(e evaluation, t float64) {
	b := bucketOf(int(e.rows))
	if m.decode[b].n == 0 {
		m.origin[b] = e.kv
	}
	if m.decode[b].observe(decodeFeatures(m.origin[b], e), t) {
		if m.recent[b] == 0 {
			m.recent[b] = t
		}
		m.recent[b] += recentGain * (t - m.recent[b])
	}
}

// decodeTime predicts an evaluation of decode rows; 0: unknown. A bucket without observations takes its nearest neighbour's.
func (m *costModel) decodeTime(e evaluation) float64 {
	b := bucketOf(int(e.rows))
	for d := 0; d < len(buckets); d++ {
		for _, i := range [2]int{b + d, b - d} {
			if i >= 0 && i < len(buckets) && m.decode[i].n > 0 {
				// A line through a few noisy points may say anything far away from them.
				return min(max(m.decode[i].predict(decodeFeatures(m.origin[i], e)), m.recent[i]/recentTrust), m.recent[i]*recentTrust)
			}
		}
	}
	return 0
}

const (
	// recentGain is the weight of a step in the running mean of its bucket.
	recentGain = 0.2
	// recentTrust is how far a prediction may be from the recent steps of its bucket, as a factor.
	recentTrust = 2.0
	// leastStep is a lower bound of every prediction: no evaluation is free.
	leastStep = 1e-5
)

// fillTime predicts an evaluation with prefill rows, beside decodes or not.
func (m *costModel) fillTime(e evaluation, beside bool) (float64, bool) {
	first, second := m.fills(beside), m.fills(!beside)
	if !first.size.knows(e.rows) && second.size.knows(e.rows) {
		first = second
	}
	t, ok := first.predict(e.rows, e.kv)
	if !ok {
		t, ok = second.predict(e.rows, e.kv)
	}
	if m.hoping {
		t -= first.hope(e.rows)
	}
	return t, ok
}

// predict guesses a step's seconds; ok is false when nothing is known about its prefill rows.
func (m *costModel) predict(l load) (t float64, ok bool) {
	beside := false
	for _, e := range l {
		beside = beside || e.decodes > 0
	}
	for _, e := range l {
		if m.isDecode(e) {
			t += m.decodeTime(e)
			continue
		}
		f, ok := m.fillTime(e, beside)
		if !ok {
			return 0, false
		}
		if e.decodes > 0 {
			f = max(f, m.decodeTime(evaluation{rows: e.decodes, decodes: e.decodes, kv: e.kv}))
		}
		t += f
	}
	return t, true
}

// fills is what is known of evaluations with prefill rows, beside decodes or not.
func (m *costModel) fills(beside bool) *prefillCosts {
	if beside {
		return &m.beside
	}
	return &m.alone
}

// seen reports whether evaluations of exactly so many rows were, in such a step.
func (m *costModel) seen(rows int32, beside bool) bool { return m.fills(beside).size.knows(rows) }

// knows reports whether any prefill was seen.
func (m *costModel) knows() bool { return m.alone.size.largest > 0 || m.beside.size.largest > 0 }

// largest is the most prefill rows to trust in one evaluation: twice what was seen.
func (m *costModel) largest() int32 { return 2 * max(m.alone.size.largest, m.beside.size.largest) }

// cellTime returns the predicted decode step and what one more cell of span costs in it, in seconds; 0: unknown. It is the
// cautious end of what the observations say: on a busy CPU noise looks like a price, and idle prefixes would pay it.
func (m *costModel) cellTime(e evaluation) (step, perCell float64) {
	b := bucketOf(int(e.rows))
	for d := range buckets {
		for _, i := range [2]int{b + d, b - d} {
			if i < 0 || i >= len(buckets) {
				continue
			}
			if w := m.cellPrice(buckets[i]); w > 0 {
				return m.decodeTime(e), w
			}
		}
	}
	return 0, 0
}

// cellPrice is what one more cell of span was seen to cost a decode step of about so many rows, in seconds, cautiously; 0: unknown.
func (m *costModel) cellPrice(rows int) float64 {
	if d := &m.decode[bucketOf(rows)]; d.n > 1 {
		return max(0, d.atLeast(1)/1024)
	}
	return 0
}

// rowCell is what one more cell costs one row of a prompt, in seconds; 0: unknown.
func (m *costModel) rowCell() float64 {
	if w := m.alone.deep.of(); w > 0 {
		return w / 1024
	}
	return m.beside.deep.of() / 1024
}

// perToken is what a prefill token at a depth costs in a step of rows of them, in seconds; 0: unknown.
func (m *costModel) perToken(depth, rows int) float64 {
	t, ok := m.fillTime(evaluation{rows: int32(rows), kv: int32(depth)}, false)
	if !ok {
		return 0
	}
	return t / float64(rows)
}

// rls is recursive least squares with forgetting over up to three features.
type rls struct {
	k int
	n int // observations
	w [3]float64
	p [3][3]float64 // inverse of the weighted sum of x x'
	// high counts outliers in a row.
	high int
	s2   float64 // running variance of the observations around the predictions
}

const (
	// forget makes an observation count half after about 100 newer ones: a step model must follow clocks and thermals.
	forget = 0.993
	// windup stops forgetting while the inverse is large, which it becomes along features that do not vary.
	windup = 1e4
	// outlier bounds how far one observation may be above the prediction: a compile or a page fault is no step cost, and one
	// of a second in a fit of ten milliseconds would be remembered for hundreds of steps.
	outlier = 4.0
	// persistent is how many outliers in a row are a change: the last of them counts.
	persistent = 3
	// noiseGain is the weight of an observation in the variance.
	noiseGain = 0.1
)

// newRLS starts with weights 0; the priors say how far from it each is expected, squared, in units of the noise.
func newRLS(priors ...float64) rls {
	r := rls{k: len(priors)}
	for i, p := range priors {
		r.p[i][i] = p
	}
	return r
}

// predict is never less than leastStep.
func (r *rls) predict(x [3]float64) float64 {
	y := 0.0
	for i := range r.k {
		y += r.w[i] * x[i]
	}
	return max(y, leastStep)
}

// atLeast is the i-th weight less two of its standard errors.
func (r *rls) atLeast(i int) float64 { return r.w[i] - 2*math.Sqrt(max(0, r.p[i][i]*r.s2)) }

// observe learns that x cost y, and reports whether it did: a lone outlier teaches nothing.
func (r *rls) observe(x [3]float64, y float64) bool {
	if r.n > 1 && y > outlier*r.predict(x) {
		if r.high++; r.high < persistent {
			return false
		}
	} else {
		r.high = 0
	}
	lambda, trace := 1.0, r.p[0][0]+r.p[1][1]+r.p[2][2]
	if trace < windup {
		lambda = forget
	}
	var px [3]float64
	den, e := lambda, y
	for i := range r.k {
		for j := range r.k {
			px[i] += r.p[i][j] * x[j]
		}
		den += x[i] * px[i]
		e -= r.w[i] * x[i]
	}
	if r.n >= r.k {
		r.s2 += noiseGain * (e*e/den - r.s2)
	}
	for i := range r.k {
		r.w[i] += px[i] / den * e
		for j := range r.k {
			r.p[i][j] = (r.p[i][j] - px[i]*px[j]/den) / lambda
		}
	}
	r.n++
	return true
}
