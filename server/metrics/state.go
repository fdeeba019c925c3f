package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"hearth/server/api"
)

// stateCollector reports the workers' state when it is scraped. Counters restart with the worker, as Prometheus expects.
type stateCollector struct {
	loaded func() []api.Status
	descs  descs
}

type descs struct {
	loaded, progress, running, waiting, cells, vram, restarts *prometheus.Desc
	steps, preemptions, evictions, fallback, fallbacks        *prometheus.Desc
	hostBytes, hostTokens, hostPrefixes, hostMoves            *prometheus.Desc
}

func stateDescs() descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"model"}, labels...), nil)
	}
	return descs{
		loaded:       desc("hearth_model_loaded", "1 when the model is ready to serve, 0 while it loads, stops or has failed.", "backend", "device"),
		progress:     desc("hearth_model_load_progress_ratio", "How far the model's load is, 0 to 1."),
		running:      desc("hearth_requests_running", "Requests that hold KV cells now."),
		waiting:      desc("hearth_requests_waiting", "Requests in the worker's queue."),
		cells:        desc("hearth_kv_cells", "KV cells by state: used (cached prefixes included), cached (held by the prefix cache alone), total.", "state"),
		vram:         desc("hearth_model_vram_bytes", "Device memory that the worker holds."),
		restarts:     desc("hearth_worker_restarts_total", "Restarts of the model's worker."),
		steps:        desc("hearth_worker_steps_total", "Decode steps of the worker."),
		preemptions:  desc("hearth_preemptions_total", "Requests that gave up their KV cells to others."),
		evictions:    desc("hearth_prefix_evictions_total", "Prefixes dropped from the cache."),
		hostBytes:    desc("hearth_kv_host_bytes", "Host memory for cached prefixes by state: used, limit.", "state"),
		hostTokens:   desc("hearth_kv_host_tokens", "Tokens of cached prefixes in host memory."),
		hostPrefixes: desc("hearth_kv_host_prefixes", "Cached prefixes in host memory."),
		hostMoves:    desc("hearth_kv_host_moves_total", "Cached prefixes moved to host memory (save) and back into the KV pool (load).", "direction"),
		fallback:     desc("hearth_model_backend_fallback", "1 when the model runs on another backend than was asked for."),
		fallbacks:    desc("hearth_backend_fallback_total", "Placements of the model on a lesser backend, because a better one could not run it or faulted."),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	d := c.descs
	for _, desc := range []*prometheus.Desc{d.loaded, d.progress, d.running, d.waiting, d.cells, d.vram, d.restarts, d.steps, d.preemptions, d.evictions, d.fallback, d.fallbacks, d.hostBytes, d.hostTokens, d.hostPrefixes, d.hostMoves} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	d := c.descs
	for _, s := range c.loaded() {
		gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, append([]string{s.Name}, labels...)...)
		}
		counter := func(desc *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, v, append([]string{s.Name}, labels...)...)
		}
		gauge(d.loaded, oneIf(s.State == api.StateReady), s.Info.Backend, s.Info.Device.Name)
		gauge(d.progress, s.Progress)
		gauge(d.fallback, oneIf(s.FallbackReason != ""))
		counter(d.restarts, float64(s.Restarts))
		counter(d.fallbacks, float64(s.Fallbacks))
		if s.State != api.StateReady {
			continue
		}
		gauge(d.running, float64(s.Stats.Running))
		gauge(d.waiting, float64(s.Stats.Waiting))
		gauge(d.cells, float64(s.Stats.CellsUsed), "used")
		gauge(d.cells, float64(s.Stats.CellsCached), "cached")
		gauge(d.cells, float64(s.Stats.CellsTotal), "total")
		if s.VRAMBytes > 0 {
			gauge(d.vram, float64(s.VRAMBytes)) // unknown is not zero
		}
		counter(d.steps, float64(s.Stats.Steps))
		counter(d.preemptions, float64(s.Stats.Preemptions))
		counter(d.evictions, float64(s.Stats.Evictions))
		gauge(d.hostBytes, float64(s.Stats.HostBytes), "used")
		gauge(d.hostBytes, float64(s.Stats.HostLimit), "limit")
		gauge(d.hostTokens, float64(s.Stats.HostTokens))
		gauge(d.hostPrefixes, float64(s.Stats.HostPrefixes))
		counter(d.hostMoves, float64(s.Stats.HostSaves), "save")
		counter(d.hostMoves, float64(s.Stats.HostLoads), "load")
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
