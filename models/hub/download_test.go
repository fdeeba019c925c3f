package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// cutAfter sends n bytes of the body it promised and drops the connection.
func cutAfter(w http.ResponseWriter, body []byte, n int) {
	w.WriteHeader(http.StatusOK)
	w.Write(body[:n])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// serveRange answers like a storage host: 200 or 206 with the ETag.
func serveRange(w http.ResponseWriter, r *http.Request, body []byte, etag string) {
	w.Header().Set("ETag", etag)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(body)))
}

func TestDownloadThroughMishaps(t *testing.T) {
	body, sum := toy(t, 1)
	n := len(body)
	cases := []struct {
		name    string
		handler func(call int, w http.ResponseWriter, r *http.Request)
		calls   int
		promise bool // the client knows size and hash beforehand
	}{
		{"plain", func(_ int, w http.ResponseWriter, r *http.Request) { serveRange(w, r, body, `"a"`) }, 1, true},
		{"cut twice, then the rest", func(call int, w http.ResponseWriter, r *http.Request) {
			switch call {
			case 1:
				w.Header().Set("Content-Length", strconv.Itoa(n))
				w.Header().Set("ETag", `"a"`)
				cutAfter(w, body, n/3)
			case 2:
				if got := r.Header.Get("Range"); got != fmt.Sprintf("bytes=%d-", n/3) {
					t.Errorf("range %q", got)
				}
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", n/3, n-1, n))
				w.Header().Set("Content-Length", strconv.Itoa(n-n/3))
				w.WriteHeader(http.StatusPartialContent)
				w.Write(body[n/3 : n/2])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			default:
				serveRange(w, r, body, `"a"`)
			}
		}, 3, false},
		{"ranges are ignored", func(call int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(n))
			if call == 1 {
				cutAfter(w, body, n/2)
			}
			w.Write(body)
		}, 2, true},
		{"another range than asked for", func(call int, w http.ResponseWriter, r *http.Request) {
			switch call {
			case 1:
				w.Header().Set("Content-Length", strconv.Itoa(n))
				cutAfter(w, body, n/2)
			case 2:
				w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", n-1, n))
				w.WriteHeader(http.StatusPartialContent)
				w.Write(body)
			default:
				if r.Header.Get("Range") != "" {
					t.Error("asked for a range again")
				}
				w.Write(body)
			}
		}, 3, true},
		{"range not satisfiable", func(call int, w http.ResponseWriter, r *http.Request) {
			switch call {
			case 1:
				w.Header().Set("Content-Length", strconv.Itoa(n))
				cutAfter(w, body, n/2)
			case 2:
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			default:
				w.Write(body)
			}
		}, 3, true},
		{"the file changed on the way", func(call int, w http.ResponseWriter, r *http.Request) {
			if call == 1 {
				w.Header().Set("Content-Length", strconv.Itoa(n))
				w.Header().Set("ETag", `"old"`)
				cutAfter(w, make([]byte, n), n/2)
			}
			serveRange(w, r, body, `"new"`) // If-Range says "old", so this is the whole file
		}, 2, false},
		{"busy, then fine", func(call int, w http.ResponseWriter, r *http.Request) {
			if call <= 2 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.Write(body)
		}, 3, true},
		{"a wrong copy, then the right one", func(call int, w http.ResponseWriter, r *http.Request) {
			if call == 1 {
				w.Write(make([]byte, n))
				return
			}
			w.Write(body)
		}, 2, true},
		{"more bytes than announced", func(call int, w http.ResponseWriter, r *http.Request) {
			if call == 1 {
				w.(http.Flusher).Flush() // chunked: no length
				w.Write(append(body[:n:n], "more"...))
				return
			}
			w.Write(body)
		}, 2, true},
		{"no length at all", func(_ int, w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			w.Write(body)
		}, 1, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.handler(int(calls.Add(1)), w, r)
			}))
			defer srv.Close()
			tr := transfer{source: "test", url: srv.URL + "/m.gguf", dst: filepath.Join(t.TempDir(), "m.gguf"), size: -1}
			if c.promise {
				tr.size, tr.sha256 = int64(n), sum
			}
			f, err := testHub(t, nil).download(t.Context(), tr, &recorder{})
			if err != nil {
				t.Fatal(err)
			}
			sameFile(t, f.Path, body)
			if f.SHA256 != sum || f.Size != int64(n) || int(calls.Load()) != c.calls {
				t.Errorf("%d requests (want %d), %d bytes, sum %s", calls.Load(), c.calls, f.Size, f.SHA256)
			}
			if left, _ := filepath.Glob(tr.dst + ".*"); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func TestDownloadFails(t *testing.T) {
	body, sum := toy(t, 1)
	cases := []struct {
		name    string
		handler http.HandlerFunc
		kind    error
		calls   int
	}{
		{"always a wrong copy", func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, len(body))) }, ErrHash, 2},
		{"another size", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)-1))
			w.Write(body[1:])
		}, ErrHash, 1},
		{"unauthorised", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401) }, ErrGated, 1},
		{"forbidden", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(403) }, ErrGated, 1},
		{"hidden by 401", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Error-Code", "RepoNotFound")
			w.WriteHeader(401)
		}, ErrNotFound, 1},
		{"gone", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, ErrNotFound, 1},
		{"never well", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(502) }, nil, 4},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				c.handler(w, r)
			}))
			defer srv.Close()
			dst := filepath.Join(t.TempDir(), "m.gguf")
			_, err := testHub(t, nil).download(t.Context(), transfer{
				source: "test", url: srv.URL, dst: dst, size: int64(len(body)), sha256: sum,
			}, &recorder{})
			he, ok := errors.AsType[*Error](err)
			if !ok || c.kind != nil && !errors.Is(err, c.kind) || int(calls.Load()) != c.calls {
				t.Errorf("%d requests (want %d): %v", calls.Load(), c.calls, err)
			}
			if ok && he.Source != "test" {
				t.Errorf("source %q", he.Source)
			}
			if _, err := os.Stat(dst); err == nil {
				t.Error("a bad file became visible")
			}
		})
	}
}

