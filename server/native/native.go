// Package native serves what is neither OpenAI's nor Ollama's API: health and readiness, metrics, the tokenizer, the
// prompt that a chat becomes, and the state of the loaded models, in llama-server's forms where it has them and in
// Ollama's for /api/ps and /api/version.
//
// server makes one API and mounts its Routes; all handlers run concurrently and keep no state.
package native

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"hearth/engine"
	"hearth/server/api"
	"hearth/server/metrics"
)

// Config is what the API works with. All fields but DefaultModel and WriteTimeout must be set.
type Config struct {
	Models       api.Models
	Metrics      *metrics.Metrics
	DefaultModel string
	Version      string
	// RenderChat turns a chat request into the text of its prompt.
	RenderChat func(o *api.Object, info engine.Info) (string, error)
	// Draining reports whether the server is shutting down.
	Draining func() bool
	// WriteTimeout is how long a reply may wait for a client that does not read; 0: for ever.
	WriteTimeout time.Duration
}

// API holds the handlers.
type API struct {
	cfg     Config
	metrics http.Handler
}

// New makes the handlers.
func New(cfg Config) *API { return &API{cfg: cfg, metrics: cfg.Metrics.Handler()} }

// Routes lists the handlers and their paths.
func (a *API) Routes() []api.Route {
	return []api.Route{
		{Method: http.MethodGet, Paths: []string{"/"}, Handler: a.root},
		{Method: http.MethodGet, Paths: []string{"/health", "/v1/health"}, Handler: a.health},
		{Method: http.MethodGet, Paths: []string{"/ready", "/v1/ready"}, Handler: a.ready},
		{Method: http.MethodGet, Paths: []string{"/metrics"}, Handler: a.serveMetrics},
		{Method: http.MethodPost, Paths: []string{"/tokenize"}, Handler: a.tokenize},
		{Method: http.MethodPost, Paths: []string{"/detokenize"}, Handler: a.detokenize},
		{Method: http.MethodPost, Paths: []string{"/apply-template"}, Handler: a.applyTemplate},
		{Method: http.MethodGet, Paths: []string{"/props"}, Handler: a.props},
		{Method: http.MethodGet, Paths: []string{"/slots"}, Handler: a.slots},
		{Method: http.MethodGet, Paths: []string{"/api/ps"}, Handler: a.ps},
		{Method: http.MethodPost, Paths: []string{"/api/stop"}, Handler: a.stop},
		{Method: http.MethodGet, Paths: []string{"/api/version"}, Handler: a.version},
	}
}

func (a *API) root(c *gin.Context) error {
	c.String(http.StatusOK, "hearth %s is running\n", a.cfg.Version)
	return nil
}

// health says that the process answers; it does not look at models.
func (a *API) health(c *gin.Context) error {
	return api.WriteJSON(c.Writer, http.StatusOK, []byte(`{"status":"ok"}`), a.cfg.WriteTimeout)
}

// ready answers 200 when requests can be served, and 503 with what there is to wait for otherwise: the model that the
// server was started with. A server without one loads models when they are asked for, and is ready from the start.
func (a *API) ready(c *gin.Context) error {
	type model struct {
		Name     string  `json:"name"`
		State    string  `json:"state"`
		Progress float64 `json:"progress"`
		Error    string  `json:"error,omitempty"`
	}
	reply := struct {
		Status string  `json:"status"`
		Models []model `json:"models"`
	}{"unavailable", []model{}}
	for _, s := range a.cfg.Models.Loaded() {
		reply.Models = append(reply.Models, model{s.Name, string(s.State), s.Progress, s.Err})
		switch {
		case s.State == api.StateReady:
			reply.Status = "ready"
		case s.State == api.StateLoading && reply.Status != "ready":
			reply.Status = "loading"
		}
	}
	if a.cfg.DefaultModel == "" {
		reply.Status = "ready"
	}
	if a.cfg.Draining() {
		reply.Status = "stopping"
	}
	status := http.StatusOK
	if reply.Status != "ready" {
		status = http.StatusServiceUnavailable
		c.Header("Retry-After", "1")
	}
	c.PureJSON(status, reply)
	return nil
}

func (a *API) serveMetrics(c *gin.Context) error {
	a.metrics.ServeHTTP(c.Writer, c.Request)
	return nil
}

func (a *API) version(c *gin.Context) error {
	c.PureJSON(http.StatusOK, gin.H{"version": a.cfg.Version})
	return nil
}
