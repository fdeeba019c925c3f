package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"hearth/server/api"
	"hearth/server/metrics"
	"hearth/server/native"
	"hearth/server/openai"
)

// Server is the front end. Make it with New.
type Server struct {
	cfg      Config
	deps     Deps
	metrics  *metrics.Metrics
	keys     []keyHash
	handler  http.Handler
	draining atomic.Bool
	// hard ends when running requests must stop; its cause is what their clients are told.
	hard     context.Context
	hardStop context.CancelCauseFunc
}

// New checks the configuration and builds the routes. It starts nothing.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Models == nil {
		return nil, errors.New("server: no models given")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.applyDefaults()
	s := &Server{cfg: cfg, deps: deps, keys: hashKeys(cfg.APIKeys), metrics: metrics.New(deps.Version, deps.Models.Loaded)}
	if err := s.metrics.Register(deps.Collectors...); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.hard, s.hardStop = context.WithCancelCause(context.Background())
	s.handler = s.routes()
	return s, nil
}

// Handler serves all routes, for tests and for embedding.
func (s *Server) Handler() http.Handler { return s.handler }

// Metrics is the registry behind GET /metrics.
func (s *Server) Metrics() *metrics.Metrics { return s.metrics }

func (s *Server) routes() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.RedirectTrailingSlash = false
	r.ContextWithFallback = true
	r.Use(s.observe, s.checkHost, s.checkOrigin, s.checkKey, s.limitBody)
	r.NoRoute(s.handle(func(c *gin.Context) error {
		return &api.Error{
			Status: http.StatusNotFound, Type: api.TypeInvalidRequest, Code: "unknown_url", Kind: "not_found",
			Message: fmt.Sprintf("there is no %s %s here", c.Request.Method, c.Request.URL.Path),
		}
	}))
	r.NoMethod(s.handle(func(c *gin.Context) error {
		return &api.Error{
			Status: http.StatusMethodNotAllowed, Type: api.TypeInvalidRequest, Code: "method_not_allowed", Kind: "not_found",
			Message: fmt.Sprintf("%s does not work on %s", c.Request.Method, c.Request.URL.Path),
		}
	}))

	templates := api.NewTemplates(s.cfg.FallbackTemplate, s.cfg.TemplateBudget)
	stream := api.StreamOptions{PingInterval: s.cfg.PingInterval, WriteTimeout: s.cfg.WriteTimeout}
	oai := openai.New(openai.Config{
		Models: s.deps.Models, Metrics: s.metrics, Templates: templates, DefaultModel: s.cfg.DefaultModel,
		Version: s.deps.Version, Stream: stream,
	})
	nat := native.New(native.Config{
		Models: s.deps.Models, Metrics: s.metrics, DefaultModel: s.cfg.DefaultModel, Version: s.deps.Version,
		RenderChat: oai.RenderChat, Draining: s.draining.Load, WriteTimeout: s.cfg.WriteTimeout,
	})
	for _, route := range append(oai.Routes(), nat.Routes()...) {
		h := s.handle(route.Handler)
		for _, path := range route.Paths {
			r.Handle(route.Method, path, h)
			if route.Method == http.MethodGet {
				r.Handle(http.MethodHead, path, h)
			}
		}
	}
	if s.deps.Doctor != nil {
		r.GET("/api/doctor", gin.WrapH(s.deps.Doctor))
	}
	return r
}

// errStopping is what clients are told whose requests outlive the shutdown's grace.
func errStopping() error {
	return &api.Error{
		Status: http.StatusServiceUnavailable, Type: api.TypeServer, Code: "server_stopping", Kind: "stopping",
		Message: "the server is shutting down", RetryAfter: 5 * time.Second,
	}
}

// lastWords is how long requests that outlived the grace have to tell their clients.
const lastWords = 2 * time.Second

// Serve answers on the listeners until ctx ends, then lets running requests finish for ShutdownGrace, ends the rest
// with an error that their clients see, and returns. It closes the listeners. The error is nil after an orderly end.
// A Server serves once.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return errors.New("server: no listener given")
	}
	srv := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.deps.Logger.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, len(listeners))
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve %s: %w", l.Addr(), err)
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.draining.Store(true)
	s.deps.Logger.Info("shutting down", "grace", s.cfg.ShutdownGrace)
	err = errors.Join(err, s.shutdown(srv))
	wg.Wait()
	return err
}

func (s *Server) shutdown(srv *http.Server) error {
	grace, cancel := context.WithTimeout(context.Background(), s.cfg.ShutdownGrace)
	defer cancel()
	if err := srv.Shutdown(grace); err == nil {
		return nil
	}
	s.hardStop(errStopping())
	last, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	if err := srv.Shutdown(last); err == nil {
		return nil
	}
	return srv.Close()
}
