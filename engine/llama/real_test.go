package llama_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hearth/engine/llama"
)

// realModel loads the GGUF that HEARTH_TEST_MODEL names (SmolLM2-135M-Instruct
// in the project's own runs).
func realModel(t testing.TB, p llama.ModelParams) *llama.Model {
	t.Helper()
	path := os.Getenv("HEARTH_TEST_MODEL")
	if path == "" {
		t.Skip("HEARTH_TEST_MODEL names no GGUF file")
	}
	if !strings.Contains(filepath.Base(path), "SmolLM2-135M") {
		t.Skip("the expectations are for SmolLM2-135M-Instruct")
	}
	m, err := rt.LoadModel(t.Context(), path, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// generate answers a question with settings p and returns tokens and text.
func generate(t *testing.T, m *llama.Model, question string, n int, sp llama.SampleParams, g *llama.Grammar) ([]llama.Token, string) {
	t.Helper()
	c := newContext(t, m, llama.ContextParams{Ctx: 512, Batch: 256, KVUnified: true, Threads: 2})
	b := newBatch(t, 256, 1)
	s := newSampler(t, m.Info().Vocab, 1)
	row, err := m.NewRow(sp)
	if err != nil {
		t.Fatal(err)
	}
	defer row.Close()
	in, err := m.Tokenize("<|im_start|>user\n"+question+"<|im_end|>\n<|im_start|>assistant\n", true, true)
	if err != nil {
		t.Fatal(err)
	}
	for i, tok := range in {
		add(t, b, tok, llama.Pos(i), 0, i == len(in)-1)
	}
	var out []llama.Token
	var text strings.Builder
	for len(out) < n {
		rows, err := c.Step(b)
		if err != nil {
			t.Fatal(err)
		}
		job := llama.Job{Row: row}
		if err := s.Sample(rows, []llama.Job{job}); err != nil {
			t.Fatal(err)
		}
		if g != nil && !allows(t, g, row.Token()) {
			if err := s.Resample(rows, job, g); err != nil {
				t.Fatal(err)
			}
		}
		tok := row.Token()
		if g != nil {
			if err := g.Accept(tok); err != nil {
				t.Fatal(err)
			}
		}
		if m.IsEOG(tok) {
			break
		}
		if err := row.Accept(tok); err != nil {
			t.Fatal(err)
		}
		out = append(out, tok)
		text.Write(m.Piece(tok))
		b.Reset()
		add(t, b, tok, llama.Pos(len(in)+len(out)-1), 0, true)
	}
	return out, text.String()
}

func TestRealModelAnswers(t *testing.T) {
	m := realModel(t, llama.ModelParams{})
	p := llama.NewSampleParams()
	p.Temperature = 0
	_, text := generate(t, m, "What is the capital of France?", 32, p, nil)
	if !strings.Contains(text, "Paris") {
		t.Errorf("the capital of France: %q", text)
	}
	t.Logf("%q", text)
}

func TestRealModelObeysGrammar(t *testing.T) {
	m := realModel(t, llama.ModelParams{})
	g, err := m.NewGrammar(llama.GrammarParams{GBNF: `root ::= "{\"city\": \"" [A-Z] [a-z]+ "\"}"`})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	p := llama.NewSampleParams()
	p.Temperature, p.TopK = 0.7, 40
	_, text := generate(t, m, "What is the capital of France?", 40, p, g)
	if !strings.HasPrefix(text, `{"city": "`) {
		t.Errorf("the grammar did not hold: %q", text)
	}
	t.Logf("%q", text)
}

// The same greedy prompt gives the same first 32 tokens on both plugins, for a
// prompt whose choices are clear. Near ties fall either way: the CPU plugin
// multiplies quantised weights with activations rounded to 8 bits, Vulkan does
// not, and of five prompts tried three parted between token 3 and 18. On a CPU
// with AMX a fourth did; of this one every token is 0.9 more likely there, in
// logarithms, than the next one.
func TestRealModelVulkanAgrees(t *testing.T) {
	if vulkanSkip != "" {
		t.Skip(vulkanSkip)
	}
	p := llama.NewSampleParams()
	p.Temperature = 0
	const question = "Repeat this exactly: the cat sat on the mat. the cat sat on the mat. the cat sat on the mat. the cat sat on the mat. the cat sat on the mat."
	cpu, _ := generate(t, realModel(t, llama.ModelParams{}), question, 32, p, nil)
	gpu, text := generate(t, realModel(t, llama.ModelParams{Devices: []string{"Vulkan0"}, GPULayers: -1}), question, 32, p, nil)
	for i := range cpu {
		if i >= len(gpu) || cpu[i] != gpu[i] {
			t.Fatalf("token %d differs:\nCPU    %v\nVulkan %v", i, cpu, gpu)
		}
	}
	t.Logf("%q", text)
}

func TestRealLongTextsAreCutAtSpecialTokens(t *testing.T) {
	checkCuts(t, realModel(t, llama.ModelParams{VocabOnly: true}), "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>")
}
