package batch

import "time"

// Shape is a step that is worth running once before the model is ready, because backends compile pipelines and
// allocate at the first use of a shape: Decode rows with logits on ids 0..Decode-1, one each, and Prefill tokens on
// the next id (id 0 when Decode is 0), the last one with logits.
type Shape struct{ Decode, Prefill int }

// WarmupShapes lists the shapes that the planner will use for cfg, cheapest first. It returns nil for a bad config.
func WarmupShapes(cfg Config) []Shape {
	if cfg.Validate() != nil {
		return nil
	}
	cfg = cfg.withDefaults()
	var out []Shape
	for d := 1; d <= cfg.MaxRunning; d++ {
		if padded := d + padsFor(&cfg, d); len(out) == 0 || out[len(out)-1].Decode < padded {
			out = append(out, Shape{Decode: padded})
		}
	}
	for _, p := range [...]int{cfg.MinPrefill, cfg.Chunk} {
		out = append(out, Shape{Prefill: p})
		// A prefill beside decodes, and in the unified layout the first one over two sequences, has pipelines of its own.
		for _, d := range [...]int{1, cfg.MaxRunning} {
			if p := min(p, cfg.Chunk-d); !cfg.Recurrent && p > 0 && d < cfg.Sequences {
				out = append(out, Shape{Decode: d, Prefill: p})
			}
		}
	}
	return out
}

// Prime teaches the cost model what a shape costs on this machine before there are requests: a warm run of it, with
// span cells in use (n_kv), took d. Two spans of one decode shape tell the price of a longer context. A shape with
// both kinds of rows teaches nothing before one with the same Decode alone.
func (s *Scheduler) Prime(sh Shape, span int, d time.Duration) {
	s.cost.observe(load{decodes: sh.Decode, span: max(span, 256), prefills: sh.Prefill, depth: max(0, span-sh.Prefill)}, d)
}
