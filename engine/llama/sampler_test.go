package llama_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"hearth/engine/llama"
)

// randomLogits imitates a model's row: normal noise with a few peaks.
func randomLogits(rng *rand.Rand, n int, flat bool) []float32 {
	l := make([]float32, n)
	for i := range l {
		l[i] = float32(rng.NormFloat64() * 2)
	}
	if !flat {
		for range 1 + rng.IntN(30) {
			l[rng.IntN(n)] += float32(rng.Float64() * 15)
		}
	}
	return l
}

// topPLogits makes rows whose nucleus is a few tokens (peaked), some tokens
// and a part of the noise (mixed), much of the noise, or nearly everything (wide, flat).
func topPLogits(rng *rand.Rand, n int, kind string) []float32 {
	l := make([]float32, n)
	spread := map[string]float64{"peaked": 2, "mixed": 2, "noise": 2, "wide": 1, "flat": 0.1}[kind]
	for i := range l {
		l[i] = float32(rng.NormFloat64() * spread)
	}
	switch kind {
	case "peaked":
		for range 20 {
			l[rng.IntN(n)] = float32(16 + 6*rng.Float64())
		}
	case "mixed":
		for range 20 {
			l[rng.IntN(n)] = float32(math.Log(float64(n)) + 4*rng.Float64() - 2)
		}
	}
	return l
}

// The kernels of the sampler, by their number in Sampler.SIMD.
var kernels = []string{"scalar", "avx2", "avx512"}

