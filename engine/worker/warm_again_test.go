package worker

import (
	"testing"
	"testing/synctest"
	"time"

	"hearth/engine/batch"
)

// Who asks for something while idle time is used does not wait for a second look at what was measured.
func TestMeasuringAgainEndsForAMessage(t *testing.T) {
	m := newFakeModel(smallConfig())
	steps := 0
	m.decode = func([]batch.Row) { steps++ }
	w := &warmer{ctx: t.Context(), m: m, log: testLog(t), cfg: m.cfg, lens: make([]int32, m.cfg.Sequences)}
	w.out, w.compiled = []warmed{{shape: batch.Shape{Decode: 1}, doubtful: true}}, time.Now()
	if err := w.again(func() bool { return true }); err != nil || steps > 0 {
		t.Errorf("%d steps, %v", steps, err)
	}
}

// A GPU that waits for a compilation lowers its clocks: what is measured then is measured again.
func TestWarmUpMeasuresAgainWithHighClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeModel(batch.Config{Cells: 4096, Context: 1024, Sequences: 8, Parking: 8, Chunk: 256, Outputs: 8})
		m.async = true
		seen := map[int]bool{}
		low := time.Now()
		m.decode = func(rows []batch.Row) {
			d := time.Duration(len(rows)) * 100 * time.Microsecond
			if n := len(rows); !seen[n] && n >= 64 {
				seen[n] = true
				<-time.After(2 * time.Second)
				low = time.Now().Add(350 * time.Millisecond)
			}
			if time.Now().Before(low) {
				d *= 4
			}
			<-time.After(d)
		}
		costs, _, err := warmUp(t.Context(), m, m.cfg, time.Now().Add(time.Minute), 0, false, testLog(t), func(float64) {})
		if err != nil {
			t.Fatal(err)
		}
		checked := 0
		for _, c := range costs {
			if c.span > c.shape.Rows() { // behind a long context
				continue
			}
			checked++
			if want := time.Duration(c.shape.Rows()) * 100 * time.Microsecond; c.duration != want {
				t.Errorf("%+v takes %v, measured %v", c.shape, want, c.duration)
			}
		}
		if checked < 5 {
			t.Errorf("%d shapes", checked)
		}
	})
}
