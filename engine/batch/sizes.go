package batch

import "math"

// sizes are the row counts of an evaluation whose costs are kept one by one. On a GPU a matrix product costs by tiles, and a size
// that fills its tiles runs faster kernels: on the one measured (docs/scheduling.md) 128 rows take 16.5 ms, 127 take 25 ms, 256 take
// 26 ms and 257 take 43 ms. No line goes through that.
var sizes = [...]int32{1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 4096}

// sizeOf returns the index of the smallest size that holds n rows.
func sizeOf(n int32) int {
	return smallest(sizes[:], n)
}

// smallest returns the index of the first of ascending numbers that is n or more, of the last when there is none.
func smallest[T int | int32](list []T, n T) int {
	for i, x := range list {
		if n <= x {
			return i
		}
	}
	return len(list) - 1
}

// point is what evaluations of about so many rows were seen to take.
type point struct {
	n       int     // observations; 0: unknown
	rows, t float64 // running means; t in seconds
	high    int     // outliers in a row
	online  bool    // seen in service, not only at load
	least   float64 // that t has been
	fresh   bool    // seen since prices were last forgotten
	stale   int     // how often they were since it was seen
	tries   int     // how often its price went back to the least, and that was not confirmed
	deep    slope   // what 1024 more cells cost each row of such an evaluation
	reach   int32   // the most cells that it was seen with
}

// sizeCosts is the cost of an evaluation by its number of rows: at the sizes themselves, and between each and the one before.
type sizeCosts struct {
	exact, below [len(sizes)]point
	largest      int32 // rows of the largest observation
	tiles        bool  // costs go by tiles, as on a GPU, not by rows
}

// smoothBase is what part of a large evaluation's cost one without rows is thought to have, where costs are smooth.
const smoothBase = 0.05

// at is the point for a number of rows.
func (c *sizeCosts) at(rows int32) (p *point, i int) {
	i = sizeOf(rows)
	if sizes[i] == rows {
		return &c.exact[i], i
	}
	return &c.below[i], i
}

// knows reports whether evaluations of such a number of rows were seen.
func (c *sizeCosts) knows(rows int32) bool {
	p, _ := c.at(rows)
	return p.n > 0
}

// sizeGain is the least weight of an observation in its point.
const sizeGain = 0.2

// observe learns that an evaluation took t seconds. A lone outlier teaches nothing. The first one in service replaces what was measured at
// load, where graphs are reused, or clocks low after a compilation.
func (c *sizeCosts) observe(rows int32, t float64, online bool) {
	p, _ := c.at(rows)
	if p.n > 0 && t > outlier*p.t {
		if p.high++; p.high < persistent {
			return
		}
	} else {
		p.high = 0
	}
	c.largest = max(c.largest, rows)
	before := p.t
	if online && !p.online {
		p.n = 0
	}
	p.n++
	gain := max(sizeGain, 1/float64(p.n))
	p.rows += gain * (float64(rows) - p.rows)
	p.t += gain * (t - p.t)
	if p.fresh = true; p.n == 1 || p.t < p.least {
		p.least = p.t
	}
	if t < stillTrue*p.least {
		p.tries = 0
	}
	if before > 0 && online {
		c.share(p, p.t/before)
	}
	p.online = p.online || online
}

// forget takes back what made sizes dearer that were not seen since the last call. Chunks of a size that is thought too dear for the promise
// are not made, so that its price is never contradicted: where another program had kept the GPU busy for some seconds, streams went on
// with 128 rows instead of 256, or 64, for good, and made 13 % fewer tokens, or 48 %. If it is the truth, one step shows it, and it is left
// alone for twice as long.
func (c *sizeCosts) forget() {
	for i := range sizes { // what lies between two of them has no one price that it could go back to
		p := &c.exact[i]
		if p.fresh {
			p.fresh, p.stale = false, 0
			continue
		}
		if p.stale++; p.stale >= 1<<min(p.tries, triesMost) && p.t > p.least {
			p.t, p.stale = p.least, 0
			p.tries++
		}
	}
}

const (
	// triesMost bounds for how long a price is left alone, as a power of two.
	triesMost = 6
	// stillTrue is how far above the least price, as a factor, an observation may be that confirms it.
	stillTrue = 1.2
)

