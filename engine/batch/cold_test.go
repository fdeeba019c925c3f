package batch_test

import (
	"testing"
	"time"

	"hearth/engine/batch"
)

// TestPolicyColdStart has an empty shader cache: the warm-up had time for the first shapes only, and measured 64 rows with low clocks. The
// size that is best must be found all the same. (256 rows were never tried: 468, 629 and 904 tok/s, as on a GPU.)
func TestPolicyColdStart(t *testing.T) {
	cfg := layouts[1]
	cfg.Context, cfg.Sequences = 8192, 32
	for n, least := range map[int]float64{8: 480, 16: 655, 32: 935} {
		l := newClientsOf(t, cfg, gpu{streams: true})
		ms := func(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }
		l.s.Prime(batch.Shape{Decode: 1}, 1, ms(4.6))
		l.s.Prime(batch.Shape{Prefill: 64}, 64, ms(59))
		l.s.Prime(batch.Shape{Prefill: 512}, 512, ms(46.8))
		l.s.Prime(batch.Shape{Decode: 1}, 2049, ms(4.8))
		l.s.Prime(batch.Shape{Prefill: 512}, 2560, ms(50.4))
		busyLoop(l, n, 6, least)
	}
}
