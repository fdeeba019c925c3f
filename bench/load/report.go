package load

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// Dist is a distribution in milliseconds. N is how many values it rests on; all are 0 when N is 0.
type Dist struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Report is the outcome of one run.
type Report struct {
	Workload  Workload       `json:"workload"`
	Clients   int            `json:"clients"`
	Rate      float64        `json:"rate,omitempty"`
	Requests  int            `json:"requests"`
	Completed int            `json:"completed"`
	Cancelled int            `json:"cancelled"`
	Errors    int            `json:"errors"`
	ErrorText map[string]int `json:"error_text,omitempty"`
	Seconds   float64        `json:"seconds"`

	PromptTokens     int     `json:"prompt_tokens"`
	CachedTokens     int     `json:"cached_tokens"`
	CompletionTokens int     `json:"completion_tokens"`
	OutputPerSecond  float64 `json:"output_tokens_per_second"`
	RequestsPerSec   float64 `json:"requests_per_second"`
	// SteadyPerSecond is output tokens per second while every request decoded: from the last first token to the first
	// end. Only for a single wave (as many requests as clients), else 0.
	SteadyPerSecond float64 `json:"steady_tokens_per_second,omitempty"`
	// SteadyContext is the mean length of the sequences in that time, in tokens: what a raw loop must have to be compared with it.
	SteadyContext float64 `json:"steady_context_tokens,omitempty"`

	TTFT Dist `json:"ttft_ms"`
	ITL  Dist `json:"itl_ms"`
	E2E  Dist `json:"e2e_ms"`
	// Mixed stands for the mixed workload only.
	Mixed *MixedReport `json:"mixed,omitempty"`
}

// MixedReport says what injected prompts did to decoders.
type MixedReport struct {
	// Quiet holds the decoders' gaps outside injections, Injected those which overlap one.
	Quiet    Dist `json:"quiet_itl_ms"`
	Injected Dist `json:"injected_itl_ms"`
	// InjectTTFT is how long the long prompts took to their first token.
	InjectTTFT Dist `json:"inject_ttft_ms"`
	// P99OverQuietMedian is the headline ratio.
	P99OverQuietMedian float64 `json:"p99_over_quiet_median"`
}

func summarise(spec Spec, samples []Sample, wall time.Duration) Report {
	r := Report{Workload: spec.Workload, Clients: spec.Clients, Rate: spec.Rate, Requests: len(samples), Seconds: wall.Seconds()}
	var ttft, itl, e2e []time.Duration
	for _, s := range samples {
		r.PromptTokens += s.PromptTokens
		r.CachedTokens += s.CachedTokens
		r.CompletionTokens += s.CompletionTokens
		switch {
		case s.Err != "":
			r.Errors++
			if r.ErrorText == nil {
				r.ErrorText = map[string]int{}
			}
			r.ErrorText[s.Err]++
			continue
		case s.Cancelled:
			r.Cancelled++
			continue
		}
		r.Completed++
		if s.Class == "injected" {
			continue
		}
		if s.TTFT > 0 {
			ttft = append(ttft, s.TTFT)
		}
		e2e = append(e2e, s.E2E)
		itl = append(itl, s.Gaps...)
	}
	r.TTFT, r.ITL, r.E2E = distribution(ttft), distribution(itl), distribution(e2e)
	if wall > 0 {
		r.OutputPerSecond = float64(r.CompletionTokens) / wall.Seconds()
		r.RequestsPerSec = float64(r.Completed) / wall.Seconds()
	}
	if spec.Workload == Mixed {
		r.Mixed = mixedReport(samples)
	}
	if len(samples) == spec.Clients && r.Completed == len(samples) {
		r.SteadyPerSecond, r.SteadyContext = steady(samples)
	}
	return r
}

