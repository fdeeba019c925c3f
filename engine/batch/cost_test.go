package batch

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// tiles is what an evaluation of prompt rows costs on a GPU, in ms: by the tiles of a matrix product, with a faster kernel for full ones.
func tiles(rows int32) float64 {
	switch {
	case rows <= 64:
		return 15
	case rows == 128:
		return 16.5
	case rows <= 256:
		return 25
	}
	return 47
}

// truth is a step time that the model's form can express; line makes prompt rows cost by the row, as on a CPU.
func truth(l load, line bool) time.Duration {
	s := 0.0
	for _, e := range l {
		if e.decodes == e.rows {
			s += 0.004 + 0.0002*float64(bucketOf(int(e.rows))) + 4e-7*float64(e.kv)
			continue
		}
		if line {
			s += 0.003 + float64(e.rows)/300
		} else {
			s += tiles(e.rows) / 1e3
		}
		s += float64(e.rows) * float64(e.kv) * 3e-9
	}
	return time.Duration(s * float64(time.Second))
}

func TestCostModelLearns(t *testing.T) {
	for _, line := range []bool{true, false} {
		rng := rand.New(rand.NewPCG(1, 1))
		m := newCostModel(false, !line)
		draw := func() load {
			e := evaluation{kv: int32(256 * (1 + rng.IntN(64)))}
			switch rng.IntN(3) {
			case 0:
				e.decodes = 1 + rng.Int32N(16)
				e.rows = e.decodes
			case 1:
				e.rows = 1 + rng.Int32N(512)
			default:
				e.decodes = 1 + rng.Int32N(16)
				e.rows = e.decodes + 1 + rng.Int32N(480)
			}
			if !line && e.rows > e.decodes { // the sizes that a planner makes
				e.rows = sizes[sizeOf(e.rows)]
			}
			return load{e}
		}
		for range 4000 {
			l := draw()
			noise := 1 + 0.05*(rng.Float64()-0.5)
			m.observe(l, time.Duration(float64(truth(l, line))*noise), true)
		}
		for range 200 {
			l := draw()
			if l[0].rows < 16 && line {
				continue // points of few rows lie far apart, in parts
			}
			got, ok := m.predict(l)
			if want := truth(l, line).Seconds(); !ok || math.Abs(got-want) > 0.12*want+3e-4 {
				t.Fatalf("%+v: predicts %v, is %v", l, got, want)
			}
		}
		if _, perCell := m.cellTime(evaluation{rows: 8, kv: 4096}); perCell < 3e-7 || perCell > 5e-7 {
			t.Errorf("a cell costs %v s, is 4e-7", perCell)
		}
		if got := m.alone.deep.of() / 1024; got < 2.5e-9 || got > 3.5e-9 {
			t.Errorf("a cell costs a prompt's row %v s, is 3e-9", got)
		}
	}
}

// A price that was too high at load, when the GPU had lowered its clocks, is corrected by evaluations behind long contexts, too.
func TestCostModelForgetsASlowStart(t *testing.T) {
	m := newCostModel(true, true)
	m.observe(load{{rows: 64, kv: 32}}, 75*time.Millisecond, false)
	m.observe(load{{rows: 512, kv: 256}}, 47*time.Millisecond, false)
	for range 20 {
		m.observe(load{{rows: 64, kv: 5000}}, 16*time.Millisecond, true)
	}
	if got, _ := m.predict(load{{rows: 64, kv: 5000}}); got > 20e-3 {
		t.Errorf("predicts %v s, is 16 ms", got)
	}
	if got, _ := m.predict(load{{rows: 512, kv: 5000}}); got > 60e-3 || got < 20e-3 {
		t.Errorf("predicts %v s for a full chunk", got)
	}
}

// What does not vary is not learned as a slope.
func TestCostModelConstantSpan(t *testing.T) {
	m := newCostModel(false, false)
	e := evaluation{rows: 4, decodes: 4, kv: 32768}
	for range 500 {
		m.observe(load{e}, 10*time.Millisecond, true)
	}
	if _, perCell := m.cellTime(e); perCell != 0 {
		t.Errorf("a cell costs %v s", perCell)
	}
	if got, _ := m.predict(load{e}); got < 9.9e-3 || got > 10.1e-3 {
		t.Errorf("predicts %v", got)
	}
}

// A page fault or a compile is not what steps cost, and a clock that changes is: for decode steps and for prompts.
func TestCostModelOutliersAndDrift(t *testing.T) {
	for _, e := range []evaluation{{rows: 8, decodes: 8, kv: 512}, {rows: 128, kv: 64}, {rows: 128, decodes: 16, kv: 64}} {
		m := newCostModel(false, false)
		l := load{e}
		for range 100 {
			m.observe(l, 10*time.Millisecond, true)
		}
		m.observe(l, 8*time.Second, true)
		if got, _ := m.predict(l); got > 15e-3 {
			t.Errorf("%+v: after one outlier predicts %v", e, got)
		}
		for range 500 {
			m.observe(l, 60*time.Millisecond, true)
		}
		if got, _ := m.predict(l); got < 58e-3 || got > 62e-3 {
			t.Errorf("%+v: after a change to 60 ms predicts %v", e, got)
		}
	}
}

