package batch

import (
	"math"
	"time"
)

// buckets are the row counts to which decode-only steps are padded, so that the backend meets few shapes.
var buckets = [...]int{1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}

// bucketOf returns the index of the smallest bucket that holds n rows.
func bucketOf(n int) int {
	for i, b := range buckets {
		if n <= b {
			return i
		}
	}
	return len(buckets) - 1
}

// costModel predicts how long a step takes: t = a(bucket) + d(bucket)*span for its decode rows, and
// b + c*P + e*P*depth for P prefill rows at a depth. Both are fitted online from measured steps. Seconds inside.
type costModel struct {
	decode [len(buckets)]rls     // over {1, (span-origin)/1024}
	recent [len(buckets)]float64 // running mean of a bucket's steps, in seconds; 0: none yet
	origin [len(buckets)]int     // span of the first observation: what does not vary must not look like a slope
	alone  rls                   // prefill of a step without decode rows, over {1, P/256, P/256*depth/1024}
	beside rls                   // what prefill rows add to a step with decode rows
	most   int                   // prefill rows of the largest step seen
}

func newCostModel() costModel {
	var m costModel
	for i := range m.decode {
		m.decode[i] = newRLS(1e3, 10)
	}
	m.alone, m.beside = newRLS(1e3, 1e3, 10), newRLS(1e3, 1e3, 10)
	return m
}

// load is what a step costs by.
type load struct {
	decodes  int // rows, pads included
	span     int // n_kv
	prefills int // rows
	depth    int // of the prefill rows, mean over rows
}

func (m *costModel) decodeFeatures(bucket int, l load) [3]float64 {
	return [3]float64{1, float64(l.span-m.origin[bucket]) / 1024}
}

func prefillFeatures(l load) [3]float64 {
	p := float64(l.prefills) / 256
	return [3]float64{1, p, p * float64(l.depth) / 1024}
}

// observe learns from a step that took d.
func (m *costModel) observe(l load, d time.Duration) {
	t := d.Seconds()
	m.most = max(m.most, l.prefills)
	switch {
	case l.decodes > 0 && l.prefills > 0:
		if base := m.decodeTime(l); base > 0 {
			m.beside.observe(prefillFeatures(l), max(0, t-base))
		}
	case l.decodes > 0:
		b := bucketOf(l.decodes)
		if m.decode[b].n == 0 {
			m.origin[b] = l.span
		}
		if m.decode[b].observe(m.decodeFeatures(b, l), t) {
			if m.recent[b] == 0 {
				m.recent[b] = t
			}
			m.recent[b] += recentGain * (t - m.recent[b])
		}
	case l.prefills > 0:
		m.alone.observe(prefillFeatures(l), t)
	}
}

// decodeTime predicts the decode rows alone; 0: unknown. A bucket without observations takes its nearest neighbour's.
func (m *costModel) decodeTime(l load) float64 {
	if l.decodes == 0 {
		return 0
	}
	b := bucketOf(l.decodes)
	for d := 0; d < len(buckets); d++ {
		for _, i := range [2]int{b + d, b - d} {
			if i >= 0 && i < len(buckets) && m.decode[i].n > 0 {
				// A line through a few noisy points may say anything far away from them.
				return min(max(m.decode[i].predict(m.decodeFeatures(i, l)), m.recent[i]/recentTrust), m.recent[i]*recentTrust)
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
)

// prefillModel is the one of the two that knows about prefill beside the given number of decode rows; nil: unknown.
func (m *costModel) prefillModel(decodes int) *rls {
	switch {
	case decodes > 0 && m.beside.n > 0:
		return &m.beside
	case m.alone.n > 0:
		return &m.alone
	case m.beside.n > 0:
		return &m.beside
	}
	return nil
}

// predict guesses a step's duration; 0: unknown.
func (m *costModel) predict(l load) time.Duration {
	t := m.decodeTime(l)
	if l.prefills > 0 {
		p := m.prefillModel(l.decodes)
		if p == nil {
			return 0
		}
		t += p.predict(prefillFeatures(l))
	}
	return time.Duration(t * float64(time.Second))
}

// prefillWithin returns how many prefill rows at a depth fit into slack beside the given decode rows; ok is false when
// nothing is known. It does not trust the model beyond twice the rows that it has seen in one step.
func (m *costModel) prefillWithin(slack time.Duration, decodes, depth int) (n int, ok bool) {
	p := m.prefillModel(decodes)
	if p == nil {
		return 0, false
	}
	perRow := (p.w[1] + p.w[2]*float64(depth)/1024) / 256
	room := slack.Seconds() - max(0, p.w[0])
	switch {
	case room <= 0:
		return 0, true
	case perRow <= 0 || room/perRow > float64(2*m.most):
		return 2 * m.most, true
	}
	return int(room / perRow), true
}

// cellTime returns the predicted decode step and what one more cell of span costs in it, in seconds; 0: unknown. It is the
// cautious end of what the observations say: on a busy CPU noise looks like a price, and idle prefixes would pay it.
func (m *costModel) cellTime(l load) (step, perCell float64) {
	b := bucketOf(l.decodes)
	for d := range buckets {
		for _, i := range [2]int{b + d, b - d} {
			if i >= 0 && i < len(buckets) && m.decode[i].n > 1 {
				if w := m.decode[i].atLeast(1); w > 0 {
					return m.decodeTime(l), w / 1024
				}
			}
		}
	}
	return 0, 0
}

// perToken is what a prefill token at a depth costs in a step of rows of them, in seconds; 0: unknown.
func (m *costModel) perToken(depth, rows int) float64 {
	if p := m.prefillModel(0); p != nil {
		return p.predict(prefillFeatures(load{prefills: rows, depth: depth})) / float64(rows)
	}
	return 0
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

// predict is at least 10 us: no step is free.
func (r *rls) predict(x [3]float64) float64 {
	y := 0.0
	for i := range r.k {
		y += r.w[i] * x[i]
	}
	return max(y, 1e-5)
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