// share changes points that nothing was seen of since load by p's part in a factor: the clocks of an idle GPU, and the price of a
// busy machine, are common to all of them. When all points that are seen change by a factor, their parts are about that factor.
func (c *sizeCosts) share(p *point, factor float64) {
	seen := 1
	for i := range sizes {
		for _, q := range [2]*point{&c.exact[i], &c.below[i]} {
			if q == p || q.online {
				seen++
			}
		}
	}
	factor = math.Pow(factor, 1/float64(seen)) // one point alone is believed by half
	for i := range sizes {
		for _, q := range [2]*point{&c.exact[i], &c.below[i]} {
			if q != p && q.n > 0 && !q.online {
				q.t *= factor
			}
		}
	}
}

// predict guesses the seconds of an evaluation; ok is false when nothing is known.
func (c *sizeCosts) predict(rows int32) (t float64, ok bool) {
	p, i := c.at(rows)
	if p.n > 0 {
		return max(p.t+c.tilt(i)*(float64(rows)-p.rows), leastStep), true
	}
	lo, hi := c.around(rows, i)
	x := float64(rows)
	switch {
	case lo != nil && hi != nil && hi.rows > lo.rows && hi.t >= lo.t:
		return lo.t + (hi.t-lo.t)*(x-lo.rows)/(hi.rows-lo.rows), true
	case lo != nil && hi == nil:
		return lo.t * x / lo.rows, true
	case hi != nil && !c.tiles:
		return hi.t * (smoothBase + (1-smoothBase)*x/hi.rows), true
	case hi != nil: // fewer rows are cheaper, but who knows how much
		return hi.t * (1 + x/hi.rows) / 2, true
	}
	return 0, false
}

// tilt is what a row costs between size i and the one before, where costs are smooth, as on a CPU; 0 where they are flat.
func (c *sizeCosts) tilt(i int) float64 {
	lo, hi := &c.exact[max(i-1, 0)], &c.exact[i]
	if lo.n == 0 {
		lo = &c.below[max(i-1, 0)]
	}
	if hi.n == 0 {
		hi = &c.below[min(i+1, len(sizes)-1)]
	}
	if lo.n == 0 || hi.n == 0 || hi.rows <= lo.rows {
		return 0
	}
	return max(0, hi.t-lo.t) / (hi.rows - lo.rows)
}

// around returns the nearest known points below and above; nil: none.
func (c *sizeCosts) around(rows int32, i int) (lo, hi *point) {
	x := float64(rows)
	for k := i; k >= 0 && lo == nil; k-- {
		for _, p := range [2]*point{&c.exact[k], &c.below[k]} {
			if p.n > 0 && p.rows < x && (lo == nil || p.rows > lo.rows) {
				lo = p
			}
		}
	}
	for k := i; k < len(sizes) && hi == nil; k++ {
		for _, p := range [2]*point{&c.below[k], &c.exact[k]} {
			if p.n > 0 && p.rows > x && (hi == nil || p.rows < hi.rows) {
				hi = p
			}
		}
	}
	return lo, hi
}

// hopeUnknown and hopeAtLoad are what the planner takes off the guess for a size until it was seen in service, as parts of it: of one that nothing
// is known of, and of one that was measured at load. A size that is never tried because it seems a little too dear is never known better: with
// an empty shader cache only 64 and 512 rows had been measured, the former with low clocks, and a GPU on which 256 rows take 28 ms went on
// with 192, which take 26, for 10 % fewer tokens.
const hopeUnknown, hopeAtLoad = 0.2, 0.1

// hope is that for a size that fills its tiles, on a device that computes by tiles, in seconds.
func (c *prefillCosts) hope(rows int32) float64 {
	p, i := c.size.at(rows)
	if !c.size.tiles || sizes[i] != rows || rows <= vectorRows || p.online {
		return 0
	}
	t, _ := c.size.predict(rows)
	if p.n > 0 {
		return hopeAtLoad * t
	}
	return hopeUnknown * t
}