func newSampler(t testing.TB, vocab, threads int) *llama.Sampler {
	t.Helper()
	s, err := llama.NewSampler(vocab, 64, threads, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// newSamplers makes one sampler for each kernel that this CPU runs.
func newSamplers(t testing.TB, vocab int) []*llama.Sampler {
	t.Helper()
	var all []*llama.Sampler
	for simd := range kernels {
		s, err := llama.NewSamplerUpTo(simd, vocab, 64, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		if s.SIMD() == simd {
			all = append(all, s)
		}
	}
	return all
}

func newRow(t testing.TB, vocab int, p llama.SampleParams) *llama.Row {
	t.Helper()
	r, err := llama.NewRowFor(vocab, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func rowsOf(t testing.TB, l ...[]float32) llama.Rows {
	r, unpin := llama.RowsOf(l...)
	t.Cleanup(unpin)
	return r
}

// sameDistribution compares two lists of candidates by token. A candidate at
// the very edge of a cut may fall either way: a difference is forgiven when it
// carries no more than eps.
func sameDistribution(gt []llama.Token, gp []float32, wt []llama.Token, wp []float32, eps float64) error {
	got := map[llama.Token]float64{}
	for i, t := range gt {
		got[t] = float64(gp[i])
	}
	for i, t := range wt {
		p, ok := got[t]
		if d := math.Abs(p - float64(wp[i])); d > eps {
			return fmt.Errorf("token %d: %g, want %g (present: %v)", t, p, wp[i], ok)
		}
		delete(got, t)
	}
	for t, p := range got {
		if p > eps {
			return fmt.Errorf("token %d with %g should not be there", t, p)
		}
	}
	return nil
}

func randomParams(rng *rand.Rand, vocab int) llama.SampleParams {
	p := llama.NewSampleParams()
	pick := func(vs ...float32) float32 { return vs[rng.IntN(len(vs))] }
	p.Temperature = pick(0.2, 0.7, 1, 1.5)
	p.TopK = []int{0, 0, 1, 5, 40, 300, vocab, vocab + 7}[rng.IntN(8)]
	p.TopP = pick(1, 1, 0.95, 0.5, 0.1, 0)
	p.MinP = pick(0, 0, 0.05, 0.3, 1)
	p.RepeatPenalty = pick(1, 1, 1.1, 0.8, 2)
	p.FrequencyPenalty = pick(0, 0, 0.5, -0.3)
	p.PresencePenalty = pick(0, 0, 0.7, -0.2)
	p.PenaltyLastN = []int{64, 5, 0, 1, 200}[rng.IntN(5)]
	if rng.IntN(3) == 0 {
		p.Bias = map[llama.Token]float32{}
		for range rng.IntN(10) {
			p.Bias[llama.Token(rng.IntN(vocab))] = float32(rng.NormFloat64() * 10)
		}
		p.Ban = []llama.Token{llama.Token(rng.IntN(vocab))}
		delete(p.Bias, p.Ban[0])
	}
	return p
}

// The kernel's candidates and probabilities are llama.cpp's, for random
// settings over random rows, with vectors and without.
func TestKernelEqualsChain(t *testing.T) {
	for _, vocab := range []int{1, 7, 127, 128, 1000, 5003} {
		for _, s := range newSamplers(t, vocab) {
			for seed := range 150 {
				rng := rand.New(rand.NewPCG(uint64(seed), uint64(vocab)))
				logits := randomLogits(rng, vocab, seed%3 == 0)
				p := randomParams(rng, vocab)
				var history []llama.Token
				for range rng.IntN(100) {
					history = append(history, llama.Token(rng.IntN(min(vocab, 40))))
				}
				if len(p.Ban) == vocab {
					continue
				}
				wt, wp, err := llama.Reference(logits, p, history)
				if err != nil {
					t.Fatal(err)
				}
				row := newRow(t, vocab, p)
				for _, tok := range history {
					if err := row.Accept(tok); err != nil {
						t.Fatal(err)
					}
				}
				before := slices.Clone(logits)
				rows, unpin := llama.RowsOf(logits)
				gt, gp, err := s.Distribution(rows, llama.Job{Row: row}, vocab)
				unpin()
				if err != nil {
					t.Fatal(err)
				}
				if err := sameDistribution(gt, gp, wt, wp, 2e-5); err != nil {
					t.Fatalf("vocab %d %s seed %d %+v: %v", vocab, kernels[s.SIMD()], seed, p, err)
				}
				if !slices.Equal(before, logits) {
					t.Fatal("the row was not restored")
				}
			}
		}
	}
}

// drawsFollow draws from a row and compares with its candidates' probabilities
// by chi-square, over bins of 8 expected draws or more in the order of likelihood.
func drawsFollow(t *testing.T, s *llama.Sampler, rows llama.Rows, row *llama.Row, vocab, draws int) {
	t.Helper()
	tok, prob, err := s.Distribution(rows, llama.Job{Row: row}, vocab)
	if err != nil {
		t.Fatal(err)
	}
	count := map[llama.Token]int{}
	for range draws {
		if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
			t.Fatal(err)
		}
		count[row.Token()]++
	}
	if row.Draw() != uint64(draws) {
		t.Errorf("draw counter %d", row.Draw())
	}
	chi, dof, seen := 0.0, -1, 0
	want, got := 0.0, 0 // the bin being filled
	for i, tk := range tok {
		seen += count[tk]
		want += float64(prob[i]) * float64(draws)
		got += count[tk]
		if want >= 8 {
			chi += (float64(got) - want) * (float64(got) - want) / want
			dof++
			want, got = 0, 0
		}
	}
	// What is left over is less than a bin; 30 would be far beyond chance.
	if got > 30 {
		t.Errorf("%d draws of the least likely tokens, want %.1f", got, want)
	}
	if seen != draws {
		t.Errorf("%d draws outside the candidates", draws-seen)
	}
	// Five standard deviations of a chi-square with dof degrees.
	if limit := float64(dof) + 5*math.Sqrt(2*float64(max(dof, 1))); chi > limit {
		t.Errorf("chi-square %.1f over %d degrees, limit %.1f", chi, dof, limit)
	}
}

func TestDrawsFollowTheDistribution(t *testing.T) {
	const vocab = 700
	s := newSampler(t, vocab, 1)
	rng := rand.New(rand.NewPCG(7, 7))
	rows := rowsOf(t, randomLogits(rng, vocab, false))
	for name, set := range map[string]func(*llama.SampleParams){
		"plain": func(p *llama.SampleParams) {},
		"topk":  func(p *llama.SampleParams) { p.TopK = 20 },
		"topp":  func(p *llama.SampleParams) { p.TopP = 0.9 },
		"minp":  func(p *llama.SampleParams) { p.MinP = 0.02; p.Temperature = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			p := llama.NewSampleParams()
			p.Seed = 99
			set(&p)
			drawsFollow(t, s, rows, newRow(t, vocab, p), vocab, 20000)
		})
	}
}

// Top-p alone draws without the list of candidates, in several ways: for every
// kind of row, with ties, entries that are no numbers, and edits, it draws from
// the list that Distribution makes.
func TestTopPDrawsFollowTheDistribution(t *testing.T) {
	const vocab, draws = 3000, 2500
	for _, s := range newSamplers(t, vocab) {
		for _, kind := range []string{"peaked", "mixed", "noise", "flat"} {
			for seed, temp := range []float32{0.7, 1, 1.5} {
				for _, topP := range []float32{0.1, 0.5, 0.95, 0.999} {
					for _, odd := range []bool{false, true} {
						rng := rand.New(rand.NewPCG(uint64(seed), 8))
						l := topPLogits(rng, vocab, kind)
						p := llama.NewSampleParams()
						p.Seed, p.Temperature, p.TopP = uint64(seed), temp, topP
						if odd {
							for i := range l {
								l[i] = float32(math.Round(float64(l[i])*2) / 2) // many ties
							}
							for range 300 {
								l[rng.IntN(vocab)] = float32(math.Inf(-1))
								l[rng.IntN(vocab)] = float32(math.NaN())
							}
							for i := range 128 {
								l[256+i] = float32(math.Inf(-1)) // a whole block
							}
							l[5], l[9], l[11] = 3, -2, 1
							p.Bias = map[llama.Token]float32{5: 2, 9: -1}
							p.RepeatPenalty, p.PresencePenalty = 1.2, 0.3
						}
						row := newRow(t, vocab, p)
						for _, tok := range []llama.Token{5, 11, 12} {
							if err := row.Accept(tok); err != nil {
								t.Fatal(err)
							}
						}
						name := fmt.Sprintf("%s/%s/temp%g/p%g/odd=%v", kernels[s.SIMD()], kind, temp, topP, odd)
						t.Run(name, func(t *testing.T) { drawsFollow(t, s, rowsOf(t, l), row, vocab, draws) })
					}
				}
			}
		}
	}
}

func TestGreedyIsExact(t *testing.T) {
	for _, s := range newSamplers(t, 3001) {
		p := llama.NewSampleParams()
		p.Temperature = 0
		row := newRow(t, 3001, p)
		for seed := range 300 {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			l := randomLogits(rng, 3001, true)
			for i := range l {
				l[i] = float32(math.Round(float64(l[i]))) // many ties
			}
			l[rng.IntN(len(l))] = float32(math.NaN())
			rows := rowsOf(t, l)
			if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
				t.Fatal(err)
			}
			if want := llama.Argmax(l); row.Token() != want {
				t.Fatalf("seed %d: token %d (%g), want %d (%g)", seed, row.Token(), l[row.Token()], want, l[want])
			}
		}
	}
}

func TestSeedAndDrawDecide(t *testing.T) {
	const vocab = 2000
	s := newSampler(t, vocab, 1)
	rng := rand.New(rand.NewPCG(3, 3))
	rows := rowsOf(t, randomLogits(rng, vocab, true))
	p := llama.NewSampleParams()
	run := func(row *llama.Row, n int) []llama.Token {
		var out []llama.Token
		for range n {
			if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
				t.Fatal(err)
			}
			out = append(out, row.Token())
		}
		return out
	}
	for _, p.TopP = range []float32{1, 0.8, 0.1} {
		p.Seed = 42
		all := run(newRow(t, vocab, p), 40)
		resumed := newRow(t, vocab, p)
		resumed.SetDraw(25)
		if got := run(resumed, 15); !slices.Equal(got, all[25:]) {
			t.Errorf("resumed at 25: %v, want %v", got, all[25:])
		}
		p.Seed = 43
		if got := run(newRow(t, vocab, p), 40); slices.Equal(got, all) {
			t.Error("another seed, the same draws")
		}
	}
	if all := newSamplers(t, vocab); all[0].SIMD() != 0 || all[len(all)-1].SIMD() != s.SIMD() {
		t.Errorf("kernels from %d to %d, the sampler's own is %d", all[0].SIMD(), all[len(all)-1].SIMD(), s.SIMD())
	}
}

func TestLogprobs(t *testing.T) {
	const vocab = 1500
	s := newSampler(t, vocab, 1)
	rng := rand.New(rand.NewPCG(5, 5))
	l := randomLogits(rng, vocab, false)
	rows := rowsOf(t, l)
	sum := 0.0
	for _, x := range l {
		sum += math.Exp(float64(x))
	}
	p := llama.NewSampleParams()
	p.Logprobs, p.TopK, p.RepeatPenalty = 5, 3, 1.5
	row := newRow(t, vocab, p)
	top := llama.Argmax(l)
	if err := row.Accept(top); err != nil { // a penalty must not show in the logprobs
		t.Fatal(err)
	}
	if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
		t.Fatal(err)
	}
	want := math.Log(math.Exp(float64(l[row.Token()])) / sum)
	if d := math.Abs(float64(row.Logprob()) - want); d > 1e-4 {
		t.Errorf("logprob %g, want %g", row.Logprob(), want)
	}
	tok, lp := row.Top()
	if len(tok) != 5 || tok[0] != top || !slices.IsSortedFunc(lp, func(a, b float32) int { return int(math.Copysign(1, float64(b-a))) }) {
		t.Errorf("top %v %v", tok, lp)
	}
	for i, tk := range tok {
		if d := math.Abs(float64(lp[i]) - math.Log(math.Exp(float64(l[tk]))/sum)); d > 1e-4 {
			t.Errorf("top %d off by %g", i, d)
		}
	}
	p.Logprobs = -1
	row = newRow(t, vocab, p)
	if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil || !math.IsNaN(float64(row.Logprob())) {
		t.Errorf("logprob without asking: %g, %v", row.Logprob(), err)
	}
}

