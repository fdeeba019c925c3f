package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestEightClientsStreamTogetherAndAKilledOneFreesItsCells(t *testing.T) {
	s := serve(t, nil)
	const clients, longPrompt = 8, 300
	streams := make([]*stream, clients)
	for i := range streams {
		text := "Count from " + string(rune('1'+i)) + " upwards. "
		if i == 0 {
			text += strings.Repeat("and on ", longPrompt)
		}
		body := user(text, 400)
		body["ignore_eos"] = true
		body["cache_prompt"] = false
		streams[i] = s.stream(body)
		defer streams[i].close()
	}
	// every stream has spoken before any has ended: they run at the same time
	for i, st := range streams {
		for n := 0; n < 3; {
			c, ok := st.next(t)
			if !ok {
				t.Fatalf("stream %d ended after %d pieces, before the others had begun", i, n)
			}
			if c.content() != "" {
				n++
			}
		}
	}
	if running := s.metric("hearth_requests_running{"); running != clients {
		t.Errorf("%v requests running, want %d", running, clients)
	}
	// Stream 0 has the long prompt: that many cells are its own. The worker publishes requests and cells together, once a
	// step, so the sample in which the request is gone is the step in which its cells must be gone.
	before := s.sample()
	streams[0].close()
	deadline := time.Now().Add(10 * time.Second)
	after := s.sample()
	for ; after.running == clients; after = s.sample() {
		if time.Now().After(deadline) {
			t.Fatal("a killed client's request still runs after 10 s")
		}
		before = after
	}
	// The others go on: one cell each a step.
	if grown := (after.steps - before.steps) * (clients - 1); after.running != clients-1 || after.cells > before.cells-longPrompt+grown {
		t.Errorf("before the kill %+v, in the step without the request %+v: its %d cells are not free", before, after, longPrompt)
	}
	for _, st := range streams[1:] {
		st.close()
	}
	deadline = time.Now().Add(10 * time.Second)
	for s.metric("hearth_requests_running{") != 0 {
		if time.Now().After(deadline) {
			t.Fatal("killed clients' requests still run after 10 s")
		}
	}
	if used := s.metric(`hearth_kv_cells{model="smollm2",state="used"}`); used != 0 {
		t.Errorf("%v cells used after every uncached request was killed, want 0", used)
	}
}

// state is what one scrape says about the only model.
type state struct{ running, cells, steps int }

// sample reads the gauges of one scrape, which are of one step.
func (s *server) sample() state {
	s.t.Helper()
	body := s.scrape()
	return state{
		running: int(value(s.t, body, "hearth_requests_running{")),
		cells:   int(value(s.t, body, `hearth_kv_cells{model="smollm2",state="used"}`)),
		steps:   int(value(s.t, body, "hearth_worker_steps_total{")),
	}
}

