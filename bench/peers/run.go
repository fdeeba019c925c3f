package peers

import (
	"context"
	"fmt"
	"time"

	"hearth/bench/load"
)

// Config is one comparison.
type Config struct {
	Servers []Server
	Loads   []load.Spec
	// Rounds of each load per server, interleaved (A B A B ...); 0 means 3.
	Rounds int
	// Warm sends each load before the rounds, unmeasured: one wave with short answers, which meets every shape.
	Warm bool
	// Timeout of one request; 0: ten minutes.
	Timeout time.Duration
	// Log gets one line per step; nil: none.
	Log func(format string, args ...any)
}

// Outcome is what one server did with one load: all rounds' reports, in order.
type Outcome struct {
	Server string        `json:"server"`
	Load   load.Spec     `json:"load"`
	Rounds []load.Report `json:"rounds"`
}

// StartUp is what starting a server cost.
type StartUp struct {
	Server       string  `json:"server"`
	ReadySeconds float64 `json:"ready_seconds"`
	// FirstTTFT is the first request's time to first token in ms, TenthTTFT the tenth's, on equal prompts' lengths.
	FirstTTFT float64 `json:"first_ttft_ms"`
	TenthTTFT float64 `json:"tenth_ttft_ms"`
	// Idle is memory after ready; Loaded after all loads. Front is the process started, Worker the one with the model.
	IdleFront   Memory `json:"idle_front"`
	IdleWorker  Memory `json:"idle_worker"`
	AfterFront  Memory `json:"after_front"`
	AfterWorker Memory `json:"after_worker"`
}

// Result is a whole comparison.
type Result struct {
	Started  time.Time `json:"started"`
	Machine  Machine   `json:"machine"`
	StartUps []StartUp `json:"start_ups"`
	Outcomes []Outcome `json:"outcomes"`
}

// Run measures. All servers are ended when it returns.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.Rounds == 0 {
		cfg.Rounds = 3
	}
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	res := &Result{Started: time.Now(), Machine: ThisMachine()}
	var procs []*Process
	defer func() {
		for _, p := range procs {
			p.Stop()
		}
	}()
	for _, s := range cfg.Servers {
		cfg.Log("start %s", s.Name)
		p, err := Start(ctx, s)
		if err != nil {
			return res, err
		}
		procs = append(procs, p)
		up, err := firstRequests(ctx, p, p.Client(cfg.Timeout))
		if err != nil {
			return res, err
		}
		cfg.Log("  ready after %.2f s, first TTFT %.0f ms, tenth %.0f ms, worker anon %d MiB", up.ReadySeconds, up.FirstTTFT, up.TenthTTFT, up.IdleWorker.Anon>>20)
		res.StartUps = append(res.StartUps, up)
	}
	for _, spec := range cfg.Loads {
		if err := cfg.measure(ctx, res, procs, spec); err != nil {
			return res, err
		}
	}
	for i, p := range procs {
		var err error
		if res.StartUps[i].AfterFront, res.StartUps[i].AfterWorker, err = p.memory(); err != nil {
			return res, fmt.Errorf("memory of %s: %w", p.Name, err)
		}
	}
	return res, nil
}

// firstRequests sends ten like requests one after another, so that shapes compiled late show in the first.
func firstRequests(ctx context.Context, p *Process, c *load.Client) (StartUp, error) {
	up := StartUp{Server: p.Name, ReadySeconds: p.ready.Seconds()}
	var err error
	if up.IdleFront, up.IdleWorker, err = p.memory(); err != nil {
		return up, fmt.Errorf("memory of %s: %w", p.Name, err)
	}
	for i := range 10 {
		s := c.Do(ctx, load.Item{MaxTokens: 4, CancelAfter: -1,
			Messages: []load.Message{{Role: "user", Content: load.Words(uint64(1000+i), 64)}}})
		if s.Err != "" {
			return up, fmt.Errorf("request %d to %s: %s", i+1, p.Name, s.Err)
		}
		ttft := float64(s.TTFT) / float64(time.Millisecond)
		if i == 0 {
			up.FirstTTFT = ttft
		}
		up.TenthTTFT = ttft
	}
	return up, nil
}

func (cfg *Config) measure(ctx context.Context, res *Result, procs []*Process, spec load.Spec) error {
	first := len(res.Outcomes)
	for _, p := range procs {
		res.Outcomes = append(res.Outcomes, Outcome{Server: p.Name, Load: spec})
	}
	for round := range cfg.Rounds + 1 {
		if round == 0 && !cfg.Warm {
			continue
		}
		for i, p := range procs {
			// a new seed for each round and load: no server may answer from a prompt it has seen
			s := spec
			s.Seed = spec.Seed + uint64(round)*7919 + uint64(first)*104729
			if round == 0 {
				s.Requests, s.MaxTokens, s.Injections = s.Clients, min(s.MaxTokens, 16), min(s.Injections, 1)
			}
			r, err := load.Run(ctx, p.Client(cfg.Timeout), s)
			if err != nil {
				return err
			}
			if round == 0 {
				continue
			}
			cfg.Log("%s %s c=%d round %d: %.1f tok/s, TTFT p50 %.0f p99 %.0f, ITL p50 %.1f p99 %.1f ms, %d errors",
				p.Name, spec.Workload, spec.Clients, round, r.OutputPerSecond, r.TTFT.P50, r.TTFT.P99, r.ITL.P50, r.ITL.P99, r.Errors)
			res.Outcomes[first+i].Rounds = append(res.Outcomes[first+i].Rounds, r)
		}
	}
	return nil
}