// Rows in parallel give what rows alone give, also when several requests
// sample one row with different edits.
func TestRowsInParallel(t *testing.T) {
	const vocab = 4000
	one, many := newSampler(t, vocab, 1), newSampler(t, vocab, 4)
	rng := rand.New(rand.NewPCG(11, 11))
	var logits [][]float32
	for range 16 {
		logits = append(logits, randomLogits(rng, vocab, false))
	}
	rows := rowsOf(t, logits...)
	make40 := func() []llama.Job {
		var jobs []llama.Job
		for i := range 40 {
			p := llama.NewSampleParams()
			p.Seed, p.TopK, p.RepeatPenalty = uint64(i), 50, 1.3
			row := newRow(t, vocab, p)
			for k := range i {
				if err := row.Accept(llama.Argmax(logits[k%16])); err != nil {
					t.Fatal(err)
				}
			}
			jobs = append(jobs, llama.Job{Row: row, Index: i % 16})
		}
		return jobs
	}
	a, b := make40(), make40()
	for range 200 {
		if err := one.Sample(rows, a); err != nil {
			t.Fatal(err)
		}
		if err := many.Sample(rows, b); err != nil {
			t.Fatal(err)
		}
		for i := range a {
			if a[i].Row.Token() != b[i].Row.Token() {
				t.Fatalf("job %d: %d alone, %d in parallel", i, a[i].Row.Token(), b[i].Row.Token())
			}
		}
	}
}

