package batch

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// The reserve covers all but the worst gaps: of a device that takes 4 % more than predicted at times, and of one that does what is predicted.
func TestSlipCoversTheWorstGaps(t *testing.T) {
	const predicted = 40 * time.Millisecond
	for _, spread := range []float64{0.04, 0.002} {
		rng := rand.New(rand.NewPCG(1, 1))
		p := newSlip()
		now, late, gaps := time.Second, 0, 5000
		p.begin(now)
		for i := range 2 * gaps {
			off := spread * math.Abs(rng.NormFloat64())
			if i >= gaps && off*predicted.Seconds() > p.of(false, 0.05, slipReserve) {
				late++
			}
			now += predicted/2 + toDuration(off*predicted.Seconds())
			p.passed(now, &Step{Prefills: 64, Predicted: predicted / 2}, false, true, true)
			now += predicted / 2
			p.passed(now, &Step{Decodes: 8, Predicted: predicted / 2}, false, true, true)
		}
		if share := float64(late) / float64(gaps); share > 0.03 || share < 0.005 {
			t.Errorf("spread %v: %v of the gaps are longer than the reserve of %v s allows", spread, share, p.near.at)
		}
		if worst := 3 * spread * predicted.Seconds(); p.near.at > worst {
			t.Errorf("spread %v: %v s are held back, %v would cover nearly everything", spread, p.near.at, worst)
		}
	}
}

// Only what says something about predictions teaches: not waiting for a client, a failed step, a copy, a move, or a gap without prompts.
func TestSlipIgnoresOtherDelays(t *testing.T) {
	decode := &Step{Decodes: 8, Predicted: 10 * time.Millisecond}
	prompt := &Step{Prefills: 64, Predicted: 20 * time.Millisecond}
	for name, gap := range map[string]func(p *slip, now time.Duration) time.Duration{
		"no prompt": func(p *slip, now time.Duration) time.Duration { return now },
		"unknown": func(p *slip, now time.Duration) time.Duration {
			p.passed(now+20*time.Millisecond, prompt, false, false, true)
			return now + 20*time.Millisecond
		},
		"failed": func(p *slip, now time.Duration) time.Duration {
			p.spoiled = true
			p.passed(now+20*time.Millisecond, prompt, false, true, true)
			return now + 20*time.Millisecond
		},
		"nobody decoded": func(p *slip, now time.Duration) time.Duration {
			p.since = 0
			p.passed(now+time.Second, prompt, false, true, true)
			return now + time.Second
		},
		"moved": func(p *slip, now time.Duration) time.Duration {
			p.moved = time.Second - 30*time.Millisecond
			p.passed(now+20*time.Millisecond, prompt, false, true, true)
			return now
		},
	} {
		p := newSlip()
		p.begin(time.Second)
		now := gap(&p, time.Second)
		if p.passed(now+time.Second, decode, false, true, true); p.near.at > slipStart {
			t.Errorf("%s: the reserve became %v s", name, p.near.at)
		}
	}
}

// A machine that was disturbed for a while is trusted again within some hundred gaps.
func TestSlipRecovers(t *testing.T) {
	p := newSlip()
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		p.near.observe(0.040*0.2*rng.Float64(), slipLate)
	}
	high := p.near.at
	gaps := 0
	for ; p.near.at > 0.002 && gaps < 5000; gaps++ {
		p.near.observe(0.040*0.01*rng.Float64(), slipLate)
	}
	if high < 0.006 || gaps > 800 {
		t.Errorf("from %v s it took %d gaps", high, gaps)
	}
}
