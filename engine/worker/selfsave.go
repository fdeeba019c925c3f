package worker

import (
	"fmt"
	"time"

	"hearth/engine/batch"
)

const (
	// hostSpeed is assumed for copies of saved states, in bytes per second, until the scheduler has seen some: what one core reaches
	// on memory that it did not touch before.
	hostSpeed = 2e9
	// saveRuns is how often a save and a load are timed; the fastest counts.
	saveRuns = 3
	// saveShort is the length of a second sequence, by which the bytes of a token are told from those of an entry.
	saveShort = 2
)

// saves moves a sequence to host memory and brings it back as dst, continues there, and measures what that takes.
func (t *tester) saves(h *batch.Host, dst int32) error {
	n := len(t.tokens)
	if err := t.m.Clear(); err != nil {
		return err
	}
	if err := decode(t.m, t.rows(0, 0, saveShort)); err != nil {
		return err
	}
	short, err := t.m.SaveSize(0)
	if err != nil {
		return err
	}
	if err := decode(t.m, t.rows(0, saveShort, n-1)); err != nil {
		return err
	}
	long, err := t.m.SaveSize(0)
	if err != nil {
		return err
	}
	tokens := n - 1 - saveShort
	h.TokenBytes = int64((long - short + tokens - 1) / tokens)
	h.EntryBytes = max(0, int64(short)-saveShort*h.TokenBytes)
	if h.TokenBytes <= 0 {
		return fmt.Errorf("%d tokens more take %d bytes more", tokens, long-short)
	}
	defer t.m.Forget(0)
	for range saveRuns {
		began := time.Now()
		if err := t.m.Save(0, 0); err != nil {
			return err
		}
		if err := t.m.Clear(); err != nil {
			return err
		}
		if err := t.m.Load(0, 0); err != nil {
			return err
		}
		if took := time.Since(began) / 2; h.Move == 0 || took < h.Move {
			h.Move = took
		}
	}
	h.Save = time.Duration(float64(h.TokenBytes) / hostSpeed * float64(time.Second))
	h.Load = h.Save
	return t.comesBack(dst)
}

// comesBack loads slot 0 beside another sequence, so that it gets other cells, and computes the last token behind it.
func (t *tester) comesBack(dst int32) error {
	n := len(t.tokens)
	if err := t.m.Clear(); err != nil {
		return err
	}
	if dst > 0 {
		if err := decode(t.m, t.rows(0, 0, saveShort)); err != nil {
			return err
		}
	}
	if err := t.m.Load(0, dst); err != nil {
		return err
	}
	if got := t.m.PosMax(dst); got != int32(n-2) {
		return fmt.Errorf("what came back ends at %d instead of %d", got, n-2)
	}
	if err := decode(t.m, t.rows(dst, n-1, n)); err != nil {
		return err
	}
	return t.compare(0)
}