func TestCostModelKnowsNothing(t *testing.T) {
	m := newCostModel(true, true)
	l := load{{rows: 64}}
	if _, ok := m.predict(l); ok || m.knows() {
		t.Error("claims to know")
	}
	m.observe(l, 10*time.Millisecond, true)
	if !m.knows() || m.largest() != 128 {
		t.Errorf("trusts up to %d rows after 64", m.largest())
	}
	for rows, least := range map[int32]float64{1: 4e-3, 32: 5e-3, 64: 9e-3, 128: 19e-3} {
		if got, ok := m.predict(load{{rows: rows}}); !ok || got < least {
			t.Errorf("%d rows: %v", rows, got)
		}
	}
}

// What was seen of an idle machine at load is corrected as a whole by what service shows, each point by its own observations.
func TestCostModelSharesDrift(t *testing.T) {
	m := newCostModel(true, true)
	for _, size := range []int32{64, 128, 256, 512} {
		m.observe(load{{rows: size}}, time.Duration(3*tiles(size)*1e6), false) // the clocks were low
	}
	for range 60 {
		m.observe(load{{rows: 128}}, time.Duration(tiles(128)*1e6), true)
	}
	for _, size := range []int32{64, 128, 256, 512} {
		got, _ := m.predict(load{{rows: size}})
		if want := tiles(size) / 1e3; got < 0.7*want || got > 2*want {
			t.Errorf("%d rows: predicts %v, is %v", size, got, want)
		}
	}
}

// A machine that slows down in service slows all sizes down once, however many of them are in use.
func TestCostModelSharesDriftOnce(t *testing.T) {
	m := newCostModel(true, true)
	used := []int32{16, 32, 48, 64, 96, 128, 192, 256}
	see := func(size int32, slow float64, online bool) {
		m.observe(load{{rows: size}}, time.Duration(slow*tiles(size)*1e6), online)
	}
	for _, size := range append(used, 512) {
		see(size, 1, false)
	}
	for _, slow := range []float64{1, 2, 1} {
		for range 60 {
			for _, size := range used {
				see(size, slow, true)
			}
		}
		got, _ := m.predict(load{{rows: 512}})
		if want := slow * tiles(512) / 1e3; got < 0.7*want || got > 1.4*want {
			t.Errorf("%v times slower: predicts %v, is %v", slow, got, want)
		}
	}
}

// Sizes that do not fill the tiles of an attention kernel cost more for every cell, and that is learnt of each size by itself.
func TestCostModelDepthBySize(t *testing.T) {
	m := newCostModel(true, true)
	ms := func(rows, kv int32) float64 { // of the GPU measured, docs/scheduling.md
		cell := map[int32]float64{70: 2.4, 128: 1.2, 256: 1}[rows] / 1024
		return map[int32]float64{70: 25, 128: 17, 256: 28}[rows] + cell*float64(kv)
	}
	for _, kv := range []int32{64, 2048, 4096, 7000, 64, 4096} {
		for range 10 {
			for _, rows := range []int32{70, 128, 256} {
				m.observe(load{{rows: rows, kv: kv}}, time.Duration(1e6*ms(rows, kv)), true)
			}
		}
	}
	for _, rows := range []int32{70, 128, 256} {
		for _, kv := range []int32{64, 4096, 7000} {
			got, _ := m.predict(load{{rows: rows, kv: kv}})
			if want := ms(rows, kv) / 1e3; math.Abs(got-want) > 0.05*want {
				t.Errorf("%d rows behind %d: predicts %v s, is %v", rows, kv, got, want)
			}
		}
	}
}

// A size that was never seen behind a long context does not look better than the next larger one, which was; on a CPU every size is alike.
func TestCostModelCaution(t *testing.T) {
	for _, tiles := range []bool{true, false} {
		m := newCostModel(true, tiles)
		for _, rows := range []int32{128, 192} {
			m.observe(load{{rows: rows, kv: 64}}, 25*time.Millisecond, true)
			m.observe(load{{rows: rows, kv: 7000}}, 32*time.Millisecond, true)
		}
		m.observe(load{{rows: 161, kv: 64}}, 25*time.Millisecond, true)
		odd, _ := m.predict(load{{rows: 161, kv: 7000}})
		full, _ := m.predict(load{{rows: 192, kv: 7000}})
		if odd > full != tiles {
			t.Errorf("tiles %v: 161 rows take %v s, 192 %v", tiles, odd, full)
		}
		for range 10 {
			m.observe(load{{rows: 161, kv: 7000}}, 30*time.Millisecond, true)
		}
		if odd, _ = m.predict(load{{rows: 161, kv: 7000}}); odd > full {
			t.Errorf("tiles %v: 161 rows, which take 30 ms, are thought to take %v s", tiles, odd)
		}
	}
}
