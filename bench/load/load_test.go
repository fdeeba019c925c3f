package load

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeServer answers like an OpenAI server with n words per answer and counts what is in flight.
type fakeServer struct {
	words            int
	inflight, peak   atomic.Int64
	gone             atomic.Int64
	mu               sync.Mutex
	bodies           []wireRequest
	failEvery, count atomic.Int64
	hold             chan struct{} // when set, answers stall after the role event until it is closed
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req wireRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	f.mu.Lock()
	f.bodies = append(f.bodies, req)
	f.mu.Unlock()
	n := f.inflight.Add(1)
	defer f.inflight.Add(-1)
	for p := f.peak.Load(); n > p && !f.peak.CompareAndSwap(p, n); p = f.peak.Load() {
	}
	if e := f.failEvery.Load(); e > 0 && f.count.Add(1)%e == 0 {
		http.Error(w, `{"error":{"message":"busy"}}`, http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flush := w.(http.Flusher).Flush
	fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`+"\n\n")
	flush()
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-r.Context().Done():
			f.gone.Add(1)
			return
		}
	}
	for i := range f.words {
		if r.Context().Err() != nil {
			f.gone.Add(1)
			return
		}
		fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"content":"w%d "}}]}`+"\n\n", i)
		flush()
	}
	fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`+"\n\n")
	fmt.Fprintf(w, `data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":4}}}`+"\n\n", f.words)
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func start(t *testing.T, f *fakeServer) *Client {
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	return &Client{BaseURL: srv.URL, Model: "m", HTTP: srv.Client(), IgnoreEOS: true}
}

func TestClosedLoopCountsTokensAndKeepsConcurrency(t *testing.T) {
	f := &fakeServer{words: 5}
	r, err := Run(context.Background(), start(t, f), Spec{Workload: Chat, Clients: 3, Requests: 12, PromptWords: 4, MaxTokens: 5})
	if err != nil {
		t.Fatal(err)
	}
	if r.Completed != 12 || r.Errors != 0 || r.CompletionTokens != 60 || r.PromptTokens != 120 || r.CachedTokens != 48 {
		t.Errorf("report = %+v", r)
	}
	if r.ITL.N != 12*4 || r.TTFT.N != 12 {
		t.Errorf("itl n = %d, ttft n = %d; want 48 gaps and 12 first tokens", r.ITL.N, r.TTFT.N)
	}
	if p := f.peak.Load(); p > 3 {
		t.Errorf("%d requests at once, want at most 3", p)
	}
}

func TestErrorsAreCountedByText(t *testing.T) {
	f := &fakeServer{words: 1}
	f.failEvery.Store(2)
	r, err := Run(context.Background(), start(t, f), Spec{Workload: Chat, Clients: 1, Requests: 6, PromptWords: 1, MaxTokens: 1})
	if err != nil || r.Errors != 3 || r.Completed != 3 || len(r.ErrorText) != 1 {
		t.Errorf("err %v, report %+v; want 3 errors of one text", err, r)
	}
}

func TestCancelClosesTheConnection(t *testing.T) {
	f := &fakeServer{words: 3, hold: make(chan struct{})}
	c := start(t, f)
	s := c.Do(context.Background(), Item{MaxTokens: 3, CancelAfter: 0, CancelDelay: 10 * time.Millisecond, Messages: []Message{{"user", "x"}}})
	if !s.Cancelled || s.Err != "" {
		t.Errorf("sample = %+v, want cancelled", s)
	}
}

func TestStreamErrorsAreSeen(t *testing.T) {
	for name, body := range map[string]string{
		"error event": "data: {\"error\":{\"message\":\"boom\"}}\n\n",
		"cut":         "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n",
		"not json":    "data: {\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
			defer srv.Close()
			c := &Client{BaseURL: srv.URL, HTTP: srv.Client()}
			if s := c.Do(context.Background(), Item{CancelAfter: -1}); s.Err == "" {
				t.Errorf("sample = %+v, want an error", s)
			}
		})
	}
}

func TestWorkloadsAreRepeatableAndShaped(t *testing.T) {
	spec := Spec{Workload: SharedPrefix, PrefixWords: 7, PromptWords: 3, MaxTokens: 2, Seed: 9}
	a, b := spec.item(1), spec.item(1)
	if a.Messages[0] != b.Messages[0] || a.Messages[1] != b.Messages[1] {
		t.Error("the same spec and index gave different items")
	}
	if c := spec.item(2); c.Messages[0] != a.Messages[0] || c.Messages[1] == a.Messages[1] {
		t.Error("shared prefix must be equal and user prompts must differ")
	}
	if n := len(strings.Fields(a.Messages[0].Content)); n != 7 {
		t.Errorf("prefix has %d words, want 7", n)
	}
	spec = Spec{Workload: Branching, Branches: 2, PrefixWords: 4, PromptWords: 1, MaxTokens: 1}
	if spec.item(0).Messages[0] != spec.item(1).Messages[0] || spec.item(1).Messages[0] == spec.item(2).Messages[0] {
		t.Error("branches of one group share the trunk, groups do not")
	}
	spec = Spec{Workload: Cancel, CancelShare: 0.5, MaxTokens: 8, PromptWords: 1}
	cut := 0
	for i := range 200 {
		if it := spec.item(i); it.CancelAfter >= 0 {
			cut++
			if it.CancelAfter == 0 && it.CancelDelay == 0 {
				t.Fatal("a cut before the first token needs a delay")
			}
		}
	}
	if cut < 60 || cut > 140 {
		t.Errorf("%d of 200 are cut, want about half", cut)
	}
}

