package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/llama"
	"hearth/engine/worker"
)

// benchReport is what bench prints: raw loops of the library without scheduler, sampling or text.
type benchReport struct {
	Schema       int    `json:"schema"`
	LlamaVersion string `json:"llama_version"`
	Model        string `json:"model"`
	Description  string `json:"description"`
	Backend      string `json:"backend"`
	Device       string `json:"device"`
	PCI          string `json:"pci,omitempty"`
	Layout       string `json:"layout"`
	CPUs         int    `json:"cpus"`
	// WarmUpSeconds is what self-test and warm-up added to the load, Off the features that the self-test switched off.
	WarmUpSeconds float64    `json:"warm_up_seconds,omitempty"`
	Off           []string   `json:"features_off,omitempty"`
	Runs          []benchRun `json:"runs"`
}

// benchRun is one measured loop.
type benchRun struct {
	Kind    string  `json:"kind"`              // "decode", "prefill", "mixed"; "served", "served_prefill": the same through the worker
	Batch   int     `json:"batch"`             // sequences that decode together; 1 for prefill
	Prefill int     `json:"prefill,omitempty"` // mixed: prompt tokens of one more sequence in every step
	Context int     `json:"context"`           // tokens in each sequence before the first step
	Shared  int     `json:"shared,omitempty"`  // of these, the first ones that all sequences share
	Tokens  int     `json:"tokens"`            // computed while the clock ran
	Steps   int     `json:"steps"`             // llama_decode calls while the clock ran
	PerSec  float64 `json:"tokens_per_second"` // of all sequences together
	StepMS  float64 `json:"step_ms"`           // median of the steps
	// OverRaw is a served run's tokens per second over the raw loop's.
	OverRaw float64 `json:"over_raw,omitempty"`
}

// runBench measures the raw decode and prefill loops.
func runBench(ctx context.Context, in *invocation) int {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	var spec engine.LoadSpec
	fs.StringVar(&spec.Path, "model", "", "GGUF file")
	fs.StringVar(&spec.Backend, "backend", "cpu", "cpu, vulkan or hip")
	fs.StringVar(&spec.Device, "device", "", "the backend's device (default: its first)")
	fs.IntVar(&spec.Threads, "threads", 0, "CPU threads (default: physical cores)")
	fs.IntVar(&spec.Chunk, "chunk", 0, "tokens of one prefill step (default 512)")
	fs.StringVar(&spec.KVLayout, "kv-layout", "unified", "unified or streams")
	fs.IntVar(&spec.GPULayers, "gpu-layers", -1, "layers to offload (default: all)")
	fs.StringVar(&spec.CPUBLAS, "cpu-blas", "auto", "BLAS for prompts on the CPU: auto (where it is measured to be faster), on or off")
	dir := fs.String("bundle", "", "engine bundle (default: the one this binary lies in)")
	batches := fs.String("batch", "1,2,4,8,16,32", "numbers of sequences that decode together")
	contexts := fs.String("context", "512", "tokens in each sequence before decoding")
	steps := fs.Int("steps", 64, "decode steps of each measurement")
	shared := fs.Int("shared", 0, "tokens at the beginning of each sequence that all of them share")
	prefill := fs.Int("prefill", 512, "prompt tokens of the prefill measurement; 0: none")
	mixed := fs.String("mixed", "", "numbers of prompt tokens to measure in one step with each number of decoding sequences")
	repeat := fs.Int("repeat", 1, "measurements of each kind; the fastest counts")
	withServed := fs.Bool("served", false, "also measure the same loads through the worker, in turns with the raw loops")
	level := fs.String("log-level", "warn", "debug, info, warn or error; info tells where the time of served steps goes")
	if code, done := in.parse(fs); done {
		return code
	}
	bs, err1 := numbers(*batches)
	cs, err2 := numbers(*contexts)
	var ps []int
	var err3 error
	if *mixed != "" {
		ps, err3 = numbers(*mixed)
	}
	if err := errors.Join(err1, err2, err3, spec.Validate()); err != nil || *steps < 1 || *repeat < 1 || *prefill < 0 || *shared < 0 {
		fmt.Fprintf(in.stderr, "hearth-engine: bad flags: %v\n", cmp.Or(err, errors.New("steps and repeat must be positive, shared and prefill not negative")))
		return exitUsage
	}
	log, err := in.logger(*level)
	if err != nil {
		return in.fail(err)
	}
	opener, err := in.opener(*dir, log)
	if err != nil {
		return in.fail(err)
	}
	most, longest := slices.Max(bs), slices.Max(cs)
	spec.MaxSequences, spec.MMap = most, true
	spec.WindowCache = "full" // what the loops lay out themselves, they lay out without regard to windows
	if len(ps) > 0 {
		spec.MaxSequences = most + 1
		longest = max(longest, slices.Max(ps))
	}
	room := longest + *steps + 16*most + 64 // served clients start one after the other, and the first must outlast that
	spec.Context = max(room, *prefill+8)
	if spec.KVLayout == "unified" {
		spec.Cells = max(spec.MaxSequences*room, *prefill+8)
	}
	runtime.LockOSThread() // one OpenMP team, also for what computes while the weights are loaded
	defer runtime.UnlockOSThread()
	m, err := opener.Open(ctx, spec, func(string, float64) {})
	if err != nil {
		return in.fail(err)
	}
	defer m.Close()
	b := &bencher{m: m, chunk: m.Config().Chunk, steps: *steps, shared: *shared}
	if *withServed {
		if b.served, err = startServed(ctx, m, log); err != nil {
			return in.fail(err)
		}
		defer b.served.close()
	}
	var runs []benchRun
	for _, c := range cs {
		for _, n := range bs {
			rs, err := b.turns(ctx, *repeat, func() (benchRun, error) { return b.decode(n, c) },
				func() (benchRun, error) { return b.served.decode(b, n, c) })
			if err != nil {
				return in.fail(err)
			}
			in.show(rs)
			runs = append(runs, rs...)
			for _, p := range ps {
				r, err := b.mixed(n, c, p)
				if err != nil {
					return in.fail(err)
				}
				in.show([]benchRun{r})
				runs = append(runs, r)
			}
		}
	}
	if *prefill > 0 {
		rs, err := b.turns(ctx, *repeat, func() (benchRun, error) { return b.prefill(*prefill) },
			func() (benchRun, error) { return b.served.prefill(b, *prefill) })
		if err != nil {
			return in.fail(err)
		}
		in.show(rs)
		runs = append(runs, rs...)
	}
	info := m.Info()
	version, _ := llama.Version()
	rep := benchReport{
		Schema: 1, LlamaVersion: version, Model: spec.Path, Description: info.Description, Backend: info.Backend,
		Device: info.Device.Description, PCI: info.Device.PCI, Layout: info.KVLayout, CPUs: runtime.NumCPU(), Runs: runs,
	}
	if b.served != nil {
		rep.WarmUpSeconds = b.served.ready.Seconds()
		for _, f := range b.served.features {
			if !f.On {
				rep.Off = append(rep.Off, f.Name+": "+f.Reason)
			}
		}
	}
	enc := json.NewEncoder(in.stdout)
	enc.SetIndent("", "  ")
	if err := enc.Encode(rep); err != nil {
		return in.fail(err)
	}
	return exitOK
}

