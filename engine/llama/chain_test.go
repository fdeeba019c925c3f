package llama_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"hearth/engine/llama"
)

// chainRow makes a row of the toy model with some chain setting.
func chainRow(t *testing.T, set func(*llama.SampleParams)) *llama.Row {
	t.Helper()
	p := llama.NewSampleParams()
	p.Seed, p.Chain = 3, &llama.ChainParams{}
	set(&p)
	row, err := dense(t).NewRow(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { row.Close() })
	return row
}

// With nothing special on, a chain row is a kernel row.
func TestChainEqualsKernel(t *testing.T) {
	vocab := dense(t).Info().Vocab
	s := newSampler(t, vocab, 1)
	for seed := range 60 {
		rng := rand.New(rand.NewPCG(uint64(seed), 4))
		rows := rowsOf(t, randomLogits(rng, vocab, seed%2 == 0))
		p := randomParams(rng, vocab)
		kernel := newRow(t, vocab, p)
		p.Chain = &llama.ChainParams{}
		chain, err := dense(t).NewRow(p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			kernel.Accept(llama.Token(i))
			chain.Accept(llama.Token(i))
		}
		gt, gp, err := s.Distribution(rows, llama.Job{Row: kernel}, vocab)
		if err != nil {
			t.Fatal(err)
		}
		wt, wp, err := s.Distribution(rows, llama.Job{Row: chain}, vocab)
		if err != nil {
			t.Fatal(err)
		}
		chain.Close()
		if err := sameDistribution(gt, gp, wt, wp, 2e-5); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestChainSamplers(t *testing.T) {
	vocab := dense(t).Info().Vocab
	s := newSampler(t, vocab, 1)
	l := make([]float32, vocab) // token 10 at 3, 11 at 2, 12 at 1, the rest at -20
	for i := range l {
		l[i] = -20
	}
	l[10], l[11], l[12] = 3, 2, 1
	rows := rowsOf(t, l)
	dist := func(row *llama.Row) map[llama.Token]float32 {
		tok, prob, err := s.Distribution(rows, llama.Job{Row: row}, vocab)
		if err != nil {
			t.Fatal(err)
		}
		out := map[llama.Token]float32{}
		for i := range tok {
			if prob[i] > 1e-6 {
				out[tok[i]] = prob[i]
			}
		}
		return out
	}
	xtc := dist(chainRow(t, func(p *llama.SampleParams) { p.Chain.XTCProbability, p.Chain.XTCThreshold = 1, 0.2 }))
	if xtc[10] != 0 || xtc[11] == 0 { // both are over 0.2: all but the least of them go
		t.Errorf("XTC left %v", xtc)
	}
	sigma := dist(chainRow(t, func(p *llama.SampleParams) { p.Chain.TopNSigma = 0.5 }))
	if len(sigma) != 1 || sigma[10] != 1 {
		t.Errorf("top-n-sigma left %v", sigma)
	}
	typical := dist(chainRow(t, func(p *llama.SampleParams) { p.Chain.Typical = 0.3 }))
	if len(typical) == 0 || len(typical) > 2 {
		t.Errorf("typical left %v", typical)
	}
	for name, filter := range map[string]func(*llama.SampleParams){
		"top-p":   func(p *llama.SampleParams) { p.TopP = 0.1 },
		"min-p":   func(p *llama.SampleParams) { p.MinP = 1 },
		"typical": func(p *llama.SampleParams) { p.Chain.Typical = 0.1 },
	} {
		one := dist(chainRow(t, filter))
		two := dist(chainRow(t, func(p *llama.SampleParams) { filter(p); p.Chain.MinKeep = 2 }))
		if len(one) != 1 || len(two) != 2 {
			t.Errorf("%s left %v, and %v where two are to be kept", name, one, two)
		}
	}
	flat := dist(chainRow(t, func(p *llama.SampleParams) { p.Chain.DynaRange = 0.9 }))
	plain := dist(chainRow(t, func(p *llama.SampleParams) {}))
	if math.Abs(float64(flat[10]-plain[10])) < 1e-3 {
		t.Errorf("dynamic temperature changes nothing: %v", flat)
	}
	dry := chainRow(t, func(p *llama.SampleParams) {
		p.Chain.DRYMultiplier, p.Chain.DRYBase, p.Chain.DRYAllowedLength, p.Chain.DRYLastN = 5, 2, 1, -1
		p.Chain.DRYBreakers = []string{"\n"}
	})
	before := dist(dry)
	for _, tok := range []llama.Token{300, 301, 302, 10, 300, 301, 302} { // 10 would repeat
		if err := dry.Accept(tok); err != nil {
			t.Fatal(err)
		}
	}
	if after := dist(dry); after[10] >= before[10]/2 {
		t.Errorf("DRY: %v before, %v after the repeat", before, after)
	}
	if _, _, err := s.Distribution(rows, llama.Job{Row: chainRow(t, func(p *llama.SampleParams) {
		p.Chain.Mirostat, p.Chain.MirostatTau, p.Chain.MirostatEta = 2, 5, 0.1
	})}, vocab); err == nil {
		t.Error("mirostat has no distribution to show")
	}
	for v := 1; v <= 2; v++ {
		row := chainRow(t, func(p *llama.SampleParams) { p.Chain.Mirostat, p.Chain.MirostatTau, p.Chain.MirostatEta = v, 5, 0.1 })
		for range 50 {
			if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
				t.Fatal(err)
			}
			if tok := row.Token(); tok < 10 || tok > 12 {
				t.Fatalf("mirostat %d sampled %d", v, tok)
			}
		}
	}
}

// A chain's draws, XTC's included, are replayed from seed and counter.
func TestChainReplays(t *testing.T) {
	vocab := dense(t).Info().Vocab
	s := newSampler(t, vocab, 2)
	rows := rowsOf(t, randomLogits(rand.New(rand.NewPCG(8, 8)), vocab, true))
	set := func(p *llama.SampleParams) {
		p.MinP, p.Chain.XTCProbability, p.Chain.XTCThreshold = 0.01, 0.5, 0.02
	}
	run := func(from uint64, n int) []llama.Token {
		row := chainRow(t, set)
		row.SetDraw(from)
		var out []llama.Token
		for range n {
			if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
				t.Fatal(err)
			}
			out = append(out, row.Token())
		}
		return out
	}
	if all, rest := run(0, 60), run(40, 20); !slices.Equal(all[40:], rest) {
		t.Errorf("resumed %v, want %v", rest, all[40:])
	}
}
