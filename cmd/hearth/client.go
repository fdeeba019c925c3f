package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"hearth/configs"
)

// client talks to a hearth server.
type client struct {
	base, key string
	http      *http.Client
}

// clientFor is the client of the configured server. Proxies are not used: a server of one's own is not behind one.
func clientFor(cfg *configs.Config) *client {
	c := &client{base: cfg.ServerURL(), http: &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
	}}}
	if len(cfg.Server.APIKeys) > 0 {
		c.key = cfg.Server.APIKeys[0]
	}
	return c
}

// apiError is an error that the server answered with.
type apiError struct {
	status  int
	message string
	hint    string
}

func (e *apiError) Error() string { return e.message }

// do sends a request with an optional JSON body and returns the response of a good status.
func (c *client) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, r)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &hintedError{fmt.Errorf("no server answers at %s: %w", c.base, unwrapURL(err)),
			"hearth serve starts one; --server or HEARTH_SERVER names another address", exitUnavailable}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refused(c.base, resp)
}

// refused turns an error response into an error with the exit code that fits.
func refused(base string, resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	e := parseError(b)
	e.status = resp.StatusCode
	if e.message == "" {
		e.message = fmt.Sprintf("%s answers %s", base, resp.Status)
	}
	h := &hintedError{e, e.hint, exitFailed}
	switch resp.StatusCode {
	case http.StatusNotFound:
		h.code = exitNotFound
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.code = exitUnavailable
	case http.StatusUnauthorized:
		h.hint = "set HEARTH_API_KEY to one of the server's keys"
	}
	return h
}

// parseError reads the OpenAI error shape, and Ollama's with a bare string.
func parseError(b []byte) *apiError {
	var body struct {
		Error json.RawMessage `json:"error"`
	}
	e := &apiError{}
	if json.Unmarshal(b, &body) != nil {
		return e
	}
	var full struct {
		Message string `json:"message"`
		Hint    string `json:"hint"`
	}
	if json.Unmarshal(body.Error, &full) == nil {
		e.message, e.hint = full.Message, full.Hint
		return e
	}
	if json.Unmarshal(body.Error, &e.message) != nil {
		e.message = ""
	}
	return e
}

// get decodes the answer of a GET.
func (c *client) get(ctx context.Context, path string, into any) error {
	resp, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("%s%s does not answer like a hearth server: %w", c.base, path, err)
	}
	return nil
}

// alive says whether a server answers.
func (c *client) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resp, err := c.do(ctx, http.MethodGet, "/health", nil)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return true
}

// message is one turn of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatRequest is what run sends; zero fields are left to the server.
type chatRequest struct {
	Model       string    `json:"model"`
	Messages    []message `json:"messages"`
	Stream      bool      `json:"stream"`
	Temperature *float64  `json:"temperature,omitempty"`
	Seed        *int64    `json:"seed,omitempty"`
	MaxTokens   int       `json:"max_tokens,omitempty"`
}

// chat streams one answer: each piece of text goes to emit. It returns the whole text and why it ended.
func (c *client) chat(ctx context.Context, r chatRequest, emit func(string) error) (text, finish string, err error) {
	r.Stream = true
	resp, err := c.do(ctx, http.MethodPost, "/v1/chat/completions", r)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	var all strings.Builder
	s := bufio.NewScanner(resp.Body)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data:")
		if data = strings.TrimSpace(data); !ok || data == "" {
			continue
		}
		if data == "[DONE]" {
			return all.String(), finish, nil
		}
		if e := parseError([]byte(data)); e.message != "" {
			return all.String(), "", &hintedError{e, e.hint, exitFailed}
		}
		var chunk struct {
			Choices []struct {
				Delta  message `json:"delta"`
				Finish string  `json:"finish_reason"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return all.String(), "", fmt.Errorf("read stream: %w", err)
		}
		for _, ch := range chunk.Choices {
			all.WriteString(ch.Delta.Content)
			if ch.Finish != "" {
				finish = ch.Finish
			}
			if ch.Delta.Content == "" {
				continue
			}
			if err := emit(ch.Delta.Content); err != nil {
				return all.String(), finish, err
			}
		}
	}
	if ctx.Err() != nil {
		return all.String(), "", ctx.Err()
	}
	return all.String(), "", errors.Join(errors.New("the server ended the stream before the answer was complete"), s.Err())
}

// unwrapURL drops the method and address that net/http puts before a cause.
func unwrapURL(err error) error {
	if u := errors.Unwrap(err); u != nil {
		return u
	}
	return err
}