// A transfer that was interrupted by the user goes on in the next process.
func TestDownloadResumesLater(t *testing.T) {
	body, sum := toy(t, 1)
	half := len(body) / 2
	var second atomic.Value
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "" {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.Write(body[:half])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		second.Store(r.Header.Get("Range"))
		serveRange(w, r, body, `"a"`)
	}))
	defer srv.Close()
	tr := transfer{source: "test", url: srv.URL, dst: filepath.Join(t.TempDir(), "m.gguf"), size: int64(len(body)), sha256: sum}
	ctx, cancel := context.WithCancel(t.Context())
	rec := &recorder{}
	rec.onSet = func(n int64) {
		if n == int64(half) {
			cancel()
		}
	}
	if _, err := testHub(t, nil).download(ctx, tr, rec); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	f, err := testHub(t, nil).download(t.Context(), tr, rec)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("bytes=%d-", half); second.Load() != want {
		t.Errorf("second request for %v, want %s", second.Load(), want)
	}
	sameFile(t, f.Path, body)
}

func TestDownloadStalls(t *testing.T) {
	body, sum := toy(t, 1)
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.Write(body[:100])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		serveRange(w, r, body, `"a"`)
	}))
	defer srv.Close()
	rec := &recorder{}
	h := testHub(t, func(c *Config) { c.Stall = 50 * time.Millisecond })
	_, err := h.download(t.Context(), transfer{source: "test", url: srv.URL, dst: filepath.Join(t.TempDir(), "m.gguf"), size: int64(len(body)), sha256: sum}, rec)
	if err != nil || calls.Load() != 2 || len(rec.notes) != 1 || !strings.Contains(rec.notes[0], "no data for") {
		t.Errorf("%d requests, notes %q, %v", calls.Load(), rec.notes, err)
	}
}

func TestRetryAfter(t *testing.T) {
	d := &downloader{Hub: testHub(t, nil)}
	resp := &http.Response{StatusCode: 429, Status: "429 Too Many Requests", Header: http.Header{"Retry-After": {"7"}}}
	if p := d.pause(1, statusError("x", resp)); p != 7*time.Second {
		t.Errorf("pause %s", p)
	}
	resp.Header.Set("Retry-After", "100000")
	if p := d.pause(1, statusError("x", resp)); p != 2*time.Minute {
		t.Errorf("pause %s is not bounded", p)
	}
}
