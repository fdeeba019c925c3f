package batch

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
	for _, b := range buckets {
		if b < cfg.MaxRunning {
			out = append(out, Shape{Decode: b})
		}
	}
	out = append(out, Shape{Decode: cfg.MaxRunning})
	for _, p := range [...]int{cfg.MinPrefill, cfg.Chunk} {
		out = append(out, Shape{Prefill: p})
		// A prefill beside decodes, and in the unified layout the first one over two sequences, has pipelines of its own.
		for _, d := range [...]int{1, cfg.MaxRunning} {
			if !cfg.Recurrent && d+p <= cfg.Chunk && d < cfg.Sequences {
				out = append(out, Shape{Decode: d, Prefill: p})
			}
		}
	}
	return out
}

// Prime teaches the cost model what a shape costs on this machine, before there are requests: a warm run of one of the
// WarmupShapes with span cells in use took d seconds-of-a-duration. Two spans of one shape tell the price of a longer context.
func (s *Scheduler) prime(l load) {}
