package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func TestChatStreamsTokenByToken(t *testing.T) {
	s := serve(t, nil)
	st := s.stream(map[string]any{"model": "smollm2", "max_tokens": 40, "temperature": 0, "stream_options": map[string]any{"include_usage": true},
		"messages": []map[string]any{{"role": "user", "content": "List the days of the week."}}})
	defer st.close()
	var text strings.Builder
	pieces, finish := 0, ""
	var u *usage
	for c, ok := st.next(t); ok; c, ok = st.next(t) {
		if c.content() != "" {
			pieces++
			text.WriteString(c.content())
		}
		if len(c.Choices) > 0 && c.Choices[0].FinishReason != nil {
			finish = *c.Choices[0].FinishReason
		}
		if c.Usage != nil {
			u = c.Usage
		}
	}
	if !strings.Contains(text.String(), "Tuesday") {
		t.Errorf("SmolLM2 answered %q, its week has no Tuesday", text.String())
	}
	if u == nil || pieces < u.CompletionTokens/2 || pieces < 4 {
		t.Errorf("%d pieces of text for usage %+v: not streamed token by token", pieces, u)
	}
	if finish != "stop" && finish != "length" {
		t.Errorf("finish_reason %q", finish)
	}
}

func TestCompletionKnowsParis(t *testing.T) {
	s := serve(t, nil)
	code, _, out := s.post("/v1/completions", map[string]any{"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0})
	if code != 200 || !strings.Contains(string(out), "Paris") {
		t.Errorf("status %d: %s", code, out)
	}
}

func TestGreedyIsRepeatableAndSecondTurnIsCached(t *testing.T) {
	// A whole prompt would go through BLAS, the end of a cached one would not: they round differently.
	s := serve(t, nil, "HEARTH_CPU_BLAS=off")
	ask := func(body map[string]any) (string, usage) {
		code, _, out := s.post("/v1/chat/completions", body)
		var r struct {
			Choices []struct {
				Message struct{ Content string }
			}
			Usage usage
		}
		if err := json.Unmarshal(out, &r); code != 200 || err != nil || len(r.Choices) != 1 {
			t.Fatalf("status %d, %v: %s", code, err, out)
		}
		return r.Choices[0].Message.Content, r.Usage
	}
	long := "Tell me about the history of bread. " + strings.Repeat("Bread is old and people like it. ", 20)
	first, u1 := ask(user(long, 32))
	again, u2 := ask(user(long, 32))
	if first != again {
		t.Errorf("greedy answers differ:\n%q\n%q", first, again)
	}
	if u2.PromptTokensDetails.CachedTokens < u1.PromptTokens*9/10 {
		t.Errorf("second run cached %d of %d prompt tokens", u2.PromptTokensDetails.CachedTokens, u1.PromptTokens)
	}
	turn := user(long, 16)
	turn["messages"] = []map[string]any{{"role": "user", "content": long}, {"role": "assistant", "content": first}, {"role": "user", "content": "Why?"}}
	if _, u3 := ask(turn); u3.PromptTokensDetails.CachedTokens < u1.PromptTokens*9/10 {
		t.Errorf("returning conversation cached %d tokens, first prompt had %d", u3.PromptTokensDetails.CachedTokens, u1.PromptTokens)
	}
}

func TestOpenAIGo(t *testing.T) {
	// Answers to a whole prompt and to a cached one are compared; BLAS would round the first otherwise.
	s := serve(t, nil, "HEARTH_CPU_BLAS=off")
	client := openai.NewClient(option.WithBaseURL(s.url+"/v1/"), option.WithAPIKey("unused"), option.WithMaxRetries(0))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	params := openai.ChatCompletionNewParams{
		Model: "smollm2", MaxTokens: openai.Int(16), Temperature: openai.Float(0),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is the capital of France?")},
	}
	whole, err := client.Chat.Completions.New(ctx, params)
	if err != nil {
		t.Fatal(err)
	}
	stream := client.Chat.Completions.NewStreaming(ctx, params)
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		if !acc.AddChunk(stream.Current()) {
			t.Fatal("the accumulator refused a chunk")
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := acc.Choices[0].Message.Content, whole.Choices[0].Message.Content; got != want || want == "" {
		t.Errorf("streamed %q, whole %q", got, want)
	}
	if whole.Usage.CompletionTokens == 0 || whole.Usage.PromptTokens == 0 {
		t.Errorf("usage = %+v", whole.Usage)
	}
}

// pythonClient is what a person's first script looks like, streamed and not.
const pythonClient = `
import sys
from openai import OpenAI
c = OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
m = [{"role": "user", "content": "What is the capital of France?"}]
whole = c.chat.completions.create(model="smollm2", messages=m, max_tokens=16, temperature=0)
parts = [ch.choices[0].delta.content or "" for ch in c.chat.completions.create(model="smollm2", messages=m, max_tokens=16, temperature=0, stream=True) if ch.choices]
assert whole.usage.completion_tokens > 0, whole
assert "".join(parts) == whole.choices[0].message.content != "", (parts, whole)
print("ok", len(parts), "chunks:", "".join(parts))
`

func TestOpenAIPython(t *testing.T) {
	root(t)
	base := os.Getenv("HEARTH_CACHE")
	if base == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			t.Skip(err)
		}
		base = filepath.Join(dir, "hearth")
	}
	venv := filepath.Join(base, "venv-openai")
	python := filepath.Join(venv, "bin", "python")
	if err := exec.Command(python, "-c", "import openai").Run(); err != nil {
		if out, err := exec.Command("python3", "-m", "venv", venv).CombinedOutput(); err != nil {
			t.Skipf("no virtual environment: %v\n%s", err, out)
		}
		if out, err := exec.Command(python, "-m", "pip", "install", "-q", "openai").CombinedOutput(); err != nil {
			t.Skipf("pip cannot install openai: %v\n%s", err, out)
		}
	}
	// Answers to a whole prompt and to a cached one are compared; BLAS would round the first otherwise.
	s := serve(t, nil, "HEARTH_CPU_BLAS=off")
	out, err := exec.Command(python, "-c", pythonClient, s.url+"/v1").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
