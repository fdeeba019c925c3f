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
		if err := t.m.Load(0, 0, 0, int32(n-1)); err != nil {
			return err
		}
		if took := time.Since(began) / 2; h.Move == 0 || took < h.Move {
			h.Move = took
		}
	}
	h.Save = time.Duration(float64(h.TokenBytes) / hostSpeed * float64(time.Second))
	h.Load = h.Save
	if err := t.comesBack(dst); err != nil || h.PartBytes == 0 {
		return err
	}
	return t.parts(h, dst)
}

// parts saves a sequence of which no two cells are neighbours, measures what each of them adds, and brings it back in two parts.
func (t *tester) parts(h *batch.Host, dst int32) error {
	n := len(t.tokens) - 1
	if h.Range = h.Move; dst == 0 { // there is no id for parts to come through: sequences come back whole or not at all
		return nil
	}
	together, err := t.saveTime(func() error { return decode(t.m, t.rows(0, 0, n)) })
	if err != nil {
		return err
	}
	apart, err := t.saveTime(func() error {
		for i := range n {
			rows := append(t.rows(0, i, i+1), t.rows(dst, i, i+1)...)
			rows[1].Output = 1
			if err := decode(t.m, rows); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.Range = max(time.Microsecond, (apart-together)/time.Duration(n-1))
	if err := t.m.Clear(); err != nil {
		return err
	}
	for _, part := range [][2]int32{{0, saveShort}, {saveShort, int32(n)}} {
		if err := t.m.Load(0, 0, part[0], part[1]); err != nil {
			return err
		}
		if err := t.m.Copy(0, dst, 0, -1); err != nil {
			return err
		}
		if err := t.m.Remove(0, 0, -1); err != nil {
			return err
		}
	}
	return t.continues(dst)
}

// saveTime is what saving sequence 0 takes, which compute makes on an empty memory.
func (t *tester) saveTime(compute func() error) (took time.Duration, err error) {
	if err := t.m.Clear(); err != nil {
		return 0, err
	}
	if err := compute(); err != nil {
		return 0, err
	}
	for range saveRuns {
		began := time.Now()
		if err := t.m.Save(0, 0); err != nil {
			return 0, err
		}
		if d := time.Since(began); took == 0 || d < took {
			took = d
		}
	}
	return took, nil
}

// comesBack loads slot 0 beside another sequence, so that it gets other cells, and goes on there.
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
	if err := t.m.Load(0, dst, 0, int32(n-1)); err != nil {
		return err
	}
	return t.continues(dst)
}

// continues computes the last token behind what came back.
func (t *tester) continues(dst int32) error {
	n := len(t.tokens)
	if got := t.m.PosMax(dst); got != int32(n-2) {
		return fmt.Errorf("what came back ends at %d instead of %d", got, n-2)
	}
	if err := decode(t.m, t.rows(dst, n-1, n)); err != nil {
		return err
	}
	return t.compare(0)
}

// moves measures what a token takes to be saved and to be loaded, on the n of the first sequence, which is alone in the memory. Other memory
// than the processor's own is too different from one device to the next to guess.
func (w *warmer) moves(n int32) error {
	h := &w.cfg.Host
	last, size := int32(w.cfg.Sequences-1), h.EntryBytes+int64(n)*h.TokenBytes
	if h.Bytes == 0 || h.Bytes < size || h.PartBytes == 0 || last == 0 || 2*int(n) > w.cfg.Cells || w.moved {
		return nil
	}
	w.moved = true
	defer w.m.Forget(0)
	began := time.Now()
	if err := w.m.Save(0, 0); err != nil {
		w.log.Warn("a sequence could not be moved to host memory", "tokens", n, "err", err)
		return nil
	}
	saved := time.Now()
	if err := w.m.Load(0, last, 0, n); err != nil {
		return err
	}
	loaded := time.Now()
	h.Save = max(1, (saved.Sub(began)-h.Move)/time.Duration(n))
	h.Load = max(1, (loaded.Sub(saved)-h.Move)/time.Duration(n))
	w.log.Info("host memory for cached prefixes", "bytes", h.Bytes, "token_bytes", h.TokenBytes, "save_token", h.Save, "load_token", h.Load,
		"each", h.Move, "run_of_cells", h.Range)
	return w.m.Remove(last, 0, -1)
}
