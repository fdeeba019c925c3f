package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// chatServer answers chats with the pieces of script, one answer a request, and keeps the requests.
type chatServer struct {
	*httptest.Server
	script   []func(w http.ResponseWriter, r *http.Request)
	requests []chatRequest
}

func newChatServer(t *testing.T, script ...func(w http.ResponseWriter, r *http.Request)) *chatServer {
	t.Helper()
	s := &chatServer{script: script}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req chatRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		s.requests = append(s.requests, req)
		if len(s.script) < len(s.requests) {
			t.Errorf("unexpected request %+v", req)
			return
		}
		s.script[len(s.requests)-1](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func delta(w io.Writer, text, finish string) {
	reason := "null"
	if finish != "" {
		reason = `"` + finish + `"`
	}
	fmt.Fprintf(w, ": ping\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":%s}]}\n\n", text, reason)
	w.(http.Flusher).Flush()
}

func says(pieces ...string) func(w http.ResponseWriter, r *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, p := range pieces {
			delta(w, p, "")
		}
		delta(w, "", "stop")
		fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n")
	}
}

func newTalk(s *chatServer, input string) (*talk, *bytes.Buffer, *bytes.Buffer, chan os.Signal) {
	var out, errs bytes.Buffer
	ints := make(chan os.Signal)
	return &talk{
		client: &client{base: s.URL, http: s.Client()}, interrupts: ints, in: strings.NewReader(input), out: &out, err: &errs,
		request: chatRequest{Model: "m"},
	}, &out, &errs, ints
}

func TestTalkTakesTurns(t *testing.T) {
	s := newChatServer(t, says("Hel", "lo"), says("Bye"), says("again"))
	k, out, errs, _ := newTalk(s, "hi\n\n/help\n/nonsense\n\"\"\"two\nlines\"\"\"\n/system be brief\nfresh\n/bye\nnever\n")
	if err := k.loop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.String() != "Hello\nBye\nagain\n" {
		t.Errorf("answers %q", out)
	}
	want := [][]message{
		{{"user", "hi"}},
		{{"user", "hi"}, {"assistant", "Hello"}, {"user", "two\nlines"}},
		{{"system", "be brief"}, {"user", "fresh"}},
	}
	for i, r := range s.requests {
		if fmt.Sprint(r.Messages) != fmt.Sprint(want[i]) || !r.Stream {
			t.Errorf("request %d: %+v, want %v", i, r, want[i])
		}
	}
	if !strings.Contains(errs.String(), "no such command: /nonsense") || strings.Count(errs.String(), ">>> ") != 8 {
		t.Errorf("prompts %q", errs)
	}
}

// Ctrl-C ends the answer, not the chat; what was said stays in the conversation.
func TestTalkInterrupt(t *testing.T) {
	gone := make(chan struct{})
	s := newChatServer(t, func(w http.ResponseWriter, r *http.Request) {
		delta(w, "endless", "")
		<-r.Context().Done()
		close(gone)
	}, says("fine"))
	k, out, _, ints := newTalk(s, "one\ntwo\n")
	k.out = writerFunc(func(b []byte) (int, error) {
		if strings.Contains(string(b), "endless") {
			go func() { ints <- os.Interrupt }()
		}
		return out.Write(b)
	})
	if err := k.loop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-gone
	if out.String() != "endless\nfine\n" || len(s.requests) != 2 || s.requests[1].Messages[1].Content != "endless" {
		t.Errorf("answers %q, requests %+v", out, s.requests)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestTalkErrors(t *testing.T) {
	tooLong := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"too long","code":"context_length_exceeded","hint":"shorten it"}}`)
	}
	midway := func(w http.ResponseWriter, _ *http.Request) {
		delta(w, "par", "")
		fmt.Fprint(w, "data: {\"error\":{\"message\":\"worker died\"}}\n\n")
	}
	cut := func(w http.ResponseWriter, _ *http.Request) { delta(w, "par", "") }
	s := newChatServer(t, tooLong, midway, says("ok"), cut)
	k, out, errs, _ := newTalk(s, "a\nb\nc\nd\n")
	err := k.loop(t.Context())
	if err == nil || !strings.Contains(err.Error(), "before the answer was complete") {
		t.Errorf("a cut stream: %v", err)
	}
	if !strings.Contains(errs.String(), "too long") || !strings.Contains(errs.String(), "worker died") {
		t.Errorf("messages %q", errs)
	}
	// Failed turns are not part of the conversation.
	if len(s.requests[2].Messages) != 1 || out.String() != "par\nok\npar\n" {
		t.Errorf("requests %+v, answers %q", s.requests, out)
	}
}

func TestOnceReportsInterrupt(t *testing.T) {
	s := newChatServer(t, func(w http.ResponseWriter, r *http.Request) {
		delta(w, "x", "")
		<-r.Context().Done()
	})
	k, _, _, ints := newTalk(s, "")
	k.out = writerFunc(func(b []byte) (int, error) {
		if string(b) == "x" {
			go func() { ints <- os.Interrupt }()
		}
		return len(b), nil
	})
	if err := k.once(t.Context(), "p"); !errors.Is(err, errInterrupted) {
		t.Errorf("got %v", err)
	}
}

func TestErrorsHaveCodes(t *testing.T) {
	for status, code := range map[int]int{400: exitFailed, 401: exitFailed, 404: exitNotFound, 429: exitUnavailable, 503: exitUnavailable} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":"plain text"}`)
		}))
		c := &client{base: srv.URL, http: srv.Client()}
		_, err := c.do(t.Context(), http.MethodGet, "/", nil)
		if got, _ := classify(err); got != code || !strings.Contains(err.Error(), "plain text") {
			t.Errorf("status %d: code %d, %v", status, got, err)
		}
		srv.Close()
	}
}
