package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hearth/engine"
	"hearth/engine/enginetest"
	"hearth/server"
	"hearth/server/api"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/*.golden anew")

var (
	idPattern      = regexp.MustCompile(`(chatcmpl|cmpl)-[0-9a-f]{24}`)
	createdPattern = regexp.MustCompile(`"created":\d+`)
	printPattern   = regexp.MustCompile(`fp_[0-9a-f]{16}`)
	elapsedPattern = regexp.MustCompile(`"time_ms":\d+`)
)

// settle takes out what differs between runs.
func settle(s string) string {
	s = idPattern.ReplaceAllString(s, "$1-ID")
	s = createdPattern.ReplaceAllString(s, `"created":0`)
	s = elapsedPattern.ReplaceAllString(s, `"time_ms":0`)
	return printPattern.ReplaceAllString(s, "fp_0")
}

// TestGolden pins the exact bytes of replies and streams.
func TestGolden(t *testing.T) {
	tests := []struct{ name, path, body string }{
		{"chat", chatPath, chatWith(`"max_tokens":12`)},
		{"chat-logprobs", chatPath, chatWith(`"max_tokens":3,"logprobs":true,"top_logprobs":1`)},
		{"chat-stream", chatPath, chatWith(`"stream":true`)},
		{"chat-stream-usage", chatPath, chatWith(`"stream":true,"stream_options":{"include_usage":true},"max_tokens":6`)},
		{"chat-stream-n", chatPath, chatWith(`"stream":true,"n":2,"max_tokens":6`)},
		{"chat-stream-logprobs", chatPath, chatWith(`"stream":true,"logprobs":true,"top_logprobs":2,"max_tokens":6`)},
		{"chat-stream-stop", chatPath, chatWith(`"stream":true,"stop":["fake"]`)},
		{"chat-stream-progress", chatPath, chatWith(`"stream":true,"return_progress":true,"max_tokens":2`)},
		{"text", textPath, textWith(`"max_tokens":6`)},
		{"text-echo", textPath, `{"model":"m","prompt":[[65,66],[67]],"echo":true,"n":2,"max_tokens":3}`},
		{"text-logprobs", textPath, textWith(`"max_tokens":3,"logprobs":2`)},
		{"text-stream", textPath, textWith(`"stream":true,"max_tokens":8,"stream_options":{"include_usage":true}`)},
		{"text-stream-logprobs", textPath, textWith(`"stream":true,"max_tokens":7,"logprobs":0`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newFixture(t).post(tt.path, tt.body)
			if w.Code != 200 {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			got := settle(w.Body.String())
			file := filepath.Join("testdata", tt.name+".golden")
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("differs from %s\n got: %s\nwant: %s", file, got, want)
			}
		})
	}
}

// events splits a stream into the payloads of its data lines, and fails on anything that clients do not expect.
func events(t testing.TB, body string) []string {
	t.Helper()
	var out []string
	for block := range strings.SplitSeq(body, "\n\n") {
		switch {
		case block == "", strings.HasPrefix(block, ": "):
		case strings.HasPrefix(block, "data: ") && !strings.Contains(block, "\n"):
			out = append(out, block[len("data: "):])
		default:
			t.Errorf("unexpected event %q", block)
		}
	}
	return out
}

// TestStreamShape checks what breaks clients when it is missing, on a stream of two choices.
func TestStreamShape(t *testing.T) {
	w := newFixture(t).post(chatPath, chatWith(`"stream":true,"n":2,"stream_options":{"include_usage":true}`))
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	all := events(t, w.Body.String())
	if all[len(all)-1] != "[DONE]" {
		t.Fatalf("the stream ends with %s", all[len(all)-1])
	}
	type chunk struct {
		ID      string `json:"id"`
		Created int64  `json:"created"`
		Model   string `json:"model"`
		Choices []struct {
			Index        *int            `json:"index"`
			Delta        map[string]any  `json:"delta"`
			FinishReason *string         `json:"finish_reason"`
			Logprobs     json.RawMessage `json:"logprobs"`
		} `json:"choices"`
		Usage *struct {
			Total int `json:"total_tokens"`
		} `json:"usage"`
	}
	var first chunk
	roles, finishes, text := map[int]int{}, map[int]int{}, map[int]string{}
	for i, data := range all[:len(all)-1] {
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = c
		}
		if c.ID != first.ID || c.Created != first.Created || c.Model != first.Model {
			t.Errorf("chunk %d has another id, created or model", i)
		}
		last := i == len(all)-2
		if (c.Usage != nil) != last || (len(c.Choices) == 0) != last || !strings.Contains(data, `"usage":`) {
			t.Errorf("chunk %d: usage must stand in the last chunk alone and be null before: %s", i, data)
		}
		for _, ch := range c.Choices {
			if ch.Index == nil {
				t.Fatalf("chunk %d has no index", i)
			}
			if role, ok := ch.Delta["role"]; ok {
				if role != "assistant" || ch.Delta["content"] != "" || text[*ch.Index] != "" {
					t.Errorf("role chunk: %s", data)
				}
				roles[*ch.Index]++
			}
			if s, ok := ch.Delta["content"].(string); ok {
				text[*ch.Index] += s
			}
			if ch.FinishReason != nil {
				if len(ch.Delta) != 0 {
					t.Errorf("the finish chunk has a delta: %s", data)
				}
				finishes[*ch.Index]++
			}
		}
	}
	for i := range 2 {
		if roles[i] != 1 || finishes[i] != 1 || text[i] != enginetest.Reply {
			t.Errorf("choice %d: %d roles, %d finishes, text %q", i, roles[i], finishes[i], text[i])
		}
	}
}

// TestHeldBackText: tokens whose text comes later keep their log-probabilities for it.
func TestHeldBackText(t *testing.T) {
	f := newFixture(t)
	lp := func(b byte) []engine.TokenLogprob {
		return []engine.TokenLogprob{{Token: engine.Token(b), Bytes: []byte{b}}}
	}
	f.model.Script = func(engine.Request) enginetest.Play {
		return enginetest.Play{Steps: []enginetest.Step{
			{Event: engine.Event{Tokens: []engine.Token{0xc3}, Logprobs: lp(0xc3)}},
			{Event: engine.Event{Tokens: []engine.Token{0xa9}, Logprobs: lp(0xa9), Text: "é"}},
			{Event: engine.Event{Tokens: []engine.Token{'x'}, Logprobs: lp('x')}},
			{Event: engine.Event{Finish: engine.FinishStop, StopString: "x", Usage: &engine.Usage{PromptTokens: 1, CompletionTokens: 3}}},
		}}
	}
	all := events(t, f.post(chatPath, chatWith(`"stream":true,"logprobs":true`)).Body.String())
	if len(all) != 5 { // role, é with two tokens, x with no text, finish, [DONE]
		t.Fatalf("%d events: %q", len(all), all)
	}
	if got := strings.Count(all[1], `"token":`); got != 2 || !strings.Contains(all[1], `"content":"é"`) || !strings.Contains(all[1], `"bytes":[195]`) {
		t.Errorf("%d tokens in %s", got, all[1])
	}
	if !strings.Contains(all[2], `"content":""`) || strings.Count(all[2], `"token":`) != 1 {
		t.Errorf("got %s", all[2])
	}
}

func failing(after int, err error) func(engine.Request) enginetest.Play {
	return func(engine.Request) enginetest.Play {
		var steps []enginetest.Step
		for range after {
			steps = append(steps, enginetest.Step{Event: engine.Event{Text: "word ", Tokens: []engine.Token{1}}})
		}
		return enginetest.Play{Steps: append(steps, enginetest.Step{Err: err})}
	}
}

// TestErrorMidStream: after the first byte an error is a last data event without an event line, and no [DONE].
func TestErrorMidStream(t *testing.T) {
	f := newFixture(t)
	f.model.Script = failing(2, &engine.Error{Kind: engine.KindUnavailable, Message: "the worker died"})
	w := f.post(chatPath, chatWith(`"stream":true`))
	all := events(t, w.Body.String())
	if w.Code != 200 || len(all) != 4 {
		t.Fatalf("got %d, %q", w.Code, all)
	}
	if e := decodeError(t, all[3]); e.Error.Message != "the worker died" || e.Error.Type != "server_error" {
		t.Errorf("got %s", all[3])
	}
	if !strings.Contains(f.log.String(), "status=503") {
		t.Errorf("the log must show the real status: %s", f.log)
	}
}

func TestErrorBeforeFirstByte(t *testing.T) {
	f := newFixture(t)
	f.model.Script = failing(0, &engine.Error{Kind: engine.KindOverloaded, Message: "queue full", RetryAfter: 7 * time.Second})
	w := f.post(chatPath, chatWith(`"stream":true`))
	if w.Code != 429 || w.Header().Get("Retry-After") != "7" || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
	}
}

// TestEveryFailureOfAChoice: events that say that a choice failed end the request.
func TestEveryFailureOfAChoice(t *testing.T) {
	tests := []struct {
		name   string
		event  engine.Event
		status int
	}{
		{"error", engine.Event{Finish: engine.FinishError, Err: &engine.Error{Kind: engine.KindUnavailable, Message: "gone"}}, 503},
		{"error without reason", engine.Event{Finish: engine.FinishError}, 500},
		{"cancelled by the server", engine.Event{Finish: engine.FinishCancelled}, 503},
		{"foreign choice", engine.Event{Choice: 7, Text: "x", Tokens: []engine.Token{1}}, 500},
		{"no usage", engine.Event{Finish: engine.FinishStop}, 500},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.model.Script = func(engine.Request) enginetest.Play {
				return enginetest.Play{Steps: []enginetest.Step{{Event: tt.event}}}
			}
			if w := f.post(chatPath, chatWith(`"n":1`)); w.Code != tt.status {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
}

// TestPing: a silent stream gets comments, and an error after them is an event.
func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		wait := make(chan struct{})
		f.model.Script = func(engine.Request) enginetest.Play {
			return enginetest.Play{Steps: []enginetest.Step{{Wait: wait, Err: &engine.Error{Kind: engine.KindInternal, Message: "too late"}}}}
		}
		go func() {
			// Two ping intervals pass while the prompt is computed.
			timer := time.NewTimer(2*server.DefaultPingInterval + time.Second)
			<-timer.C
			close(wait)
		}()
		w := f.post(chatPath, chatWith(`"stream":true`))
		body := w.Body.String()
		if w.Code != 200 || strings.Count(body, ": ping\n\n") != 2 || !strings.HasSuffix(body, "\n\n") {
			t.Errorf("got %d %q", w.Code, body)
		}
		if all := events(t, body); len(all) != 1 || !strings.Contains(all[0], "too late") {
			t.Errorf("got %q", all)
		}
	})
}

// TestPingWhileLoading: the time that a model takes to load counts too.
func TestPingWhileLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.models.OnAcquire = func(ctx context.Context, _ string) error {
			timer := time.NewTimer(server.DefaultPingInterval + time.Second)
			<-timer.C
			return nil
		}
		w := f.post(chatPath, chatWith(`"stream":true`))
		if body := w.Body.String(); !strings.HasPrefix(body, ": ping\n\ndata: {") || !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("got %q", body)
		}
	})
}

// endless answers until it is stopped: each step waits for the channel.
func endless(step <-chan struct{}) func(engine.Request) enginetest.Play {
	return func(engine.Request) enginetest.Play {
		var steps []enginetest.Step
		for range 100_000 {
			steps = append(steps, enginetest.Step{Wait: step, Event: engine.Event{Text: "tick ", Tokens: []engine.Token{1}}})
		}
		return enginetest.Play{Steps: steps}
	}
}

// TestDisconnect: when the client goes, the stream is closed, the model given back, and the log says 499.
func TestDisconnect(t *testing.T) {
	for _, stream := range []string{"true", "false"} {
		t.Run("stream "+stream, func(t *testing.T) {
			f := newFixture(t)
			step := make(chan struct{})
			f.model.Script = endless(step)
			started := make(chan struct{}, 1)
			script := f.model.Script
			f.model.Script = func(r engine.Request) enginetest.Play { started <- struct{}{}; return script(r) }
			s := f.listen()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+chatPath, strings.NewReader(chatWith(`"stream":`+stream)))
				resp, err := s.Client().Do(req)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			<-started
			step <- struct{}{} // a token is on its way, the next one will never come
			cancel()
			<-done
			wait, stop := context.WithTimeout(t.Context(), 5*time.Second)
			defer stop()
			if err := f.model.WaitIdle(wait); err != nil {
				t.Fatal(err)
			}
			s.Close() // waits for the handler
			if log := f.log.String(); !strings.Contains(log, "status=499") {
				t.Errorf("the log does not say 499: %s", log)
			}
			if f.models.Held() != 0 {
				t.Error("the model was not given back")
			}
			f.counted(`kind="prompt",model="m"} ` + strconv.Itoa(f.model.PromptTokens(f.model.Last())))
			f.counted(`kind="completion",model="m"} 1`)
		})
	}
}

// counted checks a line of hearth_tokens_total.
func (f *fixture) counted(line string) {
	f.t.Helper()
	if body := f.do(http.MethodGet, "/metrics", "").Body.String(); !strings.Contains(body, "hearth_tokens_total{"+line+"\n") {
		f.t.Errorf("no %s in %s", line, body)
	}
}

// serve starts Serve on a fresh loopback listener. The returned function ends it and returns Serve's error.
func (f *fixture) serve() (url string, shutdown func(), done <-chan error) {
	f.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- f.server.Serve(ctx, l) }()
	f.t.Cleanup(cancel)
	return "http://" + l.Addr().String(), cancel, result
}

// client is one without kept connections, which would outlive the test.
func client() *http.Client { return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} }

// TestShutdownLetsStreamsFinish: a stream that runs when the shutdown begins is finished, and new requests are refused.
func TestShutdownLetsStreamsFinish(t *testing.T) {
	f := newFixture(t)
	step := make(chan struct{})
	f.model.Script = func(r engine.Request) enginetest.Play {
		p := f.model.Say(enginetest.Reply)(r)
		for i := range p.Steps {
			p.Steps[i].Wait = step
		}
		return p
	}
	url, shutdown, done := f.serve()
	resp := f.startStream(url, step)
	shutdown()
	go func() {
		for {
			select {
			case step <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	if body := readAll(t, resp.Body); !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("the stream was cut: %q", body)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := client().Get(url + "/health"); err == nil {
		t.Error("the listener is still open")
	}
}

// startStream begins a chat and reads its first event.
func (f *fixture) startStream(url string, step chan<- struct{}) *http.Response {
	f.t.Helper()
	go func() { step <- struct{}{} }()
	resp, err := client().Post(url+chatPath, "application/json", strings.NewReader(chatWith(`"stream":true`)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { resp.Body.Close() })
	line, err := bufio.NewReaderSize(resp.Body, 16).ReadString('{')
	if err != nil || line != "data: {" {
		f.t.Fatalf("the stream begins with %q, %v", line, err)
	}
	return resp
}

// TestShutdownIsBounded: a stream that does not end is told so when the grace is over.
func TestShutdownIsBounded(t *testing.T) {
	f := newFixture(t, func(c *server.Config) { c.ShutdownGrace = 50 * time.Millisecond })
	step := make(chan struct{})
	f.model.Script = endless(step)
	url, shutdown, done := f.serve()
	resp := f.startStream(url, step)
	shutdown()
	body := readAll(t, resp.Body)
	if !strings.Contains(body, `"code":"server_stopping"`) || strings.Contains(body, "[DONE]") {
		t.Errorf("the client was not told: %q", body)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestServeNeedsListener(t *testing.T) {
	if err := newFixture(t).server.Serve(t.Context()); err == nil {
		t.Error("no error")
	}
}

// TestServeReportsBrokenListener: a listener that fails ends Serve with its error.
func TestServeReportsBrokenListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := newFixture(t).server.Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestMergedPrompts: several prompts answer side by side under one id, and one failure ends all.
func TestMergedPrompts(t *testing.T) {
	f := newFixture(t)
	w := f.post(textPath, `{"model":"m","prompt":["a","b","c"],"stream":true,"max_tokens":5}`)
	seen := map[string]bool{}
	for _, data := range events(t, w.Body.String()) {
		if _, rest, ok := strings.Cut(data, `"index":`); ok {
			seen[rest[:1]] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("choices %v", seen)
	}
	ids := map[string]bool{}
	for _, r := range f.model.Requests() {
		ids[r.ID] = true
	}
	if len(ids) != 3 {
		t.Errorf("the engine saw %d request ids", len(ids))
	}

	f = newFixture(t)
	calls := 0
	f.model.Script = func(r engine.Request) enginetest.Play {
		if calls++; calls == 3 {
			return enginetest.Play{Err: &engine.Error{Kind: engine.KindOverloaded, Message: "full"}}
		}
		return endless(make(chan struct{}))(r)
	}
	if w := f.post(textPath, `{"model":"m","prompt":["a","b","c"]}`); w.Code != 429 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if err := f.model.WaitIdle(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWholeReplyToAClientThatDoesNotRead: it holds the model no longer than the write timeout.
func TestWholeReplyToAClientThatDoesNotRead(t *testing.T) {
	f := newFixture(t, func(c *server.Config) { c.WriteTimeout = 50 * time.Millisecond })
	long := strings.Repeat("x", 32<<20) // more than a socket's buffers hold
	f.model.Script = func(engine.Request) enginetest.Play {
		return enginetest.Play{Steps: []enginetest.Step{{Event: engine.Event{
			Tokens: []engine.Token{'x'}, Text: long, Finish: engine.FinishStop, Usage: &engine.Usage{CompletionTokens: 1},
		}}}}
	}
	s := f.listen()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := textWith(`"max_tokens":1`)
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", textPath, s.Listener.Addr(), len(body), body)
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it answers, and nobody reads on
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Close() // waits for the handler
	}()
	select {
	case <-ended:
	case <-time.After(4 * time.Second):
		t.Error("the handler still waits for the client")
		conn.Close()
		<-ended
	}
	if log := f.log.String(); !strings.Contains(log, "status=499") {
		t.Errorf("the log does not say 499: %s", log)
	}
}

func TestStatusOf(t *testing.T) {
	if e := api.Classify(context.DeadlineExceeded); e.Status != 503 {
		t.Errorf("got %d", e.Status)
	}
	if e := api.Classify(context.Canceled); e.Status != api.StatusClientClosed {
		t.Errorf("got %d", e.Status)
	}
}
