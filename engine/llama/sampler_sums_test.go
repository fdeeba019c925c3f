package llama_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"hearth/engine/llama"
)

var negInf = float32(math.Inf(-1))

// oddRows are rows for sums to go wrong on: entries that are no numbers, ties,
// maxima that come late or again and again, sizes far from 1.
func oddRows(rng *rand.Rand, n int) map[string][]float32 {
	noise := func(f func(i int, x float64) float64) []float32 {
		l := make([]float32, n)
		for i := range l {
			l[i] = float32(f(i, rng.NormFloat64()))
		}
		return l
	}
	rows := map[string][]float32{
		"noise":     noise(func(_ int, x float64) float64 { return 2 * x }),
		"flat":      noise(func(_ int, x float64) float64 { return 0.1 * x }),
		"equal":     noise(func(int, float64) float64 { return -3.5 }),
		"ties":      noise(func(_ int, x float64) float64 { return math.Round(x) }),
		"rising":    noise(func(i int, x float64) float64 { return float64(i)/10 + x }),
		"falling":   noise(func(i int, x float64) float64 { return -float64(i)/10 + x }),
		"step":      noise(func(i int, x float64) float64 { return x/3 - 60*float64(1-min(1, 2*i/n)) }),
		"large":     noise(func(_ int, x float64) float64 { return 1e4 + 50*x }),
		"very low":  noise(func(_ int, x float64) float64 { return -1e30 * math.Abs(x) }),
		"last wins": noise(func(_ int, x float64) float64 { return x }),
		"masked":    noise(func(_ int, x float64) float64 { return 3 * x }),
	}
	rows["last wins"][n-1] = 40
	odd := rows["masked"]
	for i := range odd {
		switch {
		case i == n/2: // one is left in any case
		case i < 300 || rng.IntN(3) == 0: // whole blocks too
			odd[i] = negInf
		case rng.IntN(5) == 0:
			odd[i] = float32(math.NaN())
		}
	}
	return rows
}

// logSumExp is the slow way to what a row's logprobs are relative to.
func logSumExp(l []float32) float64 {
	m, sum := math.Inf(-1), 0.0
	for _, x := range l {
		if x == x {
			m = max(m, float64(x))
		}
	}
	for _, x := range l {
		if x == x {
			sum += math.Exp(float64(x) - m)
		}
	}
	return m + math.Log(sum)
}

// Logprobs are those of the slow way for every kernel and odd row, with edits
// that move the maximum and without, at sizes around those of vectors, blocks and chunks.
func TestLogprobsAreExact(t *testing.T) {
	for _, vocab := range []int{1, 7, 16, 127, 128, 129, 1000, 1024, 1041, 5003} {
		for _, s := range newSamplers(t, vocab) {
			rng := rand.New(rand.NewPCG(uint64(vocab), 3))
			for name, l := range oddRows(rng, vocab) {
				for _, set := range []string{"greedy", "edited", "topk", "top3", "topp", "chain"} {
					p := llama.NewSampleParams()
					p.Seed, p.Logprobs = uint64(vocab), 5
					top := llama.Argmax(l)
					switch set {
					case "greedy":
						p.Temperature = 0
					case "edited":
						p.Bias = map[llama.Token]float32{top: -5, llama.Token(vocab - 1): 2, llama.Token(vocab / 2): 60}
						p.RepeatPenalty, p.TopP = 1.3, 0.9
					case "topk":
						p.TopK, p.TopP = 20, 0.3
					case "top3":
						p.TopK = 3
					case "topp":
						p.TopP = 0.5
					case "chain":
						p.Chain = &llama.ChainParams{TopNSigma: 2}
					}
					t.Run(fmt.Sprintf("%d/%s/%s/%s", vocab, kernels[s.SIMD()], name, set), func(t *testing.T) {
						checkLogprobs(t, s, l, p)
					})
				}
			}
		}
	}
}

func checkLogprobs(t *testing.T, s *llama.Sampler, l []float32, p llama.SampleParams) {
	row := newRow(t, len(l), p)
	for range 3 {
		if err := row.Accept(llama.Token(len(l) / 3)); err != nil {
			t.Fatal(err)
		}
	}
	before := slices.Clone(l)
	if err := s.Sample(rowsOf(t, l), []llama.Job{{Row: row}}); err != nil {
		t.Fatal(err)
	}
	for i := range l {
		if math.Float32bits(before[i]) != math.Float32bits(l[i]) {
			t.Fatal("the row was not restored")
		}
	}
	lse := logSumExp(l)
	near := func(what string, got float32, logit float32) {
		t.Helper()
		want := float64(logit) - lse
		if d := math.Abs(float64(got) - want); !(d <= 1e-5+1e-7*math.Abs(want)) || got > 0 {
			t.Errorf("%s: logprob %g, want %g", what, got, want)
		}
	}
	near("chosen", row.Logprob(), l[row.Token()])
	var want []llama.Token
	for i, x := range l {
		if x > negInf {
			want = append(want, llama.Token(i))
		}
	}
	slices.SortStableFunc(want, func(a, b llama.Token) int {
		if l[a] == l[b] {
			return 0
		} else if l[a] > l[b] {
			return -1
		}
		return 1
	})
	tok, lp := row.Top()
	if want = want[:min(5, len(want))]; !slices.Equal(tok, want) {
		t.Fatalf("top %v, want %v", tok, want)
	}
	for i, tk := range tok {
		near(fmt.Sprintf("top %d", i), lp[i], l[tk])
	}
}

