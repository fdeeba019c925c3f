package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Message is one chat message of an Item.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Item is one request to send.
type Item struct {
	// Class groups samples in the report ("chat", "decoder", "injected").
	Class     string
	Messages  []Message
	MaxTokens int
	// CancelAfter closes the connection after so many content events; negative: never; 0: before the first one,
	// once CancelDelay has passed.
	CancelAfter int
	CancelDelay time.Duration
	Seed        uint64
	// APIKey overrides the client's key, for fairness workloads.
	APIKey string
}

// Sample is what one request did. Durations are wall time at this client.
type Sample struct {
	Class            string
	Start            time.Time
	TTFT, E2E        time.Duration
	Gaps             []time.Duration // between content events, len = content events - 1
	GapEnds          []time.Time     // when each gap ended
	PromptTokens     int
	CachedTokens     int
	CompletionTokens int
	Content          string
	Finish           string
	Status           int
	Cancelled        bool
	Err              string
}

// Client sends Items to one endpoint.
type Client struct {
	// BaseURL is the server's address up to and without "/v1".
	BaseURL string
	Model   string
	APIKey  string
	// Temperature of every request; 0 is greedy.
	Temperature float64
	// IgnoreEOS asks the server to generate exactly MaxTokens tokens (an extension that hearth and llama-server know).
	IgnoreEOS bool
	HTTP      *http.Client
	// Timeout bounds one request; 0: ten minutes.
	Timeout time.Duration
	// KeepContent stores the text in Sample.Content.
	KeepContent bool
}

type wireRequest struct {
	Model         string         `json:"model,omitempty"`
	Messages      []Message      `json:"messages"`
	MaxTokens     int            `json:"max_tokens"`
	Temperature   float64        `json:"temperature"`
	Seed          uint64         `json:"seed"`
	Stream        bool           `json:"stream"`
	StreamOptions map[string]any `json:"stream_options"`
	IgnoreEOS     bool           `json:"ignore_eos,omitempty"`
}

type wireChunk struct {
	Choices []struct {
		Delta struct {
			Content          string `json:"content"`
			ReasoningContent string `json:"reasoning_content"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens        int `json:"prompt_tokens"`
		CompletionTokens    int `json:"completion_tokens"`
		PromptTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Do sends one item and reads its stream to the end. It never fails: what went wrong is in Sample.Err.
func (c *Client) Do(ctx context.Context, it Item) Sample {
	s := Sample{Class: it.Class, Start: time.Now()}
	timeout := c.Timeout
	if timeout == 0 {
		timeout = 10 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if it.CancelAfter == 0 && it.CancelDelay > 0 {
		defer time.AfterFunc(it.CancelDelay, cancel).Stop()
	}
	err := c.stream(ctx, cancel, it, &s)
	s.E2E = time.Since(s.Start)
	switch {
	case err == nil:
	case it.CancelAfter >= 0 && errors.Is(err, context.Canceled):
		s.Cancelled = true
	default:
		s.Err = err.Error()
	}
	return s
}

func (c *Client) stream(ctx context.Context, cancel context.CancelFunc, it Item, s *Sample) error {
	resp, err := c.send(ctx, it)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	s.Status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(body))
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(make([]byte, 64<<10), 16<<20)
	events, last, done := 0, time.Time{}, false
	for sc.Scan() {
		data, ok := bytes.CutPrefix(sc.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			done = true
			break
		}
		content, err := s.take(data)
		if err != nil {
			return err
		}
		if content == "" {
			continue
		}
		now := time.Now()
		if events++; events == 1 {
			s.TTFT = now.Sub(s.Start)
		} else {
			s.Gaps = append(s.Gaps, now.Sub(last))
			s.GapEnds = append(s.GapEnds, now)
		}
		last = now
		if c.KeepContent {
			s.Content += content
		}
		if it.CancelAfter > 0 && events >= it.CancelAfter {
			cancel()
			return context.Canceled
		}
	}
	if err := sc.Err(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("read stream: %w", err)
	}
	if s.CompletionTokens == 0 {
		s.CompletionTokens = events
	}
	if !done && s.Finish == "" {
		return errors.New("stream ended without finish_reason or [DONE]")
	}
	return nil
}

func (c *Client) send(ctx context.Context, it Item) (*http.Response, error) {
	body, err := json.Marshal(wireRequest{
		Model: c.Model, Messages: it.Messages, MaxTokens: it.MaxTokens, Temperature: c.Temperature, Seed: it.Seed,
		Stream: true, StreamOptions: map[string]any{"include_usage": true}, IgnoreEOS: c.IgnoreEOS,
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.BaseURL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	key := c.APIKey
	if it.APIKey != "" {
		key = it.APIKey
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return resp, err
}

// take folds one data event into the sample and returns its content.
func (s *Sample) take(data []byte) (string, error) {
	var ch wireChunk
	if err := json.Unmarshal(data, &ch); err != nil {
		return "", fmt.Errorf("event is not JSON: %w", err)
	}
	if ch.Error != nil {
		return "", fmt.Errorf("error event: %s", ch.Error.Message)
	}
	if u := ch.Usage; u != nil {
		s.PromptTokens, s.CompletionTokens, s.CachedTokens = u.PromptTokens, u.CompletionTokens, u.PromptTokensDetails.CachedTokens
	}
	content := ""
	for _, choice := range ch.Choices {
		content += choice.Delta.Content + choice.Delta.ReasoningContent
		if choice.FinishReason != "" {
			s.Finish = choice.FinishReason
		}
	}
	return content, nil
}