// numbers parses "1,2,4".
func numbers(list string) ([]int, error) {
	var out []int
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no list of positive numbers", list)
		}
		out = append(out, n)
	}
	return out, nil
}

// bencher runs loops on a model's context.
type bencher struct {
	m      worker.Model
	chunk  int
	steps  int
	shared int // tokens that sequences begin with in common
	rows   []batch.Row
	served *served // nil: raw loops only
}

// turns measures the raw loop and, in turns with it, the worker; without a worker the raw loop alone. The first round
// warms the shapes up, of the others the fastest counts.
func (b *bencher) turns(ctx context.Context, repeat int, raw, via func() (benchRun, error)) ([]benchRun, error) {
	fns := []func() (benchRun, error){raw}
	if b.served != nil {
		fns = append(fns, via)
	}
	out := make([]benchRun, len(fns))
	for i := range repeat + 1 {
		for k, fn := range fns {
			r, err := fn()
			switch {
			case err == nil && k == 0:
				err = b.m.Clear() // the worker's scheduler counts on an empty memory
			case err == nil:
				err = b.served.settle(ctx)
			}
			if err != nil {
				return nil, err
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if i <= 1 || r.PerSec > out[k].PerSec {
				out[k] = r
			}
		}
	}
	if b.served != nil {
		out[1].OverRaw = out[1].PerSec / out[0].PerSec
	}
	return out, nil
}

// show prints runs for the person who waits.
func (in *invocation) show(runs []benchRun) {
	for _, r := range runs {
		beside := ""
		if r.Shared > 0 {
			beside = fmt.Sprintf(", %d shared", r.Shared)
		}
		if r.Prefill > 0 {
			beside += fmt.Sprintf(" + %d prompt tokens", r.Prefill)
		}
		fmt.Fprintf(in.stderr, "%-14s %3d sequences, context %5d%s: %9.1f tokens/s, %.2f ms a step\n", r.Kind, r.Batch, r.Context, beside, r.PerSec, r.StepMS)
	}
}

// token is some ordinary token that differs from its neighbours.
func (b *bencher) token(i int) engine.Token {
	n := b.m.Info().VocabSize
	return engine.Token(n/4 + (i*7919)%(n/2))
}

func (b *bencher) step() error {
	code, err := b.m.Decode(b.rows)
	if err == nil {
		code, err = b.m.Sync()
	}
	if err == nil && code != batch.CodeOK {
		err = fmt.Errorf("decode returned %d", code)
	}
	return err
}

// sequences computes n sequences of some length, of which the first shared tokens are computed once and given to the others.
func (b *bencher) sequences(n, length int) error {
	shared := min(b.shared, length)
	if _, err := b.fill(0, 0, shared); err != nil {
		return err
	}
	for s := 1; s < n && shared > 0; s++ {
		if err := b.m.Copy(0, int32(s), 0, -1); err != nil {
			return err
		}
	}
	for s := range n {
		if _, err := b.fill(int32(s), shared, length); err != nil {
			return err
		}
	}
	return nil
}

// fill computes the tokens from..n-1 of a sequence in chunks and returns the number of steps.
func (b *bencher) fill(seq int32, from, n int) (int, error) {
	steps := 0
	for at := from; at < n; steps++ {
		b.rows = b.rows[:0]
		for i := at; i < min(at+b.chunk, n); i++ {
			r := batch.Row{Token: b.token(i + int(seq)), Pos: int32(i), Seq: seq, Output: -1}
			if i == n-1 {
				r.Output = 0
			}
			b.rows = append(b.rows, r)
		}
		if err := b.step(); err != nil {
			return steps, err
		}
		at += len(b.rows)
	}
	return steps, nil
}

// decode measures n sequences of some length that each get one token a step.
func (b *bencher) decode(n, length int) (benchRun, error) {
	out := benchRun{Kind: "decode", Batch: n, Context: length, Tokens: n * b.steps, Steps: b.steps}
	if err := b.m.Clear(); err != nil {
		return out, err
	}
	if err := b.sequences(n, length); err != nil {
		return out, err
	}
	out.Shared = min(b.shared, length)
	took := make([]time.Duration, 0, b.steps)
	for i := range b.steps {
		b.rows = b.rows[:0]
		for s := range n {
			b.rows = append(b.rows, batch.Row{Token: b.token(i * (s + 3)), Pos: int32(length + i), Seq: int32(s), Output: int32(s)})
		}
		began := time.Now()
		if err := b.step(); err != nil {
			return out, err
		}
		took = append(took, time.Since(began))
	}
	out.finish(took)
	return out, nil
}

// mixed measures steps of decode's n rows with p prompt tokens of one more sequence, which begins anew in every step. The
// first step warms the shape up and does not count.
func (b *bencher) mixed(n, length, p int) (benchRun, error) {
	p = min(p, b.chunk-n)
	out := benchRun{Kind: "mixed", Batch: n, Prefill: p, Context: length, Tokens: (n + p) * mixedSteps, Steps: mixedSteps}
	if err := b.m.Clear(); err != nil {
		return out, err
	}
	if err := b.sequences(n, length); err != nil {
		return out, err
	}
	out.Shared = min(b.shared, length)
	var took []time.Duration
	for i := range mixedSteps + 1 {
		b.rows = b.rows[:0]
		for s := range n {
			b.rows = append(b.rows, batch.Row{Token: b.token(i * (s + 3)), Pos: int32(length + i), Seq: int32(s), Output: int32(s)})
		}
		for k := range p {
			r := batch.Row{Token: b.token(i + k), Pos: int32(k), Seq: int32(n), Output: -1, Kind: batch.RowPrefill}
			if k == p-1 {
				r.Output = int32(n)
			}
			b.rows = append(b.rows, r)
		}
		began := time.Now()
		if err := b.step(); err != nil {
			return out, err
		}
		took = append(took, time.Since(began))
		if err := b.m.Remove(int32(n), 0, -1); err != nil {
			return out, err
		}
	}
	out.finish(took[1:])
	return out, nil
}

// mixedSteps is how many steps a mixed measurement takes: their durations hardly vary.
const mixedSteps = 8

// prefill measures one prompt in chunks.
func (b *bencher) prefill(n int) (benchRun, error) {
	out := benchRun{Kind: "prefill", Batch: 1, Tokens: n}
	if err := b.m.Clear(); err != nil {
		return out, err
	}
	began := time.Now()
	steps, err := b.fill(0, 0, n)
	if err != nil {
		return out, err
	}
	out.Steps = steps
	took := time.Since(began)
	out.finish([]time.Duration{took})
	out.StepMS /= float64(steps)
	return out, nil
}

// finish turns the steps' durations into the run's figures.
func (r *benchRun) finish(took []time.Duration) {
	var total time.Duration
	for _, d := range took {
		total += d
	}
	slices.Sort(took)
	r.PerSec = float64(r.Tokens) / total.Seconds()
	r.StepMS = took[len(took)/2].Seconds() * 1000
}