// Token 39 is the only one that spells a 7.
func TestBadInputs(t *testing.T) {
	s := serve(t, []string{"--context", "512"})
	cases := []struct {
		name, path string
		body       any
		status     int
		want       string // part of the error message
	}{
		{"malformed JSON", "/v1/chat/completions", `{"model":"smollm2","messages":[`, 400, "JSON"},
		{"empty body", "/v1/chat/completions", ``, 400, ""},
		{"unknown model", "/v1/chat/completions", map[string]any{"model": "nope", "messages": []map[string]any{{"role": "user", "content": "x"}}}, 404, "nope"},
		{"no messages", "/v1/chat/completions", map[string]any{"model": "smollm2"}, 400, "messages"},
		{"wrong type", "/v1/chat/completions", `{"model":"smollm2","messages":[{"role":"user","content":5}]}`, 400, "messages[0].content"},
		{"bad temperature", "/v1/chat/completions", `{"model":"smollm2","messages":[{"role":"user","content":"x"}],"temperature":"hot"}`, 400, "temperature"},
		{"prompt over context", "/v1/chat/completions", user(strings.Repeat("word ", 3000), 4), 400, "maximum context length is 512 tokens"},
		{"9 MB body", "/v1/chat/completions", user(strings.Repeat("word ", 9<<20/5), 4), 400, "maximum context length is 512 tokens"},
		{"80,000 special tokens", "/v1/chat/completions", user(strings.Repeat("<|im_start|>", 80_000), 4), 400, "maximum context length is 512 tokens"},
		{"700,000 special tokens, raw", "/v1/completions", `{"model":"smollm2","prompt":"` + strings.Repeat("<|im_start|>", 700_000) + `"}`, 400, "maximum context length is 512 tokens"},
		{"more than 10 MB", "/v1/chat/completions", `{"model":"smollm2","messages":[{"role":"user","content":"` + strings.Repeat("x", 11<<20) + `"}]}`, 413, ""},
		{"bad grammar", "/v1/completions", map[string]any{"model": "smollm2", "prompt": "x", "grammar": "root ::= ("}, 400, "grammar"},
		{"bans all that the grammar allows", "/v1/chat/completions", `{"model":"smollm2","messages":[{"role":"user","content":"x"}],"grammar":"root ::= \"7\"","logit_bias":[[39,false]]}`, 400, "logit_bias"},
		{"the same, streamed", "/v1/chat/completions", `{"model":"smollm2","stream":true,"messages":[{"role":"user","content":"x"}],"grammar":"root ::= \"7\"","logit_bias":[[39,false]]}`, 400, "logit_bias"},
		{"the same of a completion", "/v1/completions", `{"model":"smollm2","prompt":"x","grammar":"root ::= \"7\"","logit_bias":[[39,false]]}`, 400, "logit_bias"},
		{"token out of range", "/v1/completions", map[string]any{"model": "smollm2", "prompt": []int{99999999}}, 400, "prompt"},
		{"unknown path", "/v1/nothing", `{}`, 404, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			code, _, out := s.post(c.path, c.body)
			var e struct {
				Error struct {
					Message string
					Type    string
				}
			}
			if err := json.Unmarshal(out, &e); err != nil {
				t.Fatalf("status %d, body %.200s: %v", code, out, err)
			}
			if code != c.status || !strings.Contains(e.Error.Message, c.want) || e.Error.Type == "" {
				t.Errorf("status %d, error %+v; want %d and %q", code, e.Error, c.status, c.want)
			}
		})
	}
	if code, _, out := s.post("/v1/chat/completions", user("Hello", 4)); code != 200 {
		t.Errorf("after all that: status %d: %s", code, out)
	}
}

func TestWorkerKilled(t *testing.T) {
	s := serve(t, nil)
	pid := s.worker()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// the very next request is either answered by the new worker or told when to come back
	code, h, out := s.post("/v1/chat/completions", user("What is the capital of France?", 8))
	if code == http.StatusServiceUnavailable && h.Get("Retry-After") == "" {
		t.Errorf("503 without Retry-After: %s", out)
	}
	deadline := time.Now().Add(readyWithin)
	for code != 200 {
		if code != 503 || time.Now().After(deadline) {
			t.Fatalf("status %d: %s", code, out)
		}
		s.waitReady()
		code, _, out = s.post("/v1/chat/completions", user("What is the capital of France?", 8))
	}
	if now := s.worker(); now == pid {
		t.Errorf("worker pid is still %d", pid)
	}
}

func TestStreamSurvivesAKilledWorker(t *testing.T) {
	// Answers to a whole prompt and to a cached one are compared; BLAS would round the first otherwise.
	s := serve(t, nil, "HEARTH_CPU_BLAS=off")
	body := user("Write a long story about a lighthouse.", 120)
	body["ignore_eos"] = true
	read := func(kill bool) (string, int) {
		st := s.stream(body)
		defer st.close()
		var b strings.Builder
		n := 0
		for c, ok := st.next(t); ok; c, ok = st.next(t) {
			if len(c.Error) > 0 {
				t.Fatalf("error event: %s", c.Error)
			}
			b.WriteString(c.content())
			if c.content() != "" {
				if n++; kill && n == 10 {
					syscall.Kill(s.worker(), syscall.SIGKILL)
				}
			}
		}
		return b.String(), n
	}
	want, _ := read(false)
	got, n := read(true)
	if n < 50 || !strings.HasPrefix(want, got[:min(len(got), 40)]) {
		t.Errorf("after the kill: %d pieces %q\nundisturbed: %q", n, got, want)
	}
}

func TestShutdownLetsStreamsFinish(t *testing.T) {
	s := serve(t, nil)
	st := s.stream(user("Tell me about the sea.", 60))
	defer st.close()
	var once sync.Once
	done := false
	for c, ok := st.next(t); ok; c, ok = st.next(t) {
		once.Do(func() { s.cmd.Process.Signal(syscall.SIGTERM) })
		if len(c.Error) > 0 {
			t.Fatalf("error event: %s", c.Error)
		}
		if len(c.Choices) > 0 && c.Choices[0].FinishReason != nil {
			done = true
		}
	}
	if !done {
		t.Error("the stream was cut by the shutdown")
	}
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		t.Error("server still runs 20 s after its last stream ended")
	}
}
