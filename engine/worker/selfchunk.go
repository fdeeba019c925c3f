package worker

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"hearth/engine/batch"
)

const (
	// fewRows and someRows are steps of which GPUs compute each by kernels of its own: products with vectors, and with one tile. Beyond it they
	// have others, for many tiles.
	fewRows, someRows = 8, 64
	// raggedRows is how many rows a long step is short of full tiles. A software driver of Vulkan computed steps of 65, 257, 300 and 505 rows
	// wrongly, but not of 96, 128, 200 or 256.
	raggedRows = 7
	// alike is the least correlation of logits that steps of different lengths give: with rounding it is above 0.99, and of a mixture of
	// experts that takes another expert here and there, with wrong cells or products it is far below.
	alike = 0.9
	// compileLong is what no step takes for which nothing was compiled, on a device that is not slow.
	compileLong = 4 * time.Second
)

// longSteps compares what steps of many rows compute with what short ones do, and lowers cfg.Chunk to what is right: answers on this device
// are worth more than their speed. It is for GPUs, whose drivers are many.
func (t *tester) longSteps(cfg *batch.Config) error {
	if slow, err := t.tooSlow(); err != nil {
		return err
	} else if slow {
		return fmt.Errorf("%w: the device is too slow to compare steps", errUnchecked)
	}
	if n := min(someRows, cfg.Chunk, cfg.Context); n > fewRows {
		if err := t.sameSteps(fewRows, n); err != nil {
			cfg.Chunk = fewRows
			return err
		}
	}
	long, err := t.longRows(min(cfg.Chunk, cfg.Context))
	if err != nil {
		return err
	}
	for i, rows := range long {
		if i > 0 && t.longest > compileLong { // its kernels would have to be compiled, too
			return fmt.Errorf("%w: steps of %d rows, whose kernels are compiled later; the next start compares them", errUnchecked, rows)
		}
		if err := t.sameSteps(someRows, rows); err != nil {
			cfg.Chunk = someRows
			return err
		}
	}
	return nil
}

// errUnchecked says that start-up has no time for a comparison.
var errUnchecked = errors.New("not checked")

// slowCompare is how long the comparisons may take on such a device, of about compareRows rows.
const (
	slowCompare = 10 * time.Second
	compareRows = 350
)

// tooSlow says that comparing would take too long.
func (t *tester) tooSlow() (bool, error) {
	took := time.Duration(math.MaxInt64)
	for range 4 { // the first may compile, and the machine may be busy
		began := time.Now()
		if err := t.pieces(fewRows, fewRows); err != nil {
			return false, err
		}
		if took = min(took, time.Since(began)); took*compareRows/fewRows <= slowCompare {
			return false, nil
		}
	}
	return true, nil
}

// longRows is the lengths of the long steps to try: the longest and a little less, or on a slow device the first with other kernels.
func (t *tester) longRows(most int) ([]int, error) {
	if most <= someRows {
		return nil, nil
	}
	began := time.Now()
	if err := t.pieces(someRows, someRows); err != nil {
		return nil, err
	}
	switch {
	case time.Since(began) > slowProbe:
		return []int{someRows + 1}, nil
	case most-raggedRows <= someRows:
		return []int{most}, nil
	}
	return []int{most, most - raggedRows}, nil
}

// sameSteps computes n tokens in steps of a few and in one, and compares the logits behind them.
func (t *tester) sameSteps(few, n int) error {
	if err := t.pieces(few, n); err != nil {
		return err
	}
	want := slices.Clone(t.m.Logits(0))
	if err := t.pieces(n, n); err != nil {
		return err
	}
	if c := correlation(want, t.m.Logits(0)); !(c >= alike) {
		return fmt.Errorf("steps of %d rows give other logits than steps of %d (correlation %.3f): longer ones are not made", n, few, c)
	}
	return nil
}

// pieces computes n tokens in steps of at most rows, on an empty memory.
func (t *tester) pieces(rows, n int) error {
	if err := t.m.Clear(); err != nil {
		return err
	}
	for at := 0; at < n; at += rows {
		var step []batch.Row
		for i := at; i < min(at+rows, n); i++ {
			step = append(step, batch.Row{Token: fillToken(t.m, 3*i), Pos: int32(i), Output: -1, Kind: batch.RowPrefill})
		}
		step[len(step)-1].Output = 0
		began := time.Now()
		if err := decode(t.m, step); err != nil {
			return err
		}
		t.longest = max(t.longest, time.Since(began))
	}
	return nil
}

// correlation is Pearson's coefficient of two rows of equal length; not a number where one is constant, or has such.
func correlation(a, b []float32) float64 {
	if len(a) != len(b) || len(a) == 0 {
		return math.NaN()
	}
	var sa, sb float64
	for i := range a {
		sa, sb = sa+float64(a[i]), sb+float64(b[i])
	}
	ma, mb := sa/float64(len(a)), sb/float64(len(b))
	var ab, aa, bb float64
	for i := range a {
		da, db := float64(a[i])-ma, float64(b[i])-mb
		ab, aa, bb = ab+da*db, aa+da*da, bb+db*db
	}
	return ab / math.Sqrt(aa*bb)
}
