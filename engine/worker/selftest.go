package worker

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

// Features that the self-test can switch off.
const (
	featureCopy    = "prefix sharing"
	featureParking = "parked prefixes"
	featureTrim    = "prefix trimming"
	featurePad     = "padded steps"
	featureHost    = "host tier"
	featureLong    = "long prompt steps"
)

// selfTest tries, on the loaded model, what the scheduler builds on and the library's header does not promise. A check
// that fails switches the feature off in cfg and says so; an error means that plain decoding does not work. longest is what the longest
// prompt step took, mostly for what was compiled.
func selfTest(m Model, cfg *batch.Config) (features []engine.Feature, longest time.Duration, err error) {
	t := &tester{m: m, unified: cfg.Layout == batch.LayoutUnified && !cfg.Recurrent}
	if err := t.reference(); err != nil {
		return nil, 0, fmt.Errorf("self-test: %w", err)
	}
	check := func(name string, off func(), fn func() error) {
		f := engine.Feature{Name: name, On: true}
		if err := fn(); err != nil {
			f.On, f.Reason = false, err.Error()
			off()
		}
		features = append(features, f)
	}
	if cfg.Sequences > 1 {
		check(featureCopy, func() { cfg.NoCopy = true }, func() error { return t.copies(0, 1, 1) })
	}
	if !cfg.Recurrent {
		check(featureTrim, func() { cfg.NoTrim = true }, t.trims)
	}
	if cfg.Parking > 0 && t.unified && cfg.Sequences > 1 && !cfg.NoCopy {
		check(featureParking, func() { cfg.Parking = 0 }, func() error {
			return t.copies(0, int32(cfg.Sequences+cfg.Parking-1), 1)
		})
	}
	if cfg.Sequences > 2 && !cfg.Recurrent && !cfg.NoPad {
		check(featurePad, func() { cfg.NoPad = true }, t.pads)
	}
	if cfg.Host.Bytes > 0 && !cfg.NoCopy && !cfg.NoTrim {
		check(featureHost, func() { cfg.Host = batch.Host{} }, func() error { return t.saves(&cfg.Host, int32(min(1, cfg.Sequences-1))) })
	}
	if backend := m.Info().Backend; backend != "" && backend != "cpu" {
		if err := t.longSteps(cfg); errors.Is(err, errUnchecked) {
			features = append(features, engine.Feature{Name: featureLong, On: true, Reason: err.Error()})
		} else {
			check(featureLong, func() {}, func() error { return err })
		}
	}
	return features, t.longest, m.Clear()
}

// tester decodes a few tokens in several ways and compares the logits with those of the plain way.
type tester struct {
	m       Model
	unified bool
	tokens  []engine.Token
	want    []float32 // logits behind the last token
	spread  float32   // largest minus smallest of them
	longest time.Duration
}

// tolerance is how far logits may differ, as a part of their spread: cells in other places change the order of sums.
// Wrong cells change logits by the order of the spread itself.
const tolerance = 0.1

func (t *tester) rows(seq int32, from, to int) []batch.Row {
	var rows []batch.Row
	for i := from; i < to; i++ {
		r := batch.Row{Token: t.tokens[i], Pos: int32(i), Seq: seq, Output: -1, Kind: batch.RowPrefill}
		if i == to-1 {
			r.Output = 0
		}
		rows = append(rows, r)
	}
	return rows
}

// reference decodes the tokens plainly.
func (t *tester) reference() error {
	for i := range 6 {
		t.tokens = append(t.tokens, fillToken(t.m, 7*i))
	}
	if err := t.m.Clear(); err != nil {
		return err
	}
	if err := decode(t.m, t.rows(0, 0, len(t.tokens))); err != nil {
		return err
	}
	t.want = slices.Clone(t.m.Logits(0))
	if len(t.want) == 0 {
		return fmt.Errorf("decode gave no logits")
	}
	for _, v := range t.want {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("the backend computes logits that are no numbers")
		}
	}
	t.spread = slices.Max(t.want) - slices.Min(t.want)
	return nil
}

// compare checks output row k against the reference.
func (t *tester) compare(k int) error {
	got := t.m.Logits(k)
	if len(got) != len(t.want) {
		return fmt.Errorf("%d logits instead of %d", len(got), len(t.want))
	}
	var worst float32
	for i, v := range got {
		d := v - t.want[i]
		if d < 0 {
			d = -d
		}
		if !(d <= worst) { // also for NaN
			worst = d
		}
	}
	if !(worst <= tolerance*t.spread) {
		return fmt.Errorf("logits differ by %g of a spread of %g", worst, t.spread)
	}
	return nil
}

// copies shares a prefix from sequence src through via into dst, drops the others, and continues on dst.
func (t *tester) copies(src, via, dst int32) error {
	n := len(t.tokens)
	if err := t.m.Clear(); err != nil {
		return err
	}
	if err := decode(t.m, t.rows(src, 0, n-1)); err != nil {
		return err
	}
	if err := t.m.Copy(src, via, 0, -1); err != nil {
		return err
	}
	if err := t.m.Remove(src, 0, -1); err != nil {
		return err
	}
	if via != dst {
		if err := t.m.Copy(via, dst, 0, -1); err != nil {
			return err
		}
		if err := t.m.Remove(via, 0, -1); err != nil {
			return err
		}
	}
	if got := t.m.PosMax(dst); got != int32(n-2) {
		return fmt.Errorf("after the copy the sequence ends at %d instead of %d", got, n-2)
	}
	if err := decode(t.m, t.rows(dst, n-1, n)); err != nil {
		return err
	}
	return t.compare(0)
}

// trims removes a sequence's tail and computes it again.
func (t *tester) trims() error {
	n := len(t.tokens)
	if err := t.m.Clear(); err != nil {
		return err
	}
	if err := decode(t.m, t.rows(0, 0, n)); err != nil {
		return err
	}
	if err := t.m.Remove(0, int32(n-3), -1); err != nil {
		return err
	}
	if got := t.m.PosMax(0); got != int32(n-4) {
		return fmt.Errorf("after the removal the sequence ends at %d instead of %d", got, n-4)
	}
	if err := decode(t.m, t.rows(0, n-3, n)); err != nil {
		return err
	}
	return t.compare(0)
}

// pads decodes one real row beside two padding rows on ids of their own.
func (t *tester) pads() error {
	n := len(t.tokens)
	if err := t.m.Clear(); err != nil {
		return err
	}
	if err := decode(t.m, t.rows(0, 0, n-1)); err != nil {
		return err
	}
	rows := t.rows(0, n-1, n)
	for id := int32(1); id <= 2; id++ {
		rows = append(rows, batch.Row{Token: t.tokens[0], Seq: id, Output: id, Kind: batch.RowPad})
	}
	if err := decode(t.m, rows); err != nil {
		return err
	}
	if err := t.compare(0); err != nil {
		return err
	}
	for id := int32(1); id <= 2; id++ {
		if err := t.m.Remove(id, 0, -1); err != nil {
			return err
		}
		if got := t.m.PosMax(id); got != -1 {
			return fmt.Errorf("a removed padding row still ends at %d", got)
		}
	}
	return nil
}