// likelierMass tells for each token which part of the row's mass the likelier ones hold.
func likelierMass(l []float32) []float64 {
	ids := make([]int, len(l))
	for i := range ids {
		ids[i] = i
	}
	number := func(i int) float64 {
		if x := float64(l[i]); x == x {
			return x
		}
		return math.Inf(-1)
	}
	slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(number(b), number(a)) })
	lse, above, part := logSumExp(l), 0.0, make([]float64, len(l))
	for _, i := range ids {
		part[i] = above
		above += math.Exp(number(i) - lse)
	}
	return part
}

// Under top-p alone every token is of the nucleus, and no matter in which of its
// ways the sampler finds that out, the same: with masses or without, of exact or
// of rough terms, of all the row or of the chunks that decide.
func TestTopPTokensAreOfTheNucleus(t *testing.T) {
	for _, vocab := range []int{129, 1024, 3000, 20011} {
		rng := rand.New(rand.NewPCG(uint64(vocab), 5))
		rows := oddRows(rng, vocab)
		for _, kind := range []string{"peaked", "mixed", "wide"} {
			rows[kind] = topPLogits(rng, vocab, kind)
		}
		samplers := newSamplers(t, vocab)
		for name, l := range rows {
			part, in := likelierMass(l), rowsOf(t, l)
			for _, topP := range []float32{1e-6, 0.05, 0.5, 0.89, 0.95, 0.9999} {
				t.Run(fmt.Sprintf("%d/%s/p%g", vocab, name, topP), func(t *testing.T) {
					for _, temp := range []float32{0.7, 1, 2} {
						p := llama.NewSampleParams()
						p.Seed, p.TopP, p.Temperature = uint64(vocab), topP, temp
						sameTokens(t, samplers, in, vocab, p, func(tok llama.Token) error {
							if !(part[tok] <= float64(topP)+1e-6) {
								return fmt.Errorf("the likelier ones hold %g", part[tok])
							}
							return nil
						})
					}
				})
			}
		}
	}
}

// sameTokens draws by every kernel, with logprobs and without.
func sameTokens(t *testing.T, samplers []*llama.Sampler, rows llama.Rows, vocab int, p llama.SampleParams, check func(llama.Token) error) {
	t.Helper()
	const draws = 8
	var want []llama.Token
	for _, s := range samplers {
		for _, p.Logprobs = range []int{-1, 0} {
			row := newRow(t, vocab, p)
			for i := range draws {
				if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
					t.Fatal(err)
				}
				tok := row.Token()
				if len(want) < draws {
					want = append(want, tok)
				}
				if err := check(tok); err != nil || tok != want[i] {
					t.Fatalf("%s, temperature %g, logprobs %d: draw %d is token %d, at first it was %d; %v",
						kernels[s.SIMD()], p.Temperature, p.Logprobs, i, tok, want[i], err)
				}
			}
		}
	}
}

// The same seeds give the tokens they gave in December 2026, by every kernel: a
// request that another process continues goes on with the same text.
func TestDrawsStayTheSame(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the last bits of the rows, and so the tokens, differ where Go fuses multiplications")
	}
	const vocab = 20011
	for _, s := range newSamplers(t, vocab) {
		got := map[string]uint64{}
		for _, kind := range []string{"peaked", "mixed", "noise", "flat"} {
			rows := rowsOf(t, topPLogits(rand.New(rand.NewPCG(4, 4)), vocab, kind))
			sum := uint64(14695981039346656037) // FNV-1a
			for _, topP := range []float32{1, 0.95, 0.5, 0.1, 0.05} {
				for _, temp := range []float32{0.7, 1.5} {
					p := llama.NewSampleParams()
					p.Seed, p.TopP, p.Temperature = 5, topP, temp
					row := newRow(t, vocab, p)
					for range 100 {
						if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
							t.Fatal(err)
						}
						sum = (sum ^ uint64(row.Token())) * 1099511628211
					}
				}
			}
			got[kind] = sum
		}
		want := map[string]uint64{
			"peaked": 0xe4eca6fd6086c9d5, "mixed": 0x4456c2d69a782466,
			"noise": 0x52c1c69b91aea67c, "flat": 0xd14176bc30ad2ed5,
		}
		for kind := range got {
			if got[kind] != want[kind] {
				t.Errorf("%s, %s rows: other tokens (%#x)", kernels[s.SIMD()], kind, got[kind])
			}
		}
	}
}
