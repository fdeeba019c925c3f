package worker

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"hearth/engine/batch"
)

func TestOneSlowStepIsNotLearnt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeModel(smallConfig())
		l, err := newLoop(m, m.cfg, io.Discard, testLog(t))
		if err != nil {
			t.Fatal(err)
		}
		step := &batch.Step{Predicted: 10 * time.Millisecond}
		for i, c := range []struct {
			took, wait time.Duration
			outlier    bool
		}{
			{8 * time.Millisecond, 0, false},
			{time.Second, 0, true},
			{60 * time.Millisecond, 0, true}, // the clocks are low
			{9 * time.Millisecond, outlierSettle + 1, false},
			{time.Second, 0, true},
			{time.Second, 0, true},
			{time.Second, 0, false}, // three in a row are the truth
			{time.Second, 0, false},
			{200 * time.Millisecond, 0, false},
		} {
			<-time.After(c.wait)
			if got := l.outlier(step, c.took); got != c.outlier {
				t.Errorf("step %d of %v: %v", i, c.took, got)
			}
		}
	})
}

// Where prompts and decode rows take turns, prompts that have become slow for good show it all the same.
func TestSlowTurnsAreLearnt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeModel(smallConfig())
		l, err := newLoop(m, m.cfg, io.Discard, testLog(t))
		if err != nil {
			t.Fatal(err)
		}
		decode := &batch.Step{Decodes: 8, Predicted: 10 * time.Millisecond}
		prompt := &batch.Step{Prefills: 64, Predicted: 50 * time.Millisecond}
		for i := range 6 {
			if got := l.outlier(prompt, 300*time.Millisecond); got != (i < maxOutliers) {
				t.Errorf("prompt %d: %v", i, got)
			}
			if got := l.outlier(decode, 50*time.Millisecond); got != (i < maxOutliers) { // the clocks are low, perhaps
				t.Errorf("decode rows behind prompt %d: %v", i, got)
			}
		}
	})
}
