package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hearth/configs"
	"hearth/engine"
	"hearth/models"
	"hearth/models/fit"
	"hearth/models/gguf"
)

// shown is the output of `hearth show --json`.
type shown struct {
	listed
	External bool          `json:"external,omitempty"`
	Files    []models.File `json:"files"`
	Memory   []memoryAt    `json:"memory,omitempty"`
}

// memoryAt is the estimate for one context with every layer on a GPU, and with none.
type memoryAt struct {
	Context int          `json:"context"` // tokens of KV cache
	GPU     fit.Estimate `json:"gpu"`
	CPU     fit.Estimate `json:"cpu"`
	// Windows is the estimate on a GPU where layers with a sliding window keep windows only, for a model that may do either (run.window_cache
	// auto): what is free beside the weights decides at load.
	Windows *fit.Estimate `json:"gpu_windows,omitempty"`
}

func (a *app) showCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:               "show MODEL",
		ValidArgsFunction: a.completeModels(1),
		Short:             "describe a model and the memory it needs",
		Args:              args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			store, err := a.store(cfg)
			if err != nil {
				return err
			}
			e, err := store.Resolve(argv[0])
			if err != nil {
				return err
			}
			s := shown{listed: toListed(e), External: e.External, Files: e.Files}
			if s.Memory, err = memory(e, cfg); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			a.printShown(s)
			return nil
		},
	})
}

// memory estimates some contexts up to the model's own. Models that are no text models have none.
func memory(e models.Entry, cfg *configs.Config) ([]memoryAt, error) {
	if e.Summary.Kind != gguf.KindChat && e.Summary.Kind != gguf.KindEmbedding && e.Summary.Kind != gguf.KindRerank {
		return nil, nil
	}
	f, err := gguf.Open(e.Path())
	if err != nil {
		return nil, err
	}
	run, err := cfg.RunFor(append([]string{e.Name}, e.Aliases...)...)
	if err != nil {
		return nil, err
	}
	limit := int(min(e.Summary.ContextLength, math.MaxInt32))
	var out []memoryAt
	for _, n := range contexts(run.Context, limit) {
		r := fit.Request{Cells: n, Chunk: run.Chunk, Outputs: run.MaxSequences, Sequences: cmp.Or(run.MaxSequences, engine.DefaultMaxSequences), KVTypeK: run.KVTypeK, KVTypeV: run.KVTypeV, FlashAttention: run.FlashAttention != "off", Windows: run.WindowCache == "window"}
		m := memoryAt{Context: n}
		if m.GPU, err = fit.Of(f, r); err != nil {
			return nil, err
		}
		if m.Windows, err = withWindows(f, r, run.WindowCache, m.GPU); err != nil {
			return nil, err
		}
		r.HostLayers = fit.AllOnHost
		if m.CPU, err = fit.Of(f, r); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// withWindows estimates a model with a sliding window that keeps windows only; nil where it always keeps all, or it would save nothing.
func withWindows(f *gguf.File, r fit.Request, setting string, all fit.Estimate) (*fit.Estimate, error) {
	window, err := standardWindow(f)
	if err != nil || window == 0 || setting == "full" || r.Windows {
		return nil, err
	}
	r.Windows = true
	e, err := fit.Of(f, r)
	if err != nil || e.Device.KV >= all.Device.KV {
		return nil, err
	}
	return &e, nil
}

// contexts are the ones worth showing: the configured or default one, a large one, and the model's own.
func contexts(configured, limit int) []int {
	if configured == 0 {
		configured = engine.DefaultContext
	}
	if limit == 0 {
		return []int{configured}
	}
	var out []int
	for _, n := range []int{min(configured, limit), 32768, limit} {
		if n <= limit && (len(out) == 0 || n > out[len(out)-1]) {
			out = append(out, n)
		}
	}
	return out
}

func (a *app) printShown(s shown) {
	m := s.Summary
	var facts []string
	for _, f := range []struct {
		on   bool
		text string
	}{
		{m.ChatTemplate, "chat template"}, {m.Recurrent && !m.Hybrid, "recurrent state"}, {m.Hybrid, "recurrent and attention layers"},
		{m.SlidingWindow > 0, fmt.Sprintf("sliding window of %d tokens", m.SlidingWindow)},
		{m.Experts > 0, fmt.Sprintf("%d of %d experts a token", m.ExpertsUsed, m.Experts)},
	} {
		if f.on {
			facts = append(facts, f.text)
		}
	}
	rows := [][]string{
		{"Name", s.Name}, {"Aliases", dash(strings.Join(s.Aliases, ", "))}, {"Title", dash(m.Title)}, {"Kind", string(m.Kind)},
		{"Architecture", m.Architecture}, {"Parameters", count(m.Parameters)},
		{"Quantization", fmt.Sprintf("%s (%.2f bits a weight)", dash(m.Quantization), m.BitsPerWeight)},
		{"Context", fmt.Sprintf("%d tokens", m.ContextLength)},
		{"Layers", fmt.Sprintf("%d, width %d, %d heads, %d KV heads", m.Layers, m.EmbeddingLength, m.Heads, m.HeadsKV)},
		{"Vocabulary", fmt.Sprintf("%d tokens", m.VocabularySize)}, {"KV cache", size(int64(m.KVBytesPerToken)) + " a token (f16)"},
		{"Features", dash(strings.Join(facts, ", "))}, {"License", dash(m.License)}, {"Source", s.Source}, {"Added", s.Added.Format("2006-01-02 15:04")},
		{"Size", size(s.Size)},
	}
	for i, f := range s.Files {
		label := ""
		if i == 0 {
			label = "Files"
		}
		rows = append(rows, []string{label, f.Path})
	}
	table(a.out, rows)
	if len(s.Memory) == 0 {
		return
	}
	a.printf("\nEstimated memory:\n")
	est := [][]string{{"CONTEXT", "ON A GPU", "BESIDE IT", "CPU ONLY", "OF IT KV"}}
	windows := slices.ContainsFunc(s.Memory, func(m memoryAt) bool { return m.Windows != nil })
	if windows {
		est[0] = append(est[0], "GPU, WINDOWS ONLY")
	}
	for _, e := range s.Memory {
		row := []string{
			fmt.Sprint(e.Context), size(int64(e.GPU.Device.Total())), size(int64(e.GPU.Host.Total())),
			size(int64(e.CPU.Host.Total())), size(int64(e.CPU.Host.KV)),
		}
		if windows {
			total := ""
			if e.Windows != nil {
				total = size(int64(e.Windows.Device.Total()))
			}
			row = append(row, dash(total))
		}
		est = append(est, row)
	}
	table(a.out, est)
	if windows {
		a.printf("Layers with a sliding window keep all cells where these take at most a quarter of the memory beside the weights,\n" +
			"else a window for each sequence (run.window_cache).\n")
	}
}
