package worker

import (
	"slices"
	"testing"

	"hearth/engine"
)

// watchedEmbedder notes the lengths of the texts of each batch.
type watchedEmbedder struct {
	*fakeModel
	batches [][]int
}

func (m *watchedEmbedder) Embed(texts [][]engine.Token, each func(int, []float32)) error {
	var lens []int
	for _, t := range texts {
		lens = append(lens, len(t))
	}
	m.batches = append(m.batches, lens)
	return m.fakeModel.Embed(texts, each)
}

// TestLongTextHasItsTurn: short texts that come all the time do not keep a long one from being computed.
func TestLongTextHasItsTurn(t *testing.T) {
	m := &watchedEmbedder{fakeModel: newFakeModel(smallConfig())}
	e := newEmbedder(m, testLog(t))
	send := func(n, length int) *embedJob {
		j := &embedJob{done: make(chan struct{}), ctx: t.Context(), out: make([][]float32, n), left: n}
		for range n {
			j.texts = append(j.texts, make([]engine.Token, length))
		}
		e.work <- j
		return j
	}
	send(1, 60)
	last := send(3, 5)
	for range 40 {
		last = send(3, 5)
	}
	ended := make(chan error)
	go func() { ended <- e.run() }()
	<-last.done
	close(e.stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(m.batches, func(lens []int) bool { return slices.Contains(lens, 60) })
	if at < 0 || at > passedMost {
		t.Errorf("the long text is in batch %d of %d", at, len(m.batches))
	}
}
