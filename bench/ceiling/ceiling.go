package ceiling

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"

	"hearth/bench/load"
	"hearth/bench/peers"
)

// Config is one measurement.
type Config struct {
	Server peers.Server
	// Raw returns the command line and environment of `hearth-engine bench` with more arguments.
	Raw     func(args ...string) (argv, env []string)
	Backend string
	Layouts []string
	// Batches are numbers of sequences; Context about how many tokens each holds before decoding; Tokens how many follow.
	Batches         []int
	Context, Tokens int
	Rounds          int
	// Fresh starts the server anew for every round, so that its KV pool is as empty as the raw loop's. Otherwise the prefixes
	// that it caches gather from round to round, and every step passes over their cells.
	Fresh bool
	Log   func(format string, args ...any)
}

// Row is one load: medians over the rounds, tokens per second.
type Row struct {
	Kind    string  `json:"kind"` // "decode" or "prefill"
	Batch   int     `json:"batch"`
	Context int     `json:"context"` // tokens of each sequence, as the server counted them
	Layout  string  `json:"raw_layout"`
	Raw     float64 `json:"raw_tokens_per_second"`
	Server  float64 `json:"server_tokens_per_second"`
	Ratio   float64 `json:"ratio"`
}

// Result is a whole measurement.
type Result struct {
	Machine peers.Machine `json:"machine"`
	Rounds  int           `json:"rounds"`
	Fresh   bool          `json:"fresh"`
	Rows    []Row         `json:"rows"`
}

// measurement is a Run under way.
type measurement struct {
	Config
	s *peers.Process
}

// Run measures every batch size and one prefill. The server idles while the raw loop runs.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.Rounds < 1 || len(cfg.Layouts) == 0 || len(cfg.Batches) == 0 || cfg.Context < 8 || cfg.Tokens < 8 {
		return nil, fmt.Errorf("rounds, layouts and batches must not be empty; prompt and output need at least 8 tokens")
	}
	s, err := peers.Start(ctx, cfg.Server)
	if err != nil {
		return nil, err
	}
	m := &measurement{Config: cfg, s: s}
	defer func() { m.s.Stop() }()
	res := &Result{Machine: peers.ThisMachine(), Rounds: cfg.Rounds, Fresh: cfg.Fresh}
	for _, n := range cfg.Batches {
		row, err := m.decode(ctx, n)
		if err != nil {
			return res, err
		}
		res.Rows = append(res.Rows, row)
	}
	row, err := m.prefill(ctx)
	if err != nil {
		return res, err
	}
	res.Rows = append(res.Rows, row)
	return res, nil
}

// words asks for about Context tokens: the server's count of a short probe tells how many tokens a word is.
func (m *measurement) words(ctx context.Context) (int, error) {
	const probe = 64
	spec := load.Spec{Workload: load.Chat, Clients: 1, Requests: 1, PromptWords: probe, MaxTokens: 1, Seed: 99}
	r, err := load.Run(ctx, m.s.Client(0), spec)
	if err != nil || r.Completed == 0 {
		return 0, fmt.Errorf("probe request failed: %v %v", err, r.ErrorText)
	}
	return max(1, m.Context*probe/r.PromptTokens), nil
}

// renew replaces the server by a new one if the measurement is to be fresh, and warms that up.
func (m *measurement) renew(ctx context.Context) error {
	if !m.Fresh {
		return nil
	}
	m.s.Stop()
	s, err := peers.Start(ctx, m.Server)
	if err != nil {
		return err
	}
	m.s = s
	_, err = m.words(ctx)
	return err
}

func (m *measurement) decode(ctx context.Context, n int) (Row, error) {
	words, err := m.words(ctx)
	if err != nil {
		return Row{}, err
	}
	raw := map[string][]float64{}
	var served []float64
	row := Row{Kind: "decode", Batch: n, Context: m.Context}
	for round := range m.Rounds + 1 { // round 0 warms up
		if err := m.renew(ctx); err != nil {
			return row, err
		}
		spec := load.Spec{Workload: load.Chat, Clients: n, Requests: n, PromptWords: words, MaxTokens: m.Tokens, Seed: uint64(round*1000 + n)}
		r, err := load.Run(ctx, m.s.Client(0), spec)
		if err != nil {
			return row, err
		}
		if r.Completed != n {
			return row, fmt.Errorf("%d of %d requests failed: %v", n-r.Completed, n, r.ErrorText)
		}
		row.Context = r.PromptTokens / n
		if round == 0 {
			continue
		}
		if r.SteadyPerSecond == 0 {
			return row, fmt.Errorf("%d clients never decoded all at once: --max-tokens %d is too short for their prompts", n, m.Tokens)
		}
		served = append(served, r.SteadyPerSecond)
		for _, l := range m.Layouts {
			v, err := m.raw(ctx, "decode", "-kv-layout", l, "-batch", strconv.Itoa(n), "-context", strconv.Itoa(row.Context),
				"-steps", strconv.Itoa(m.Tokens), "-prefill", "0")
			if err != nil {
				return row, err
			}
			raw[l] = append(raw[l], v)
			m.Log("decode batch %d round %d: server %.1f, raw %s %.1f tok/s", n, round, r.SteadyPerSecond, l, v)
		}
	}
	row.fill(raw, served)
	return row, nil
}