// steady counts content events between the last first token and the first last one, scaled to tokens where an event
// carried several. The second result is the mean length of the sequences meanwhile.
func steady(samples []Sample) (perSecond, context float64) {
	var from, to time.Time
	for i, s := range samples {
		if len(s.GapEnds) == 0 {
			return 0, 0
		}
		first, last := s.Start.Add(s.TTFT), s.GapEnds[len(s.GapEnds)-1]
		if i == 0 || first.After(from) {
			from = first
		}
		if i == 0 || last.Before(to) {
			to = last
		}
	}
	if !to.After(from) {
		return 0, 0
	}
	tokens := 0.0
	for _, s := range samples {
		perEvent := float64(s.CompletionTokens) / float64(len(s.GapEnds)+1)
		before, within := perEvent, 0.0 // the first token has no gap
		for _, end := range s.GapEnds {
			switch {
			case !end.After(from):
				before += perEvent
			case !end.After(to):
				within += perEvent
			}
		}
		tokens += within
		context += float64(s.PromptTokens) + before + within/2
	}
	return tokens / to.Sub(from).Seconds(), context / float64(len(samples))
}

func mixedReport(samples []Sample) *MixedReport {
	type window struct{ from, to time.Time }
	var windows []window
	var injected, quiet, disturbed []time.Duration
	for _, s := range samples {
		if s.Class == "injected" && s.Err == "" {
			windows = append(windows, window{s.Start, s.Start.Add(s.E2E)})
			injected = append(injected, s.TTFT)
		}
	}
	for _, s := range samples {
		if s.Class != "decoder" || s.Err != "" {
			continue
		}
		for i, gap := range s.Gaps {
			end := s.GapEnds[i]
			hit := slices.ContainsFunc(windows, func(w window) bool { return end.After(w.from) && end.Add(-gap).Before(w.to) })
			if hit {
				disturbed = append(disturbed, gap)
			} else {
				quiet = append(quiet, gap)
			}
		}
	}
	m := &MixedReport{Quiet: distribution(quiet), Injected: distribution(disturbed), InjectTTFT: distribution(injected)}
	if m.Quiet.P50 > 0 {
		m.P99OverQuietMedian = m.Injected.P99 / m.Quiet.P50
	}
	return m
}

// distribution sorts v and reads nearest-rank percentiles from it.
func distribution(v []time.Duration) Dist {
	if len(v) == 0 {
		return Dist{}
	}
	slices.Sort(v)
	var sum time.Duration
	for _, x := range v {
		sum += x
	}
	rank := func(p float64) float64 {
		i := int(p*float64(len(v))+0.999999) - 1
		return ms(v[min(max(i, 0), len(v)-1)])
	}
	return Dist{N: len(v), Mean: ms(sum) / float64(len(v)), P50: rank(0.50), P90: rank(0.90), P99: rank(0.99), Max: ms(v[len(v)-1])}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Print writes the report for people.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%s: %d clients, %d requests in %.1f s: %d completed, %d cancelled, %d errors\n",
		r.Workload, r.Clients, r.Requests, r.Seconds, r.Completed, r.Cancelled, r.Errors)
	fmt.Fprintf(w, "  tokens: %d prompt (%d cached), %d output; %.1f output tok/s, %.2f requests/s\n",
		r.PromptTokens, r.CachedTokens, r.CompletionTokens, r.OutputPerSecond, r.RequestsPerSec)
	row := func(name string, d Dist) {
		if d.N > 0 {
			fmt.Fprintf(w, "  %-14s p50 %9.1f  p90 %9.1f  p99 %9.1f  max %9.1f ms  (n=%d)\n", name, d.P50, d.P90, d.P99, d.Max, d.N)
		}
	}
	if r.SteadyPerSecond > 0 {
		fmt.Fprintf(w, "  steady decode: %.1f tok/s, mean context %.0f tokens\n", r.SteadyPerSecond, r.SteadyContext)
	}
	row("TTFT", r.TTFT)
	row("ITL", r.ITL)
	row("E2E", r.E2E)
	if m := r.Mixed; m != nil {
		row("ITL quiet", m.Quiet)
		row("ITL injected", m.Injected)
		row("inject TTFT", m.InjectTTFT)
		fmt.Fprintf(w, "  injected p99 / quiet median = %.2f\n", m.P99OverQuietMedian)
	}
	for text, n := range r.ErrorText {
		fmt.Fprintf(w, "  error x%d: %s\n", n, text)
	}
}
