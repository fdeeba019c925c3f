// Package metrics owns hearth's Prometheus metrics: one registry, base units, histograms for what users feel (time to
// first token, inter-token latency, queue time, duration). The HTTP adapters feed it; GET /metrics reads it. All methods
// may be called from any goroutine.
package metrics

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hearth/engine"
	"hearth/server/api"
)

// Metrics is the registry and its instruments.
type Metrics struct {
	registry *prometheus.Registry

	ttft, itl, queue, duration *prometheus.HistogramVec
	tokens                     *prometheus.CounterVec
	requests                   *prometheus.CounterVec
	errors                     *prometheus.CounterVec

	models sync.Map // name -> *Model
}

// Model holds one model's instruments, looked up once so that a token costs one observation and no map look-up.
type Model struct {
	ttft, itl, queue, duration prometheus.Observer
	prompt, cached, completion prometheus.Counter
}

// Buckets in seconds. TTFT spans a cached prompt on a GPU (5 ms) to a long prompt on a CPU (minutes); ITL spans 1 ms
// (small model, GPU) to 2.5 s (large model, CPU).
func ttftBuckets() []float64 {
	return []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 180}
}

func itlBuckets() []float64 {
	return []float64{.001, .0025, .005, .0075, .01, .015, .02, .03, .04, .05, .075, .1, .15, .25, .5, 1, 2.5}
}

func durationBuckets() []float64 {
	return []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}
}

func queueBuckets() []float64 {
	return []float64{.001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 180}
}

// New makes a registry with hearth's metrics, the state that loaded reports at scrape time, and those of the Go
// runtime and process. version becomes the label of hearth_build_info.
func New(version string, loaded func() []api.Status) *Metrics {
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"model"})
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		ttft:     histogram("hearth_time_to_first_token_seconds", "Time from the request's arrival to its first token, loading and queueing included.", ttftBuckets()),
		itl:      histogram("hearth_inter_token_latency_seconds", "Time between two tokens of one choice.", itlBuckets()),
		queue:    histogram("hearth_queue_time_seconds", "Time a request waited in the worker's queue.", queueBuckets()),
		duration: histogram("hearth_request_duration_seconds", "Time from a generation request's arrival to its end.", durationBuckets()),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hearth_tokens_total", Help: "Tokens by kind: prompt (all), cached (prompt tokens not computed again), completion. Of requests whose clients went away, what was computed.",
		}, []string{"model", "kind"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hearth_requests_total", Help: "HTTP requests by route and status; 499 means that the client went away.",
		}, []string{"route", "code"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hearth_errors_total", Help: "Requests that failed, by kind of error.",
		}, []string{"kind"}),
	}
	m.registry.MustRegister(m.ttft, m.itl, m.queue, m.duration, m.tokens, m.requests, m.errors,
		&stateCollector{loaded: loaded, descs: stateDescs()},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "hearth_build_info", Help: "Always 1; the label says which hearth this is.", ConstLabels: prometheus.Labels{"version": version},
		}, func() float64 { return 1 }),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Register adds somebody else's metrics. The error says which are there already.
func (m *Metrics) Register(more ...prometheus.Collector) error {
	for _, c := range more {
		if err := m.registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// Handler serves the registry.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Gatherer gives tests and embedders access to the registry.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Request counts a finished HTTP request. route is the pattern, not the path, so that ids do not become labels.
func (m *Metrics) Request(route string, code int) {
	m.requests.WithLabelValues(route, strconv.Itoa(code)).Inc()
}

// Error counts a failed request.
func (m *Metrics) Error(kind string) { m.errors.WithLabelValues(kind).Inc() }

// Model returns the instruments of the named model, which must be the name of a model that was acquired.
func (m *Metrics) Model(name string) *Model {
	if got, ok := m.models.Load(name); ok {
		return got.(*Model)
	}
	made := &Model{
		ttft: m.ttft.WithLabelValues(name), itl: m.itl.WithLabelValues(name),
		queue: m.queue.WithLabelValues(name), duration: m.duration.WithLabelValues(name),
		prompt: m.tokens.WithLabelValues(name, "prompt"), cached: m.tokens.WithLabelValues(name, "cached"),
		completion: m.tokens.WithLabelValues(name, "completion"),
	}
	got, _ := m.models.LoadOrStore(name, made)
	return got.(*Model)
}

// FirstToken observes the time to the first token.
func (m *Model) FirstToken(d time.Duration) { m.ttft.Observe(d.Seconds()) }

// Tokens observes n tokens of one choice that came d after the one before them. Tokens that arrive together share d.
func (m *Model) Tokens(n int, d time.Duration) {
	if n <= 0 {
		return
	}
	each := d.Seconds() / float64(n)
	for range n {
		m.itl.Observe(each)
	}
}

// Done observes the end of a generation, from its client's point of view.
func (m *Model) Done(d time.Duration) { m.duration.Observe(d.Seconds()) }

// Spent counts what a generation cost, also when its client went away: engine.Request.Spent.
func (m *Model) Spent(usage engine.Usage) {
	if usage.PromptTokens > 0 { // else it never left the queue
		m.queue.Observe(usage.Queue.Seconds())
	}
	m.prompt.Add(float64(usage.PromptTokens))
	m.cached.Add(float64(usage.CachedTokens))
	m.completion.Add(float64(usage.CompletionTokens))
}

// Prompt counts prompt tokens of requests that generate nothing, such as embeddings.
func (m *Model) Prompt(n int) { m.prompt.Add(float64(n)) }
