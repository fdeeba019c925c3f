package batch

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// truth is a step time that the model's form can express.
func truth(l load) time.Duration {
	s := 0.0
	if l.decodes > 0 {
		s = 0.004 + 0.0002*float64(bucketOf(l.decodes)) + 4e-7*float64(l.span)
	}
	if l.prefills > 0 {
		s += 0.003 + float64(l.prefills)/11000 + float64(l.prefills)*float64(l.depth)*3e-9
	}
	return time.Duration(s * float64(time.Second))
}

func TestCostModelLearns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	m := newCostModel()
	draw := func() load {
		l := load{span: 256 * (1 + rng.IntN(64))}
		switch rng.IntN(3) {
		case 0:
			l.decodes = 1 + rng.IntN(16)
		case 1:
			l.prefills = 1 + rng.IntN(512)
		default:
			l.decodes, l.prefills = 1+rng.IntN(16), 1+rng.IntN(480)
		}
		if l.prefills > 0 {
			l.depth = rng.IntN(8192)
		}
		return l
	}
	for range 2000 {
		l := draw()
		noise := 1 + 0.05*(rng.Float64()-0.5)
		m.observe(l, time.Duration(float64(truth(l))*noise))
	}
	for range 200 {
		l := draw()
		got, want := m.predict(l), truth(l)
		if math.Abs(float64(got-want)) > 0.1*float64(want)+3e5 {
			t.Fatalf("%+v: predicts %v, is %v", l, got, want)
		}
	}
	if _, perCell := m.cellTime(load{decodes: 8, span: 4096}); perCell < 3e-7 || perCell > 5e-7 {
		t.Errorf("a cell costs %v s, is 4e-7", perCell)
	}
	n, ok := m.prefillWithin(20*time.Millisecond, 8, 0)
	if want := int(17e-3 * 11000); !ok || n < want*9/10 || n > want*11/10 {
		t.Errorf("%d prefill rows within 20 ms, want about %d", n, want)
	}
}

// What does not vary is not learned as a slope.
func TestCostModelConstantSpan(t *testing.T) {
	m := newCostModel()
	for range 500 {
		m.observe(load{decodes: 4, span: 32768}, 10*time.Millisecond)
	}
	if _, perCell := m.cellTime(load{decodes: 4, span: 32768}); perCell != 0 {
		t.Errorf("a cell costs %v s", perCell)
	}
	if got := m.predict(load{decodes: 4, span: 32768}); got < 9900*time.Microsecond || got > 10100*time.Microsecond {
		t.Errorf("predicts %v", got)
	}
}

// A page fault or a compile is not what steps cost, and a clock that changes is.
func TestCostModelOutliersAndDrift(t *testing.T) {
	m := newCostModel()
	l := load{decodes: 8, span: 512}
	for range 100 {
		m.observe(l, 10*time.Millisecond)
	}
	m.observe(l, 8*time.Second)
	if got := m.predict(l); got > 15*time.Millisecond {
		t.Errorf("after one outlier predicts %v", got)
	}
	for range 500 {
		m.observe(l, 20*time.Millisecond)
	}
	if got := m.predict(l); got < 19*time.Millisecond || got > 21*time.Millisecond {
		t.Errorf("after a change to 20 ms predicts %v", got)
	}
}

func TestCostModelKnowsNothing(t *testing.T) {
	m := newCostModel()
	if got := m.predict(load{decodes: 1, span: 256, prefills: 10}); got != 0 {
		t.Errorf("predicts %v", got)
	}
	if _, ok := m.prefillWithin(time.Second, 1, 0); ok {
		t.Error("claims to know how much prefill fits")
	}
	m.observe(load{prefills: 64}, 10*time.Millisecond)
	if n, ok := m.prefillWithin(time.Hour, 0, 0); !ok || n > 128 {
		t.Errorf("%d rows, %v: more than twice what was seen", n, ok)
	}
}

// A backend that compiles for two seconds right after start-up must not make every later prefill look expensive: as was
// seen on a GPU, where chunks beside decodes stayed at the least size for hundreds of steps.
func TestCostModelEarlyOutlier(t *testing.T) {
	m := newCostModel()
	for _, d := range []int{1, 8} { // as the warm-up primes it
		for _, span := range []int{256, 2304} {
			m.observe(load{decodes: d, span: span}, truth(load{decodes: d, span: span}))
			for _, p := range []int{64, 500} {
				l := load{decodes: d, span: span, prefills: p}
				m.observe(l, truth(l))
			}
		}
	}
	l := load{decodes: 6, span: 1024, prefills: 64}
	before := m.predict(l)
	if want := truth(l); before < want/2 || before > 2*want {
		t.Errorf("primed, predicts %v, is %v", before, want)
	}
	m.observe(l, 2*time.Second)
	if after := m.predict(l); after != before {
		t.Errorf("%v became %v by one outlier", before, after)
	}
	for range 50 { // the clock dropped by half for good, and more
		m.observe(l, 6*truth(l))
	}
	if after := m.predict(l); after < 3*truth(l) {
		t.Errorf("after 50 steps of %v predicts %v", 6*truth(l), after)
	}
}
