//go:build !race

// The official client takes minutes and gigabytes to compile for the race detector; the other tests of this package
// run the same handlers.

package server_test

import (
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"hearth/engine"
	"hearth/engine/enginetest"
	"hearth/server"
)

func newClient(t *testing.T, f *fixture, opts ...option.RequestOption) *openai.Client {
	t.Helper()
	s := f.listen()
	opts = append([]option.RequestOption{
		option.WithBaseURL(s.URL + "/v1/"), option.WithAPIKey("unused"), option.WithHTTPClient(s.Client()), option.WithMaxRetries(0),
	}, opts...)
	c := openai.NewClient(opts...)
	return &c
}

func params(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    "m",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage(text)},
	}
}

// TestOpenAIGo runs the official Go client against the server.
func TestOpenAIGo(t *testing.T) {
	t.Run("chat", func(t *testing.T) {
		f := newFixture(t)
		p := params("hi")
		p.Seed, p.MaxCompletionTokens, p.Temperature = openai.Int(7), openai.Int(100), openai.Float(0)
		got, err := newClient(t, f).Chat.Completions.New(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		c := got.Choices[0]
		if c.Message.Content != enginetest.Reply || c.FinishReason != "stop" || string(c.Message.Role) != "assistant" || got.Model != "m" {
			t.Errorf("got %s", got.RawJSON())
		}
		if got.Usage.TotalTokens != got.Usage.PromptTokens+got.Usage.CompletionTokens || got.Usage.PromptTokensDetails.CachedTokens == 0 {
			t.Errorf("usage %+v", got.Usage)
		}
		if r := f.model.Last(); *r.Sampling.Seed != 7 || r.MaxTokens != 100 || r.Sampling.Temperature != 0 {
			t.Errorf("the engine got %+v", r)
		}
	})
	t.Run("chat stream", func(t *testing.T) {
		p := params("hi")
		p.N = openai.Int(2)
		p.StreamOptions.IncludeUsage = openai.Bool(true)
		stream := newClient(t, newFixture(t)).Chat.Completions.NewStreaming(t.Context(), p)
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Fatalf("the accumulator refuses %s", stream.Current().RawJSON())
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if len(acc.Choices) != 2 || acc.Usage.CompletionTokens != 54 {
			t.Fatalf("got %+v", acc.ChatCompletion)
		}
		for _, c := range acc.Choices {
			if c.Message.Content != enginetest.Reply || c.FinishReason != "stop" {
				t.Errorf("got %+v", c)
			}
		}
	})
	t.Run("completion", func(t *testing.T) {
		got, err := newClient(t, newFixture(t)).Completions.New(t.Context(), openai.CompletionNewParams{
			Model: "m", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"a", "b"}}, Logprobs: openai.Int(2),
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Choices) != 2 || got.Choices[1].Index != 1 || len(got.Choices[0].Logprobs.Tokens) != 16 || got.Choices[0].FinishReason != "length" {
			t.Errorf("got %s", got.RawJSON())
		}
	})
	t.Run("models", func(t *testing.T) {
		c := newClient(t, newFixture(t))
		page, err := c.Models.List(t.Context())
		if err != nil || len(page.Data) != 1 || page.Data[0].ID != "m" {
			t.Fatalf("got %+v, %v", page, err)
		}
		if m, err := c.Models.Get(t.Context(), "m"); err != nil || m.OwnedBy != "hearth" {
			t.Errorf("got %+v, %v", m, err)
		}
	})
	t.Run("embeddings", func(t *testing.T) {
		got, err := newClient(t, embedding(newFixture(t))).Embeddings.New(t.Context(), openai.EmbeddingNewParams{
			Model: "m", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("hi")},
		})
		if err != nil || len(got.Data) != 1 || len(got.Data[0].Embedding) != 4 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("errors", func(t *testing.T) {
		c := newClient(t, newFixture(t))
		p := params("hi")
		p.Model = "gpt-9"
		_, err := c.Chat.Completions.New(t.Context(), p)
		if e := apiError(t, err); e.StatusCode != 404 || e.Code != "model_not_found" || e.Param != "model" {
			t.Errorf("got %+v", e)
		}
		_, err = c.Chat.Completions.New(t.Context(), params(strings.Repeat("x", 5000)))
		if e := apiError(t, err); e.StatusCode != 400 || e.Code != "context_length_exceeded" {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("error in a stream", func(t *testing.T) {
		f := newFixture(t)
		f.model.Script = failing(2, &engine.Error{Kind: engine.KindUnavailable, Message: "the worker died"})
		stream := newClient(t, f).Chat.Completions.NewStreaming(t.Context(), params("hi"))
		chunks := 0
		for stream.Next() {
			chunks++
		}
		if err := stream.Err(); chunks != 3 || err == nil || !strings.Contains(err.Error(), "the worker died") {
			t.Errorf("%d chunks, %v", chunks, err)
		}
	})
	t.Run("key", func(t *testing.T) {
		f := newFixture(t, func(c *server.Config) { c.APIKeys = []string{"k"} })
		if _, err := newClient(t, f, option.WithAPIKey("k")).Models.List(t.Context()); err != nil {
			t.Error(err)
		}
		_, err := newClient(t, f, option.WithAPIKey("x")).Models.List(t.Context())
		if e := apiError(t, err); e.StatusCode != 401 || e.Code != "invalid_api_key" {
			t.Errorf("got %+v", e)
		}
	})
}

func apiError(t *testing.T, err error) *openai.Error {
	t.Helper()
	e, ok := err.(*openai.Error)
	if !ok {
		t.Fatalf("not an API error: %v", err)
	}
	return e
}
