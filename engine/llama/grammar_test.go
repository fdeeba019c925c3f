package llama_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

func newGrammar(t testing.TB, p llama.GrammarParams) *llama.Grammar {
	t.Helper()
	g, err := dense(t).NewGrammar(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func byteTok(b byte) llama.Token { return toygguf.TokenByte0 + llama.Token(b) }

func allows(t testing.TB, g *llama.Grammar, tok llama.Token) bool {
	t.Helper()
	ok, err := g.Allows(tok)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestGrammarWalk(t *testing.T) {
	g := newGrammar(t, llama.GrammarParams{GBNF: `root ::= "{" [a-c]+ "}"`})
	if !allows(t, g, byteTok('{')) || allows(t, g, byteTok('a')) || allows(t, g, toygguf.TokenEOS) {
		t.Fatal("the start allows the wrong tokens")
	}
	if err := g.Accept(byteTok('a')); !errors.Is(err, llama.ErrRejected) {
		t.Errorf("accepting what does not fit: %v", err)
	}
	if err := g.Accept(byteTok('{')); err != nil {
		t.Fatal(err)
	}
	fork, err := g.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer fork.Close()
	for _, b := range []byte("abc}") {
		if err := g.Accept(byteTok(b)); err != nil {
			t.Fatal(err)
		}
	}
	if !allows(t, g, toygguf.TokenEOS) || allows(t, g, byteTok('a')) {
		t.Error("the end allows the wrong tokens")
	}
	if allows(t, fork, toygguf.TokenEOS) || !allows(t, fork, byteTok('b')) {
		t.Error("the clone moved with the original")
	}
	ok := make([]bool, 3)
	if err := fork.AllowsEach([]llama.Token{byteTok('x'), byteTok('c'), byteTok('}')}, ok); err != nil || ok[0] || !ok[1] || ok[2] {
		t.Errorf("AllowsEach %v, %v", ok, err)
	}
}

func TestLazyGrammar(t *testing.T) {
	g := newGrammar(t, llama.GrammarParams{GBNF: `root ::= "{}"`, Lazy: true, Tokens: []llama.Token{byteTok('{')}})
	for _, b := range []byte("free text") {
		if err := g.Accept(byteTok(b)); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Accept(byteTok('{')); err != nil {
		t.Fatal(err)
	}
	if allows(t, g, byteTok('x')) || !allows(t, g, byteTok('}')) {
		t.Error("the trigger did not bind the grammar")
	}
	p := newGrammar(t, llama.GrammarParams{GBNF: `root ::= "<x>" "1"`, Lazy: true, Patterns: []string{`[\s\S]*?(<x>)[\s\S]*`}})
	for _, b := range []byte("so <x>") {
		if err := p.Accept(byteTok(b)); err != nil {
			t.Fatal(err)
		}
	}
	if allows(t, p, byteTok('2')) || !allows(t, p, byteTok('1')) {
		t.Error("the pattern did not bind the grammar")
	}
}

func TestGrammarErrors(t *testing.T) {
	m := dense(t)
	for name, p := range map[string]llama.GrammarParams{
		"empty":          {GBNF: "  "},
		"syntax":         {GBNF: `root ::= "a`},
		"no root":        {GBNF: `start ::= "a"`},
		"undefined":      {GBNF: `root ::= missing`},
		"left recursion": {GBNF: `root ::= root "a" | "b"`},
		"NUL":            {GBNF: "root ::= \"a\x00\""},
		"deep":           {GBNF: "root ::= " + strings.Repeat("(", 100000) + `"a"` + strings.Repeat(")", 100000)},
		"huge":           {GBNF: `root ::= "` + strings.Repeat("a", 2<<20) + `"`},
		"repetition":     {GBNF: `root ::= "a"{100000000}`},
		"backwards":      {GBNF: `root ::= "x"{22,5}`}, // llama.cpp's parser never returns from this one
		"unclosed":       {GBNF: `root ::= "x"{2`},
		"bad pattern":    {GBNF: `root ::= "a"`, Lazy: true, Patterns: []string{"("}},
	} {
		g, err := m.NewGrammar(p)
		if err == nil {
			g.Close()
			t.Errorf("%s: accepted", name)
			continue
		}
		if !errors.Is(err, llama.ErrGrammar) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.NewGrammar(llama.GrammarParams{GBNF: `root ::= "a"`, Tokens: []llama.Token{9999}}); !errors.Is(err, llama.ErrRange) {
		t.Errorf("trigger outside the vocabulary: %v", err)
	}
	for _, text := range []string{`root ::= "x"{2} "y"{0,} "z"{1,3}`, `root ::= "{9,1}" [{9,1}]`, "root ::= \"a\" # {9,1} ((("} {
		if ok, err := m.NewGrammar(llama.GrammarParams{GBNF: text}); err != nil {
			t.Errorf("%s: %v", text, err)
		} else {
			ok.Close()
		}
	}
	g := newGrammar(t, llama.GrammarParams{GBNF: `root ::= "a"`})
	if _, err := g.Allows(-1); !errors.Is(err, llama.ErrRange) {
		t.Errorf("token -1: %v", err)
	}
	if err := g.Accept(4096); !errors.Is(err, llama.ErrRange) {
		t.Errorf("token 4096: %v", err)
	}
	g.Close()
	g.Close()
	if _, err := g.Allows(1); !errors.Is(err, llama.ErrClosed) {
		t.Errorf("closed grammar: %v", err)
	}
}

// llama.cpp's check allows a token here that its accept throws over, and its
// next step would abort: the grammar must be dead afterwards, and nothing else.
func TestGrammarDiesAlone(t *testing.T) {
	g := newGrammar(t, llama.GrammarParams{GBNF: `root ::= " " <[300]>`})
	if !allows(t, g, 300) {
		t.Skip("llama.cpp's check and accept agree now")
	}
	if err := g.Accept(300); !errors.Is(err, llama.ErrGrammar) {
		t.Fatalf("accept: %v", err)
	}
	if _, err := g.Allows(300); !errors.Is(err, llama.ErrGrammar) {
		t.Errorf("check afterwards: %v", err)
	}
	if err := g.Accept(300); !errors.Is(err, llama.ErrGrammar) {
		t.Errorf("accept afterwards: %v", err)
	}
	if _, err := g.Clone(); !errors.Is(err, llama.ErrGrammar) {
		t.Errorf("clone afterwards: %v", err)
	}
}

// Resample draws as if the grammar had masked the vocabulary first.
func TestResampleEqualsMaskFirst(t *testing.T) {
	m := dense(t)
	vocab := m.Info().Vocab
	s := newSampler(t, vocab, 1)
	g := newGrammar(t, llama.GrammarParams{GBNF: `root ::= [a-mX-Z0-9] .*`})
	masked := func(l []float32) []float32 {
		out := make([]float32, vocab)
		all, ok := make([]llama.Token, vocab), make([]bool, vocab)
		for i := range all {
			all[i] = llama.Token(i)
		}
		if err := g.AllowsEach(all, ok); err != nil {
			t.Fatal(err)
		}
		for i := range out {
			out[i] = float32(math.Inf(-1))
			if ok[i] {
				out[i] = l[i]
			}
		}
		return out
	}
	for name, set := range map[string]func(*llama.SampleParams){
		"greedy":  func(p *llama.SampleParams) { p.Temperature = 0 },
		"top-k":   func(p *llama.SampleParams) { p.TopK = 3 },
		"min-p":   func(p *llama.SampleParams) { p.MinP = 0.2 },
		"top-p":   func(p *llama.SampleParams) { p.TopP = 0.8 },
		"penalty": func(p *llama.SampleParams) { p.TopK, p.PresencePenalty = 2, 3 },
		"typical": func(p *llama.SampleParams) { p.TopK, p.Chain = 3, &llama.ChainParams{Typical: 0.9} },
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 9))
			l := randomLogits(rng, vocab, false)
			for i := range 40 { // the likeliest tokens are all forbidden
				l[toygguf.TokenWord0+i] += 30
			}
			p := llama.NewSampleParams()
			p.Seed = 5
			set(&p)
			row, err := m.NewRow(p)
			if err != nil {
				t.Fatal(err)
			}
			defer row.Close()
			for i := range 5 {
				if err := row.Accept(byteTok(byte('a' + i))); err != nil {
					t.Fatal(err)
				}
			}
			rows, want := rowsOf(t, l), rowsOf(t, masked(l))
			tok, prob, err := s.Distribution(want, llama.Job{Row: row}, vocab)
			if err != nil {
				t.Fatal(err)
			}
			expect := map[llama.Token]float64{}
			for i, tk := range tok {
				expect[tk] = float64(prob[i])
			}
			const draws = 4000
			count := map[llama.Token]int{}
			job := llama.Job{Row: row}
			for i := range draws {
				if err := s.Sample(rows, []llama.Job{job}); err != nil {
					t.Fatal(err)
				}
				if allows(t, g, row.Token()) {
					t.Fatalf("%d was to be rejected", row.Token())
				}
				if err := s.Resample(rows, job, g); err != nil {
					t.Fatal(err)
				}
				if row.Draw() != uint64(i+1) {
					t.Fatalf("draw counter %d after %d tokens", row.Draw(), i+1)
				}
				count[row.Token()]++
			}
			for tk, n := range count {
				if expect[tk] == 0 && n > 3 {
					t.Errorf("token %d drawn %d times, never expected", tk, n)
				}
			}
			for tk, pr := range expect {
				sd := math.Sqrt(pr*(1-pr)*draws) + 1
				if d := math.Abs(float64(count[tk]) - pr*draws); d > 5*sd {
					t.Errorf("token %d drawn %d times of %.1f expected", tk, count[tk], pr*draws)
				}
			}
		})
	}
}

func TestResampleFindsNothing(t *testing.T) {
	m := dense(t)
	vocab := m.Info().Vocab
	s := newSampler(t, vocab, 1)
	p := llama.NewSampleParams()
	p.Ban = []llama.Token{byteTok('a')}
	row := newRow(t, vocab, p)
	g := newGrammar(t, llama.GrammarParams{GBNF: `root ::= "a"`})
	rows := rowsOf(t, randomLogits(rand.New(rand.NewPCG(2, 2)), vocab, true))
	if err := s.Sample(rows, []llama.Job{{Row: row}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Resample(rows, llama.Job{Row: row}, g); !errors.Is(err, llama.ErrNoCandidate) {
		t.Errorf("the only token is banned: %v", err)
	}
}

func BenchmarkGrammarAllows(b *testing.B) {
	g := newGrammar(b, llama.GrammarParams{GBNF: `root ::= "\"" [^"\\]* "\""`})
	if err := g.Accept(byteTok('"')); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := g.Allows(toygguf.TokenWord0 + 40); err != nil {
			b.Fatal(err)
		}
	}
}
