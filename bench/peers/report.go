package peers

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"hearth/bench/load"
)

// Machine is where figures were measured.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	OS    string `json:"os"`
}

// ThisMachine reads the processor's name and counts cores.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH}
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if name, v, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(v)
			break
		}
	}
	return m
}

// median of f over the rounds; 0 for none.
func (o *Outcome) median(f func(load.Report) float64) float64 {
	if len(o.Rounds) == 0 {
		return 0
	}
	v := make([]float64, len(o.Rounds))
	for i, r := range o.Rounds {
		v[i] = f(r)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func (o *Outcome) errors() (n int) {
	for _, r := range o.Rounds {
		n += r.Errors
	}
	return n
}

// Print writes a Markdown report: start-up and memory, then one table per load with each server's medians over the
// rounds and, in brackets, the first server's figure over that server's.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%s, %s (%d cores), %s\n\n", r.Started.Format("2006-01-02 15:04"), r.Machine.CPU, r.Machine.Cores, r.Machine.OS)
	fmt.Fprintf(w, "| server | ready s | first TTFT ms | tenth TTFT ms | worker anon MiB idle / after | worker PSS MiB idle / after | front RSS MiB idle / after |\n|---|---|---|---|---|---|---|\n")
	for _, u := range r.StartUps {
		fmt.Fprintf(w, "| %s | %.2f | %.0f | %.0f | %d / %d | %d / %d | %d / %d |\n", u.Server, u.ReadySeconds, u.FirstTTFT, u.TenthTTFT,
			u.IdleWorker.Anon>>20, u.AfterWorker.Anon>>20, u.IdleWorker.PSS>>20, u.AfterWorker.PSS>>20, u.IdleFront.RSS>>20, u.AfterFront.RSS>>20)
	}
	for i := 0; i < len(r.Outcomes); {
		n := i + 1
		for n < len(r.Outcomes) && r.Outcomes[n].Load == r.Outcomes[i].Load {
			n++
		}
		printLoad(w, r.Outcomes[i:n])
		i = n
	}
}

func printLoad(w io.Writer, outcomes []Outcome) {
	s := outcomes[0].Load
	fmt.Fprintf(w, "\n%s: %d clients, %d requests, prompt %d words, prefix %d words, %d output tokens, median of %d rounds\n\n",
		s.Workload, s.Clients, s.Requests, s.PromptWords, s.PrefixWords, s.MaxTokens, len(outcomes[0].Rounds))
	fmt.Fprintf(w, "| server | tok/s | TTFT p50 ms | TTFT p99 ms | ITL p50 ms | ITL p99 ms | cached | errors |\n|---|---|---|---|---|---|---|---|\n")
	cols := []func(load.Report) float64{
		func(r load.Report) float64 { return r.OutputPerSecond },
		func(r load.Report) float64 { return r.TTFT.P50 },
		func(r load.Report) float64 { return r.TTFT.P99 },
		func(r load.Report) float64 { return r.ITL.P50 },
		func(r load.Report) float64 { return r.ITL.P99 },
	}
	for i := range outcomes {
		o := &outcomes[i]
		fmt.Fprintf(w, "| %s |", o.Server)
		for _, col := range cols {
			v := o.median(col)
			fmt.Fprintf(w, " %.1f", v)
			if i > 0 && v > 0 {
				fmt.Fprintf(w, " (%.2fx)", outcomes[0].median(col)/v)
			}
			fmt.Fprint(w, " |")
		}
		cached := o.median(func(r load.Report) float64 {
			if r.PromptTokens == 0 {
				return 0
			}
			return 100 * float64(r.CachedTokens) / float64(r.PromptTokens)
		})
		fmt.Fprintf(w, " %.0f %% | %d |\n", cached, o.errors())
		if s.Workload == load.Mixed {
			q := o.median(func(r load.Report) float64 { return r.Mixed.Quiet.P50 })
			p := o.median(func(r load.Report) float64 { return r.Mixed.Injected.P99 })
			t := o.median(func(r load.Report) float64 { return r.Mixed.InjectTTFT.P50 })
			fmt.Fprintf(w, "| | quiet ITL p50 %.1f ms | injected ITL p99 %.1f ms | ratio %.2f | inject TTFT p50 %.0f ms | | | |\n", q, p, p/max(q, 1e-9), t)
		}
	}
}
