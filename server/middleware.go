package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"hearth/server/api"
)

const errorKey = "hearth.error"

// handle adapts a handler that returns an error: the error is kept for the log and, when nothing was sent yet, written.
func (s *Server) handle(h func(c *gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := h(c); err != nil {
			s.reject(c, err)
		}
	}
}

// reject ends the request with err.
func (s *Server) reject(c *gin.Context, err error) {
	e := api.Classify(api.CauseOf(c.Request.Context(), err))
	c.Set(errorKey, e)
	c.Abort()
	if !c.Writer.Written() {
		api.WriteError(c.Writer, e)
	}
}

// observe is the outermost middleware: request id, context, recovery, access log, request metrics.
func (s *Server) observe(c *gin.Context) {
	start := time.Now()
	info := &api.Request{ID: requestID(c.GetHeader("X-Request-Id")), Start: start}
	ctx, cancel := context.WithCancelCause(api.WithRequest(c.Request.Context(), info))
	stop := context.AfterFunc(s.hard, func() { cancel(context.Cause(s.hard)) })
	defer func() {
		stop()
		cancel(nil)
	}()
	c.Request = c.Request.WithContext(ctx)
	c.Writer = &stampedWriter{ResponseWriter: c.Writer, info: info}
	c.Header("X-Request-Id", info.ID)
	c.Header("Openai-Version", "2020-10-01")

	defer s.finish(c, info)
	defer func() {
		if p := recover(); p != nil {
			s.reject(c, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	c.Next()
}

// finish logs and counts a request that is over.
func (s *Server) finish(c *gin.Context, info *api.Request) {
	status := c.Writer.Status()
	var failure *api.Error
	if v, ok := c.Get(errorKey); ok {
		failure = v.(*api.Error)
		status = failure.Status // the real one, also when the 200 of a stream had gone out
	}
	route := c.FullPath()
	if route == "" {
		route = "unknown"
	}
	s.metrics.Request(route, status)
	level := slog.LevelInfo
	switch route {
	case "/health", "/v1/health", "/ready", "/v1/ready", "/metrics":
		level = slog.LevelDebug // probes come every few seconds
	}
	attrs := []slog.Attr{
		slog.String("id", info.ID), slog.String("method", c.Request.Method), slog.String("path", c.Request.URL.Path),
		slog.Int("status", status), slog.Duration("took", time.Since(info.Start)), slog.Int("bytes", max(c.Writer.Size(), 0)),
		slog.String("client", c.Request.RemoteAddr),
	}
	if failure != nil {
		s.metrics.Error(failure.Kind)
		attrs = append(attrs, slog.String("error", failure.Error()))
		if status >= http.StatusInternalServerError {
			level = slog.LevelError
		}
	}
	s.deps.Logger.LogAttrs(context.Background(), level, "request", attrs...)
}

// stampedWriter adds what is known when the header goes out: the time it took, and where the model runs.
type stampedWriter struct {
	gin.ResponseWriter
	info    *api.Request
	stamped bool
}

// Unwrap lets http.ResponseController find the connection.
func (w *stampedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *stampedWriter) WriteHeader(code int) {
	w.stamp()
	w.ResponseWriter.WriteHeader(code)
}

func (w *stampedWriter) Write(b []byte) (int, error) {
	w.stamp()
	return w.ResponseWriter.Write(b)
}

// Response headers of hearth's own. docs/devices.md explains them.
const (
	headerBackend  = "X-Hearth-Backend"
	headerDevice   = "X-Hearth-Device"
	headerFallback = "X-Hearth-Fallback"
)

func (w *stampedWriter) stamp() {
	if w.stamped {
		return
	}
	w.stamped = true
	h := w.Header()
	h.Set("Openai-Processing-Ms", strconv.FormatInt(time.Since(w.info.Start).Milliseconds(), 10))
	p := w.info.Placement()
	if p == nil {
		return
	}
	h.Set(headerBackend, p.Backend)
	if p.Device != "" {
		h.Set(headerDevice, headerText(p.Device))
	}
	if p.Fallback != "" {
		h.Set(headerFallback, headerText(p.Fallback))
	}
}

// headerText makes a text fit for a header: one line of printable ASCII, at most 400 bytes.
func headerText(s string) string {
	const most = 400 // proxies bound the whole header at 4 or 8 KiB
	var b strings.Builder
	for _, c := range s {
		if b.Len() == most {
			break
		}
		switch {
		case c >= ' ' && c <= '~':
			b.WriteByte(byte(c))
		case c == '\n' || c == '\t' || c == '\r':
			b.WriteByte(' ')
		default:
			b.WriteByte('?')
		}
	}
	return strings.TrimSpace(b.String())
}

// requestID returns the client's id when it is sane, or a new one.
func requestID(given string) string {
	if n := len(given); n > 0 && n <= 128 {
		sane := true
		for _, c := range []byte(given) {
			if c <= ' ' || c > '~' || c == '"' || c == '\\' {
				sane = false
				break
			}
		}
		if sane {
			return given
		}
	}
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return "req_" + hex.EncodeToString(b[:])
}

// limitBody bounds what can be read of the body. A body that announces itself too large is refused at once.
func (s *Server) limitBody(c *gin.Context) {
	if c.Request.ContentLength > s.cfg.MaxBodyBytes {
		s.reject(c, &http.MaxBytesError{Limit: s.cfg.MaxBodyBytes})
		return
	}
	if c.Request.Body == nil || c.Request.Body == http.NoBody {
		return
	}
	body := &timedBody{ReadCloser: c.Request.Body, ctl: http.NewResponseController(c.Writer)}
	_ = body.ctl.SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout)) // recorders in tests have none
	c.Request.Body = http.MaxBytesReader(c.Writer, body, s.cfg.MaxBodyBytes)
}

// timedBody lifts the read deadline when the body is read. http.Server.ReadTimeout would stay in force, and end long
// answers: net/http reads on in the background to notice that the client goes away.
type timedBody struct {
	io.ReadCloser
	ctl *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		_ = b.ctl.SetReadDeadline(time.Time{})
	}
	return n, err
}

func forbidden(code, message, hint string) error {
	return &api.Error{Status: http.StatusForbidden, Type: api.TypeInvalidRequest, Code: code, Kind: "forbidden", Message: message, Hint: hint, Cause: errors.New(code)}
}
