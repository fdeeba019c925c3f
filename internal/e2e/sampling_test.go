package e2e

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

// completion is the reply of /v1/completions.
type completion struct {
	Choices []struct {
		Index        int
		Text         string
		FinishReason string `json:"finish_reason"`
	}
	Usage usage
}

// complete asks for a completion of prompt with more members.
func (s *server) complete(prompt any, more map[string]any) completion {
	s.t.Helper()
	body := map[string]any{"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": 16, "cache_prompt": false}
	maps.Copy(body, more)
	code, _, out := s.post("/v1/completions", body)
	var c completion
	if err := json.Unmarshal(out, &c); code != 200 || err != nil || len(c.Choices) == 0 {
		s.t.Fatalf("status %d, %v: %s", code, err, out)
	}
	return c
}

// token returns the id of a text that is one token.
func (s *server) token(text string) int {
	s.t.Helper()
	code, _, out := s.post("/tokenize", map[string]any{"model": "smollm2", "content": text})
	var r struct{ Tokens []int }
	if err := json.Unmarshal(out, &r); code != 200 || err != nil || len(r.Tokens) != 1 {
		s.t.Fatalf("status %d, %v: %q is %s", code, err, text, out)
	}
	return r.Tokens[0]
}

// What a request asks of its continuation reaches the sampler of the real engine and comes back in the reply.
func TestSamplingFields(t *testing.T) {
	s := serve(t, []string{"--context", "2048"})
	const france, count = "The capital of France is", "1 2 3 4 5 6"

	t.Run("n and seed", func(t *testing.T) {
		ask := map[string]any{"n": 3, "seed": 7, "temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0}
		first, again := s.complete("Once upon a time", ask), s.complete("Once upon a time", ask)
		if len(first.Choices) != 3 || len(again.Choices) != 3 {
			t.Fatalf("%d and %d choices, want 3", len(first.Choices), len(again.Choices))
		}
		for i, c := range first.Choices {
			if c.Index != i || c.Text != again.Choices[i].Text {
				t.Errorf("choice %d: %q, and with the same seed %q", c.Index, c.Text, again.Choices[i].Text)
			}
			if i > 0 && c.Text == first.Choices[0].Text {
				t.Errorf("choices 0 and %d are both %q", i, c.Text)
			}
		}
		if u := first.Usage; u.CompletionTokens != 48 || u.TotalTokens != u.PromptTokens+48 {
			t.Errorf("usage %+v, want 3 times 16 tokens", u)
		}
		ask["seed"] = 8
		if other := s.complete("Once upon a time", ask); other.Choices[0].Text == first.Choices[0].Text {
			t.Errorf("seeds 7 and 8 both give %q", other.Choices[0].Text)
		}
	})
	t.Run("n streamed", func(t *testing.T) {
		body := user("Name an animal.", 6)
		body["n"], body["seed"], body["temperature"] = 2, 3, 1
		st := s.stream(body)
		defer st.close()
		finished := map[int]string{}
		for c, ok := st.next(t); ok; c, ok = st.next(t) {
			for _, ch := range c.Choices {
				if ch.FinishReason != nil {
					finished[ch.Index] = *ch.FinishReason
				}
			}
		}
		if len(finished) != 2 || finished[0] == "" || finished[1] == "" {
			t.Errorf("finish reasons %v, want one for 0 and one for 1", finished)
		}
	})
	t.Run("stop", func(t *testing.T) {
		all := s.complete(count, nil).Choices[0]
		if all.FinishReason != "length" || len(all.Text) < 12 {
			t.Fatalf("without stop: %+v", all)
		}
		stop := all.Text[5:10] // begins and ends anywhere in a token
		want := all.Text[:strings.Index(all.Text, stop)]
		for _, v := range []any{stop, []string{"never said", stop}} {
			if c := s.complete(count, map[string]any{"stop": v}).Choices[0]; c.Text != want || c.FinishReason != "stop" {
				t.Errorf("stop %q: %q, %s; want %q and stop", v, c.Text, c.FinishReason, want)
			}
		}
		body := user("Count from 1 to 20 with commas.", 60)
		_, _, out := s.post("/v1/chat/completions", body)
		whole := content(t, out)
		body["stop"] = whole[8:13]
		st := s.stream(body)
		defer st.close()
		var text strings.Builder
		for c, ok := st.next(t); ok; c, ok = st.next(t) {
			text.WriteString(c.content())
		}
		if want := whole[:strings.Index(whole, whole[8:13])]; text.String() != want {
			t.Errorf("streamed with stop %q: %q, want %q", body["stop"], text.String(), want)
		}
	})
	t.Run("logit_bias", func(t *testing.T) {
		paris, berlin := s.token(" Paris"), s.token(" Berlin")
		if c := s.complete(france, nil).Choices[0]; !strings.HasPrefix(c.Text, " Paris") {
			t.Fatalf("without a bias: %q", c.Text)
		}
		for _, ban := range []any{map[int]int{paris: -100}, [][]any{{paris, false}}} {
			if c := s.complete(france, map[string]any{"logit_bias": ban}).Choices[0]; strings.Contains(c.Text, " Paris") {
				t.Errorf("%v banned: %q", ban, c.Text)
			}
		}
		if c := s.complete(france, map[string]any{"logit_bias": map[int]int{berlin: 100}, "max_tokens": 3}).Choices[0]; c.Text != " Berlin Berlin Berlin" {
			t.Errorf("Berlin forced: %q", c.Text)
		}
	})
	t.Run("penalties", func(t *testing.T) {
		berlin := map[int]int{s.token(" Berlin"): 30}
		often := s.complete(france, map[string]any{"logit_bias": berlin, "max_tokens": 12}).Choices[0].Text
		less := s.complete(france, map[string]any{"logit_bias": berlin, "max_tokens": 12, "repeat_penalty": 8, "frequency_penalty": 2, "presence_penalty": 2}).Choices[0].Text
		if strings.Count(less, "Berlin") >= strings.Count(often, "Berlin") {
			t.Errorf("without penalties %q, with %q", often, less)
		}
	})
	t.Run("top_k", func(t *testing.T) {
		greedy := s.complete(france, nil).Choices[0].Text
		for name, v := range map[string]any{"top_k": 1, "top_p": 0.0001, "min_p": 1} {
			if c := s.complete(france, map[string]any{"temperature": 2, "seed": 5, name: v}).Choices[0]; c.Text != greedy {
				t.Errorf("%s %v leaves one token, but %q is not the greedy %q", name, v, c.Text, greedy)
			}
		}
	})
	t.Run("ends", func(t *testing.T) {
		body := user("Say yes.", 200)
		_, _, out := s.post("/v1/chat/completions", body)
		var ended completion
		if err := json.Unmarshal(out, &ended); err != nil || ended.Choices[0].FinishReason != "stop" || ended.Usage.CompletionTokens >= 200 {
			t.Fatalf("the model did not end by itself: %s", out)
		}
		n := ended.Usage.CompletionTokens + 20
		delete(body, "max_tokens")
		body["max_completion_tokens"], body["ignore_eos"] = n, true
		_, _, out = s.post("/v1/chat/completions", body)
		var on completion
		if err := json.Unmarshal(out, &on); err != nil || on.Choices[0].FinishReason != "length" || on.Usage.CompletionTokens != n {
			t.Errorf("with ignore_eos and max_completion_tokens %d: %s", n, out)
		}
	})
}

// content returns the text of a chat reply with one choice.
func content(t *testing.T, reply []byte) string {
	t.Helper()
	var r struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(reply, &r); err != nil || len(r.Choices) != 1 || len(r.Choices[0].Message.Content) < 16 {
		t.Fatalf("%v: %s", err, reply)
	}
	return r.Choices[0].Message.Content
}
