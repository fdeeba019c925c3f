package worker

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"hearth/engine/batch"
)

// A device that computes long steps wrongly gets none.
func TestSelfTestOfLongSteps(t *testing.T) {
	for name, c := range map[string]struct {
		backend          string
		wrongFrom, chunk int
		slow             bool
		want             int
		on               bool
	}{
		"right": {"vulkan", 0, 512, false, 512, true}, "right and slow": {"vulkan", 0, 512, true, 512, true}, "wrong": {"vulkan", 64, 512, false, 64, false},
		"wrong and slow": {"vulkan", 64, 512, true, 64, false}, "all wrong": {"vulkan", 8, 60, false, 8, false}, "short": {"vulkan", 64, 64, false, 64, true},
		"a little longer": {"vulkan", 64, 66, false, 64, false}, "slow and a little longer": {"vulkan", 64, 65, true, 64, false}, "tiny": {"vulkan", 4, 8, false, 8, true}, "a CPU is not asked": {"cpu", 64, 512, false, 512, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := batch.Config{Cells: 2048, Context: 1024, Sequences: 8, Parking: 16, Chunk: c.chunk, Outputs: 8}
				m := newFakeModel(cfg)
				m.backend, m.wrongFrom = c.backend, c.wrongFrom
				longest := 0
				m.decode = func(rows []batch.Row) {
					longest = max(longest, len(rows))
					if c.slow && len(rows) >= 64 {
						<-time.After(200 * time.Millisecond)
					}
				}
				features, _, err := selfTest(m, &cfg)
				if err != nil {
					t.Fatal(err)
				}
				f := features[len(features)-1]
				if asked := f.Name == featureLong; asked != (c.backend != "cpu") || asked && (f.On != c.on || f.On != (f.Reason == "")) || cfg.Chunk != c.want {
					t.Errorf("%+v, chunk %d", f, cfg.Chunk)
				}
				if c.slow && longest > 80 {
					t.Errorf("a step of %d rows on a slow device", longest)
				}
			})
		})
	}
}

func TestCorrelation(t *testing.T) {
	a := []float32{1, 2, 3, 5}
	nan := float32(math.NaN())
	for _, c := range []struct {
		b    []float32
		want float64
	}{{a, 1}, {[]float32{-1, -2, -3, -5}, -1}, {[]float32{3, 5, 7, 11}, 1}, {[]float32{1, 1, 1, 1}, math.NaN()}, {[]float32{1, 2, nan, 5}, math.NaN()}, {a[:3], math.NaN()}} {
		if got := correlation(a, c.b); math.IsNaN(got) != math.IsNaN(c.want) || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v: %v, want %v", c.b, got, c.want)
		}
	}
}

// A device that would take minutes is not asked, and says so; one that was busy for a moment is.
func TestSelfTestOfLongStepsEnds(t *testing.T) {
	for name, c := range map[string]struct {
		row     time.Duration
		pause   time.Duration // of the first step
		checked bool
	}{"slow": {300 * time.Millisecond, 0, false}, "usable": {20 * time.Millisecond, 0, true}, "busy once": {time.Millisecond, 3 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := batch.Config{Cells: 2048, Context: 1024, Sequences: 8, Parking: 16, Chunk: 512, Outputs: 8}
				m := newFakeModel(cfg)
				m.backend = "vulkan"
				longest, paused := 0, false
				m.decode = func(rows []batch.Row) {
					longest = max(longest, len(rows))
					d := time.Duration(len(rows)) * c.row
					if len(rows) == fewRows && !paused {
						d, paused = d+c.pause, true
					}
					<-time.After(d)
				}
				began := time.Now()
				features, _, err := selfTest(m, &cfg)
				if err != nil {
					t.Fatal(err)
				}
				f := features[len(features)-1]
				if f.Name != featureLong || !f.On || (f.Reason == "") != c.checked || (longest > someRows) != c.checked {
					t.Errorf("%+v, the longest step had %d rows", f, longest)
				}
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