func TestSampleGuards(t *testing.T) {
	s := newSampler(t, 100, 1)
	rng := rand.New(rand.NewPCG(1, 1))
	rows := rowsOf(t, randomLogits(rng, 100, true))
	good := newRow(t, 100, llama.NewSampleParams())
	closed := newRow(t, 100, llama.NewSampleParams())
	closed.Close()
	closed.Close()
	for name, tc := range map[string]struct {
		j    llama.Job
		want error
	}{
		"index":    {llama.Job{Row: good, Index: 1}, llama.ErrRange},
		"negative": {llama.Job{Row: good, Index: -1}, llama.ErrRange},
		"nil":      {llama.Job{}, llama.ErrClosed},
		"closed":   {llama.Job{Row: closed}, llama.ErrClosed},
		"vocab":    {llama.Job{Row: newRow(t, 99, llama.NewSampleParams())}, llama.ErrRange},
	} {
		if err := s.Sample(rows, []llama.Job{tc.j}); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Sample(rows, make([]llama.Job, 65)); !errors.Is(err, llama.ErrRange) {
		t.Errorf("too many jobs: %v", err)
	}
	if err := good.Accept(100); !errors.Is(err, llama.ErrRange) {
		t.Errorf("accept outside the vocabulary: %v", err)
	}
	dead := make([]float32, 100)
	for i := range dead {
		dead[i] = float32(math.Inf(-1))
	}
	dead[3] = float32(math.NaN())
	both := rowsOf(t, dead, randomLogits(rng, 100, true))
	other := newRow(t, 100, llama.NewSampleParams())
	err := s.Sample(both, []llama.Job{{Row: good}, {Row: other, Index: 1}})
	if !errors.Is(err, llama.ErrNoCandidate) || !errors.Is(good.Err(), llama.ErrNoCandidate) || other.Err() != nil || other.Token() < 0 {
		t.Errorf("dead row beside a live one: %v, %v, %v", err, good.Err(), other.Err())
	}
}

func TestParamsAreValidated(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, set := range map[string]func(*llama.SampleParams){
		"Temperature":      func(p *llama.SampleParams) { p.Temperature = nan },
		"TopK":             func(p *llama.SampleParams) { p.TopK = -1 },
		"TopP":             func(p *llama.SampleParams) { p.TopP = nan },
		"MinP":             func(p *llama.SampleParams) { p.MinP = 1.5 },
		"RepeatPenalty":    func(p *llama.SampleParams) { p.RepeatPenalty = 0 },
		"FrequencyPenalty": func(p *llama.SampleParams) { p.FrequencyPenalty = inf },
		"PresencePenalty":  func(p *llama.SampleParams) { p.PresencePenalty = nan },
		"Logprobs":         func(p *llama.SampleParams) { p.Logprobs = 5000 },
		"Bias":             func(p *llama.SampleParams) { p.Bias = map[llama.Token]float32{-1: 1} },
		"Bias value":       func(p *llama.SampleParams) { p.Bias = map[llama.Token]float32{1: inf} },
		"Ban":              func(p *llama.SampleParams) { p.Ban = []llama.Token{10} },
		"Mirostat":         func(p *llama.SampleParams) { p.Chain = &llama.ChainParams{Mirostat: 3} },
		"MirostatTau":      func(p *llama.SampleParams) { p.Chain = &llama.ChainParams{Mirostat: 2} },
		"DRYBase":          func(p *llama.SampleParams) { p.Chain = &llama.ChainParams{DRYMultiplier: 1} },
	} {
		p := llama.NewSampleParams()
		set(&p)
		if err := p.Validate(10); !errors.Is(err, llama.ErrRange) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var zero llama.SampleParams
	if err := zero.Validate(10); !errors.Is(err, llama.ErrRange) {
		t.Errorf("forgotten settings: %v", err)
	}
}

func BenchmarkSample(b *testing.B) {
	const vocab = 151936
	rng := rand.New(rand.NewPCG(1, 2))
	logits := randomLogits(rng, vocab, false)
	for _, bc := range []struct {
		name string
		set  func(*llama.SampleParams)
	}{
		{"greedy", func(p *llama.SampleParams) { p.Temperature = 0 }},
		{"topk40-topp95", func(p *llama.SampleParams) { p.TopK, p.TopP, p.Temperature = 40, 0.95, 0.8 }},
		{"topk40-minp", func(p *llama.SampleParams) { p.TopK, p.TopP, p.MinP, p.RepeatPenalty = 40, 0.95, 0.05, 1.1 }},
		{"minp", func(p *llama.SampleParams) { p.MinP = 0.05 }},
		{"topp", func(p *llama.SampleParams) { p.TopP = 0.95 }},
		{"plain", func(p *llama.SampleParams) {}},
		{"greedy-logprob", func(p *llama.SampleParams) { p.Temperature, p.Logprobs = 0, 0 }},
		{"topk40-logprobs5", func(p *llama.SampleParams) { p.TopK, p.Logprobs = 40, 5 }},
		{"topk40-logprobs20", func(p *llama.SampleParams) { p.TopK, p.Logprobs = 40, 20 }},
		{"topk40-logprobs20-penalties", func(p *llama.SampleParams) { p.TopK, p.Logprobs, p.RepeatPenalty = 40, 20, 1.1 }},
		{"topp-logprobs5", func(p *llama.SampleParams) { p.TopP, p.Logprobs = 0.95, 5 }},
	} {
		for _, s := range newSamplers(b, vocab) {
			b.Run(bc.name+"/"+kernels[s.SIMD()], func(b *testing.B) {
				p := llama.NewSampleParams()
				bc.set(&p)
				row := newRow(b, vocab, p)
				for i := range 64 {
					if err := row.Accept(llama.Token(i * 100)); err != nil {
						b.Fatal(err)
					}
				}
				rows := rowsOf(b, logits)
				jobs := []llama.Job{{Row: row}}
				b.ReportAllocs()
				for b.Loop() {
					if err := s.Sample(rows, jobs); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// Top-p alone has no few candidates to look at: rows from one certain token to
// a vocabulary of near equals, 32 different ones a step as from memory and one as in
// the cache.
func BenchmarkSampleTopP(b *testing.B) {
	const vocab, n = 151936, 32
	for _, kind := range []string{"peaked", "mixed", "noise", "wide", "flat"} {
		rng := rand.New(rand.NewPCG(1, 2))
		var logits [][]float32
		for range n {
			logits = append(logits, topPLogits(rng, vocab, kind))
		}
		for _, set := range [][2]float32{{1, 0.95}, {0.7, 0.95}, {1.5, 0.95}, {1, 0.5}, {1, 0.1}, {1.5, 0.1}, {1, 0.05}} {
			for _, rows := range []int{1, n} {
				b.Run(fmt.Sprintf("%s/temp%g-p%g/rows%d", kind, set[0], set[1], rows), func(b *testing.B) {
					p := llama.NewSampleParams()
					p.Temperature, p.TopP = set[0], set[1]
					benchmarkRows(b, logits, rows, 1, p)
				})
			}
		}
	}
}

// benchmarkRows samples the first so many rows of logits in each step.
func benchmarkRows(b *testing.B, logits [][]float32, rows, threads int, p llama.SampleParams) {
	vocab := len(logits[0])
	s := newSampler(b, vocab, threads)
	var jobs []llama.Job
	for i := range rows {
		jobs = append(jobs, llama.Job{Row: newRow(b, vocab, p), Index: i})
	}
	in := rowsOf(b, logits...)
	for b.Loop() {
		if err := s.Sample(in, jobs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
}

// Thirty-two different rows a step: what the pool gains, and what each row
// costs, by its settings, when it has to come from memory instead of the cache.
func BenchmarkSampleRows(b *testing.B) {
	const vocab, n = 151936, 32
	rng := rand.New(rand.NewPCG(1, 2))
	var logits [][]float32
	for range n {
		logits = append(logits, randomLogits(rng, vocab, false))
	}
	p := llama.NewSampleParams()
	p.TopK, p.TopP, p.Temperature = 40, 0.95, 0.8
	for _, threads := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("threads%d", threads), func(b *testing.B) { benchmarkRows(b, logits, n, threads, p) })
	}
	for _, bc := range []struct {
		name     string
		temp     float32
		topK     int
		topP     float32
		logprobs int
	}{
		{"greedy", 0, 0, 1, -1},
		{"greedy-logprob", 0, 0, 1, 0},
		{"topk40-logprobs5", 0.8, 40, 0.95, 5},
		{"plain", 1, 0, 1, -1},
		{"topp", 1, 0, 0.95, -1},
		{"topp-logprobs5", 1, 0, 0.95, 5},
	} {
		b.Run(bc.name, func(b *testing.B) {
			p := llama.NewSampleParams()
			p.Temperature, p.TopK, p.TopP, p.Logprobs = bc.temp, bc.topK, bc.topP, bc.logprobs
			benchmarkRows(b, logits, n, 1, p)
		})
	}
}

func BenchmarkAccept(b *testing.B) {
	p := llama.NewSampleParams()
	p.RepeatPenalty = 1.1
	row := newRow(b, 1000, p)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		if err := row.Accept(llama.Token(i * 7 % 1000)); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// The other way to use several cores: goroutines, each crossing with its own
// share of the rows.
func BenchmarkSampleRowsGoroutines(b *testing.B) {
	const vocab, n, procs = 151936, 32, 2
	rng := rand.New(rand.NewPCG(1, 2))
	var logits [][]float32
	for range n {
		logits = append(logits, randomLogits(rng, vocab, false))
	}
	rows := rowsOf(b, logits...)
	var samplers [procs]*llama.Sampler
	var jobs [procs][]llama.Job
	for w := range procs {
		samplers[w] = newSampler(b, vocab, 1)
		for i := w; i < n; i += procs {
			p := llama.NewSampleParams()
			p.TopK, p.TopP, p.Temperature = 40, 0.95, 0.8
			jobs[w] = append(jobs[w], llama.Job{Row: newRow(b, vocab, p), Index: i})
		}
	}
	for b.Loop() {
		var wg sync.WaitGroup
		for w := range procs {
			wg.Go(func() {
				if err := samplers[w].Sample(rows, jobs[w]); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/row")
}
