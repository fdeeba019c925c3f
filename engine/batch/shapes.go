package batch

import (
	"slices"
	"time"
)

// Shape is a step that is worth running once before the model is ready, because backends compile pipelines and
// allocate at the first use of a shape: Decode rows with logits on ids 0..Decode-1, one each, and Prefill tokens on
// the next Prompts ids (0: one id), as evenly as they divide, the last one of each id with logits.
type Shape struct{ Decode, Prefill, Prompts int }

// Rows is how many rows the step has.
func (s Shape) Rows() int { return s.Decode + s.Prefill }

// IDs is how many sequences the step needs.
func (s Shape) IDs() int {
	if s.Prefill > 0 {
		return s.Decode + max(s.Prompts, 1)
	}
	return s.Decode
}

// vectorRows is up to how many rows every number has kernels of its own (matrix-vector products of Vulkan and HIP). They
// matter in every step: the last matrix is multiplied with the rows that have logits, padded or not.
const vectorRows = 8

// WarmupShapes lists the shapes that the planner will use for cfg, the most important first: what every request meets, then what
// is likely, then what makes a difference for some. It returns nil for a bad config.
func WarmupShapes(cfg Config) []Shape {
	if cfg.Validate() != nil {
		return nil
	}
	cfg = cfg.withDefaults()
	var out []Shape
	add := func(s Shape) {
		if s.Rows() <= cfg.Chunk && s.IDs() <= cfg.Sequences && s.Decode+max(s.Prompts, min(s.Prefill, 1)) <= cfg.Outputs &&
			s.Rows() > 0 && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	add(Shape{Decode: 1})
	add(Shape{Prefill: min(64, cfg.Chunk)})
	add(Shape{Prefill: cfg.Chunk})
	for _, p := range [...]int{128, 256} { // small tiles, and full ones
		add(Shape{Prefill: min(p, cfg.Chunk)})
	}
	for _, d := range [...]int{2, 4, 8} {
		add(Shape{Decode: min(d, cfg.MaxRunning)})
	}
	if cfg.Layout == LayoutUnified && !cfg.Recurrent { // elsewhere prompts and decodes do not meet
		for _, d := range [...]int{1, min(8, cfg.MaxRunning/2), cfg.MaxRunning - 1} {
			for _, size := range [...]int{64, 128, 256, cfg.Chunk} {
				if d > 0 && size > d {
					add(Shape{Decode: d, Prefill: size - d})
				}
			}
		}
	}
	for d := 1; d <= cfg.MaxRunning; d++ {
		padded := d
		if d > vectorRows {
			padded += padsFor(&cfg, d)
		}
		add(Shape{Decode: padded})
	}
	if !cfg.Recurrent {
		add(Shape{Prefill: cfg.Chunk, Prompts: 2}) // several sequences have kernels of their own
		add(Shape{Prefill: min(128, cfg.Chunk), Prompts: 2})
	}
	for _, size := range sizes {
		if size > vectorRows {
			add(Shape{Prefill: int(size)})
		}
	}
	for _, p := range [...]int{cfg.Chunk - 1, 127} { // sizes that leave a tile unfilled have others
		add(Shape{Prefill: p})
	}
	return out
}

// Prime teaches the cost model what a shape costs on this machine before there are requests: a warm run of it, with
// span cells in use (n_kv), took d. Two spans of one decode shape tell the price of a longer context. A shape with
// both kinds of rows teaches nothing before one with the same Decode alone.
func (s *Scheduler) Prime(sh Shape, span int, d time.Duration) {
	s.cost.observe(s.loadOfShape(sh, span), d, false)
}