func (m *measurement) prefill(ctx context.Context) (Row, error) {
	words, err := m.words(ctx)
	if err != nil {
		return Row{}, err
	}
	const times = 4 // longer than a decode context: a prefill of a few hundred tokens is over too soon to time
	raw := map[string][]float64{}
	var served []float64
	row := Row{Kind: "prefill", Batch: 1}
	for round := range m.Rounds + 1 {
		if err := m.renew(ctx); err != nil {
			return row, err
		}
		spec := load.Spec{Workload: load.Chat, Clients: 1, Requests: 1, PromptWords: times * words, MaxTokens: 1, Seed: uint64(round + 5000)}
		r, err := load.Run(ctx, m.s.Client(0), spec)
		if err != nil || r.Completed != 1 {
			return row, fmt.Errorf("prefill request failed: %v %v", err, r.ErrorText)
		}
		row.Context = r.PromptTokens
		if round == 0 {
			continue
		}
		v := float64(r.PromptTokens-r.CachedTokens) / r.TTFT.P50 * 1000
		served = append(served, v)
		for _, l := range m.Layouts {
			x, err := m.raw(ctx, "prefill", "-kv-layout", l, "-batch", "1", "-context", "8", "-steps", "1", "-prefill", strconv.Itoa(r.PromptTokens))
			if err != nil {
				return row, err
			}
			raw[l] = append(raw[l], x)
			m.Log("prefill %d tokens round %d: server %.1f, raw %s %.1f tok/s", r.PromptTokens, round, v, l, x)
		}
	}
	row.fill(raw, served)
	return row, nil
}

func (r *Row) fill(raw map[string][]float64, served []float64) {
	for l, v := range raw {
		if x := median(v); x > r.Raw {
			r.Layout, r.Raw = l, x
		}
	}
	if r.Server = median(served); r.Raw > 0 {
		r.Ratio = r.Server / r.Raw
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// raw runs the raw loop once and returns the tokens per second of the run of this kind.
func (m *measurement) raw(ctx context.Context, kind string, args ...string) (float64, error) {
	argv, env := m.Raw(append([]string{"-backend", m.Backend}, args...)...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(cmd.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		if e, ok := err.(*exec.ExitError); ok {
			return 0, fmt.Errorf("hearth-engine bench: %w: %s", err, e.Stderr)
		}
		return 0, fmt.Errorf("hearth-engine bench: %w", err)
	}
	return parseRaw(out, kind)
}

func parseRaw(out []byte, kind string) (float64, error) {
	var r struct {
		Runs []struct {
			Kind   string  `json:"kind"`
			PerSec float64 `json:"tokens_per_second"`
		} `json:"runs"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, fmt.Errorf("hearth-engine bench: %w", err)
	}
	for _, run := range r.Runs {
		if run.Kind == kind && run.PerSec > 0 {
			return run.PerSec, nil
		}
	}
	return 0, fmt.Errorf("hearth-engine bench printed no %s run", kind)
}

// Print writes the rows as a Markdown table.
func (r *Result) Print(w io.Writer) {
	server := ""
	if r.Fresh {
		server = ", the server started anew for each"
	}
	fmt.Fprintf(w, "%s (%d cores), median of %d interleaved rounds%s\n\n", r.Machine.CPU, r.Machine.Cores, r.Rounds, server)
	fmt.Fprintf(w, "| load | sequences | context | raw tok/s (layout) | server tok/s | server / raw |\n|---|---|---|---|---|---|\n")
	for _, x := range r.Rows {
		fmt.Fprintf(w, "| %s | %d | %d | %.1f (%s) | %.1f | %.3f |\n", x.Kind, x.Batch, x.Context, x.Raw, x.Layout, x.Server, x.Ratio)
	}
}
