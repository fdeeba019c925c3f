package worker

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"hearth/engine/batch"
)

// What is known between two steps is told then, not behind the next step: a refusal here, on a device whose steps take long.
func TestRefusalsDoNotWaitForAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step = 250 * time.Millisecond
		cfg := smallConfig()
		cfg.QueueLimit = 1
		m := newFakeModel(cfg)
		m.async = true
		m.decode = func([]batch.Row) { <-time.After(step) }
		l, err := newLoop(m, cfg, io.Discard, testLog(t))
		if err != nil {
			t.Fatal(err)
		}
		r := newRigOf(t, m, l)
		r.submit(request(prompt(40, 1), 100))
		<-time.After(step + step/2) // in the middle of a step
		var last uint64
		for i := range 20 { // more than there are places and queue
			last = r.submit(request(prompt(200, 2+i), 30))
		}
		sent := time.Now()
		if o := r.result(last); o.failed == nil {
			t.Fatal("the last request was not refused")
		}
		if took := time.Since(sent); took > step {
			t.Errorf("a refusal took %v", took)
		}
	})
}

// slowRelayout takes its time to make a context.
type slowRelayout struct {
	*fakeModel
	began time.Time
}

func (m *slowRelayout) Relayout(l batch.Layout) (batch.Config, error) {
	m.began = time.Now()
	<-time.After(time.Second)
	return m.fakeModel.Relayout(l)
}

// The last answer before a change of the layout ends before the change, not behind it.
func TestAnswersEndBeforeTheLayoutChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := batch.Config{Cells: 2048, Context: 512, Sequences: 4, Parking: 8, Chunk: 64, Outputs: 4}
		m := &slowRelayout{fakeModel: newFakeModel(cfg)}
		m.decode = func([]batch.Row) { <-time.After(time.Millisecond) }
		r := newRigOf(t, m.fakeModel, following(t, m, cfg, batch.LayoutCosts{Base: 4e-3, UnifiedCell: 4e-5, StreamsCell: 1e-5, Evaluation: 4e-3}))
		var ids []uint64
		for i := range 24 {
			ids = append(ids, r.submit(request(prompt(100+i, i), 100)))
		}
		for _, id := range ids {
			r.result(id)
		}
		told := time.Now()
		<-time.After(2 * time.Second)
		r.end()
		if m.began.IsZero() || told.After(m.began) {
			t.Errorf("the last answer ended %v behind the begin of the change", told.Sub(m.began))
		}
	})
}