// prefillCosts prices evaluations with prefill rows: by their rows, and by what these rows' attention reads.
type prefillCosts struct {
	size sizeCosts
	// deep is what 1024 more cells cost each row, in evaluations of any size. It stands in for sizes that were never seen behind a long
	// context. Those that were have a price of their own: on the GPU measured 70 rows behind 4000 tokens take 35 ms and 128 take 23,
	// without these tokens 25 and 16.
	deep slope
}

// slope is seconds by rows and thousands of cells: a least squares fit through the origin that forgets.
type slope struct{ num, den float64 }

func (s *slope) observe(x, y, forget float64) {
	s.num, s.den = forget*s.num+x*y, forget*s.den+x*x
}

func (s *slope) of() float64 {
	if s.den == 0 {
		return 0
	}
	return max(0, s.num/s.den)
}

// deep is from how many cells on an evaluation teaches the price of cells instead of the price of rows.
const deep = 1024

// depth is what an evaluation costs more for reading kv cells, in seconds.
func (c *prefillCosts) depth(rows, kv int32) float64 {
	p, _ := c.size.at(rows)
	if p.deep.den == 0 {
		return c.deep.of() * float64(rows) * float64(kv) / 1024
	}
	cells := float64(kv)
	if beyond := cells - float64(p.reach); c.size.tiles && beyond > 0 {
		cells -= beyond * (1 - beyondReach)
	}
	return p.deep.of() * float64(rows) * cells / 1024
}

// beyondReach is what part of their price cells are thought to cost a size that was never seen with so many. The warm-up goes to 2048 tokens; on
// the GPU measured 256 rows took 4 ms more there, and with 15600 not 30 but 15. Thought too dear for the promise they were not tried: 64 rows
// in each step of 42 ms instead of 254 of 40, for a third of the tokens.
const beyondReach = 0.5

// caution is what a size that was never seen behind a long context is thought to cost there beside that, so that tiles which are
// known to be good are preferred to it.
func (c *prefillCosts) caution(rows, kv int32) float64 {
	p, i := c.size.at(rows)
	if !c.size.tiles || p.deep.den > 0 || kv < deep {
		return 0
	}
	for ; i < len(sizes); i++ {
		if q := &c.size.exact[i]; q.deep.den > 0 {
			return max(0, ragged*c.depth(sizes[i], kv)-c.depth(rows, kv))
		}
	}
	return 0
}

// ragged is how much more than the next larger size a size is thought to cost for each cell, before it was seen: on the GPU measured
// 161 rows behind 7000 tokens took 12 ms more than the first 161, 192 take 6 more, 70 behind 4000 took 10 more and 128 six.
const ragged = 1.5

func (c *prefillCosts) observe(rows, kv int32, t float64, online bool) {
	base, _ := c.size.predict(rows)
	if kv >= deep && c.size.knows(rows) && t >= tooDear*base {
		c.observeDepth(rows, kv, t-base, base)
		if kv >= 4*deep {
			return
		}
	}
	// What takes less behind a long context than its rows alone are thought to take says that they are thought too dear.
	c.size.observe(rows, max(t-c.depth(rows, kv), leastStep), online)
}

// observeDepth learns that an evaluation took more seconds than its rows alone do, because it read kv cells.
func (c *prefillCosts) observeDepth(rows, kv int32, more, base float64) {
	x := float64(rows) * float64(kv) / 1024
	likely := func(w *slope) bool { return base+more < outlier*(base+w.of()*x) }
	p, _ := c.size.at(rows)
	own := &p.deep
	if own.den == 0 { // the first one of its size is judged by the others: it may have compiled something
		own = &c.deep
	}
	if own.den == 0 || likely(own) {
		p.deep.observe(x, more, forgetDeep)
		p.reach = max(p.reach, kv)
	}
	if likely(&c.deep) {
		c.deep.observe(x, more, forgetDepth)
	}
}

// tooDear is what part of the price of its rows alone an evaluation behind a long context must take, or the price is wrong: noise is less.
const tooDear = 0.85

// forgetDepth makes an observation count half after about 100 newer ones, forgetDeep after six of its own size.
const forgetDepth, forgetDeep = 0.993, 0.9

func (c *prefillCosts) predict(rows, kv int32) (float64, bool) {
	t, ok := c.size.predict(rows)
	return t + c.depth(rows, kv) + c.caution(rows, kv), ok
}
