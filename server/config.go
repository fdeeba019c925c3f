package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"hearth/chat/template"
	"hearth/server/api"
)

// Models, ModelEntry and Status are what the front end needs to know about models; see package api.
type (
	Models     = api.Models
	ModelEntry = api.ModelEntry
	Status     = api.Status
)

// Config says how the front end behaves. The zero value is a server for the own machine, without keys.
type Config struct {
	// APIKeys lists the accepted keys ("Authorization: Bearer KEY" or "x-api-key: KEY"). Empty: no key is asked for.
	// GET /health and GET /ready never need one.
	APIKeys []string
	// CORSOrigins lists the web origins ("http://localhost:3000") whose pages may call the server; "*" allows all. Pages
	// of other origins get neither CORS headers nor an answer to anything but GET. Empty: none.
	CORSOrigins []string
	// AllowedHosts lists names, without port, that a request may carry in its Host header when it arrives on a loopback
	// address, beside localhost and the loopback addresses themselves. It is needed behind a local reverse proxy; the
	// check is what stops a web page from reaching the server by rebinding its own name to 127.0.0.1. "*" switches it off.
	AllowedHosts []string
	// MaxBodyBytes bounds a request body; larger ones get 413. 0: 10 MB.
	MaxBodyBytes int64
	// DefaultModel serves requests that name no model. Empty: such requests are served only while there is exactly one
	// model to choose.
	DefaultModel string
	// FallbackTemplate is the Jinja chat template for models that bring none. Empty: they refuse chats with a 400.
	FallbackTemplate string
	// TemplateBudget bounds the rendering of chat templates; zero fields: template.DefaultBudget.
	TemplateBudget template.Budget
	// PingInterval is how long a stream may be silent before a comment is sent. 0: 15 s; negative: no pings.
	PingInterval time.Duration
	// ReadHeaderTimeout bounds the reading of a request's header. 0: 10 s.
	ReadHeaderTimeout time.Duration
	// BodyTimeout bounds the reading of a whole request. 0: 60 s.
	BodyTimeout time.Duration
	// IdleTimeout is how long an idle connection is kept. 0: 120 s.
	IdleTimeout time.Duration
	// WriteTimeout is how long one write to a client that does not read may block. 0: 60 s.
	WriteTimeout time.Duration
	// ShutdownGrace is how long running requests may take to finish after Serve's context ends. 0: 30 s.
	ShutdownGrace time.Duration
}

// Deps is what a Server works with.
type Deps struct {
	Models  Models
	Logger  *slog.Logger
	Version string // of hearth, such as "0.1.0"
	// Collectors are more metrics for GET /metrics, such as those of the GPUs.
	Collectors []prometheus.Collector
	// Doctor answers GET /api/doctor; it keeps the network out itself. Nil: there is no such path.
	Doctor http.Handler
}

// Defaults of Config.
const (
	DefaultMaxBodyBytes      = 10_000_000
	DefaultPingInterval      = 15 * time.Second
	DefaultReadHeaderTimeout = 10 * time.Second
	DefaultBodyTimeout       = 60 * time.Second
	DefaultIdleTimeout       = 120 * time.Second
	DefaultWriteTimeout      = 60 * time.Second
	DefaultShutdownGrace     = 30 * time.Second
)

// Validate names the first bad field.
func (c *Config) Validate() error {
	for i, k := range c.APIKeys {
		if strings.TrimSpace(k) == "" {
			return fmt.Errorf("server config: api_keys[%d] is empty", i)
		}
	}
	for i, o := range c.CORSOrigins {
		if o == "*" || o == "null" {
			continue
		}
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
			return fmt.Errorf("server config: cors_origins[%d] is %q, must be scheme://host[:port]", i, o)
		}
	}
	if c.MaxBodyBytes < 0 {
		return fmt.Errorf("server config: max_body_bytes must not be negative")
	}
	for name, d := range map[string]time.Duration{
		"read_header_timeout": c.ReadHeaderTimeout, "body_timeout": c.BodyTimeout, "idle_timeout": c.IdleTimeout,
		"write_timeout": c.WriteTimeout, "shutdown_grace": c.ShutdownGrace,
	} {
		if d < 0 {
			return fmt.Errorf("server config: %s must not be negative", name)
		}
	}
	return nil
}

func (c *Config) applyDefaults() {
	orDefault(&c.MaxBodyBytes, DefaultMaxBodyBytes)
	orDefault(&c.PingInterval, DefaultPingInterval)
	orDefault(&c.ReadHeaderTimeout, DefaultReadHeaderTimeout)
	orDefault(&c.BodyTimeout, DefaultBodyTimeout)
	orDefault(&c.IdleTimeout, DefaultIdleTimeout)
	orDefault(&c.WriteTimeout, DefaultWriteTimeout)
	orDefault(&c.ShutdownGrace, DefaultShutdownGrace)
}

func orDefault[T comparable](p *T, def T) {
	var zero T
	if *p == zero {
		*p = def
	}
}