func TestTurnsSendHistoryBack(t *testing.T) {
	f := &fakeServer{words: 2}
	r, err := Run(context.Background(), start(t, f), Spec{Workload: Turns, Clients: 1, Turns: 3, Requests: 3, PromptWords: 1, MaxTokens: 2})
	if err != nil || r.Completed != 3 {
		t.Fatalf("err %v, report %+v", err, r)
	}
	last := f.bodies[2].Messages
	if len(last) != 5 || last[1].Role != "assistant" || last[1].Content != "w0 w1 " {
		t.Errorf("third turn sent %+v", last)
	}
}

// A client that holds two conversations asks in one and the other, and begins the next when one has ended.
func TestConversationsTakeTurns(t *testing.T) {
	f := &fakeServer{words: 1}
	r, err := Run(context.Background(), start(t, f), Spec{Workload: Turns, Clients: 1, Turns: 2, Conversations: 2, Requests: 6, PromptWords: 1, MaxTokens: 1})
	if err != nil || r.Completed != 6 {
		t.Fatalf("err %v, report %+v", err, r)
	}
	var lengths []int
	begins := map[string]int{}
	for _, b := range f.bodies {
		lengths = append(lengths, len(b.Messages))
		begins[b.Messages[0].Content]++
	}
	if !slices.Equal(lengths, []int{1, 1, 3, 3, 1, 3}) || len(begins) != 3 {
		t.Errorf("messages %v of %d conversations", lengths, len(begins))
	}
}

func TestMixedSplitsGaps(t *testing.T) {
	t0 := time.Now()
	at := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }
	m := mixedReport([]Sample{
		{Class: "injected", Start: at(100), E2E: 50 * time.Millisecond, TTFT: 50 * time.Millisecond},
		{Class: "decoder", Gaps: []time.Duration{10e6, 10e6, 60e6}, GapEnds: []time.Time{at(50), at(60), at(150)}},
	})
	if m.Quiet.N != 2 || m.Injected.N != 1 || m.P99OverQuietMedian != 6 {
		t.Errorf("mixed = %+v", m)
	}
}

func TestDistribution(t *testing.T) {
	var v []time.Duration
	for i := 100; i >= 1; i-- {
		v = append(v, time.Duration(i)*time.Millisecond)
	}
	d := distribution(v)
	if d.P50 != 50 || d.P99 != 99 || d.P90 != 90 || d.Max != 100 || d.Mean != 50.5 {
		t.Errorf("distribution = %+v", d)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	for want, spec := range map[string]Spec{
		"clients":  {Workload: Chat, Requests: 1, MaxTokens: 1},
		"requests": {Workload: Chat, Clients: 1, MaxTokens: 1},
		"tokens":   {Workload: Chat, Clients: 1, Requests: 1},
		"share":    {Workload: Cancel, Clients: 1, Requests: 1, MaxTokens: 1, CancelShare: 2},
		"branches": {Workload: Branching, Clients: 1, Requests: 1, MaxTokens: 1},
		"workload": {Workload: "x", Clients: 1, Requests: 1, MaxTokens: 1},
	} {
		if err := spec.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

func TestSteadyCountsOnlyTheSharedWindow(t *testing.T) {
	t0 := time.Now()
	at := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }
	got, context := steady([]Sample{
		{Start: t0, TTFT: 10 * time.Millisecond, PromptTokens: 100, CompletionTokens: 4, GapEnds: []time.Time{at(20), at(30), at(40)}},
		{Start: t0, TTFT: 20 * time.Millisecond, PromptTokens: 200, CompletionTokens: 4, GapEnds: []time.Time{at(30), at(40), at(50)}},
	})
	// both decode from 20 to 40 ms: two events each
	if got < 199 || got > 201 {
		t.Errorf("steady = %.1f tok/s, want 200", got)
	}
	if want := (100 + 2 + 1 + 200 + 1 + 1) / 2.0; context != want {
		t.Errorf("mean context %v, want %v", context, want)
	}
	if got, context := steady([]Sample{{Start: t0, TTFT: time.Millisecond}}); got != 0 || context != 0 {
		t.Errorf("steady of one event = %v with %v tokens, want 0", got, context)
	}
}
