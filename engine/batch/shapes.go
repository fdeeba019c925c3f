package batch

import "time"

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

// prefillSizes are prompt chunks that backends have different kernels for: tiles of 16 to 256 columns that are chosen by how
// well they fill the device.
var prefillSizes = [...]int{16, 32, 48, 96, 128, 192, 256, 320, 384, 448}

// WarmupShapes lists the shapes that the planner will use for cfg: first what no request can do without, then what makes a
// difference for some. It returns nil for a bad config.
func WarmupShapes(cfg Config) []Shape {
	if cfg.Validate() != nil {
		return nil
	}
	cfg = cfg.withDefaults()
	var out []Shape
	add := func(s Shape) {
		if s.Rows() <= cfg.Chunk && s.IDs() <= cfg.Sequences && s.Decode+max(s.Prompts, min(s.Prefill, 1)) <= cfg.Outputs {
			out = append(out, s)
		}
	}
	for d := 1; d <= cfg.MaxRunning; d++ {
		padded := d
		if d > vectorRows {
			padded += padsFor(&cfg, d)
		}
		if len(out) == 0 || out[len(out)-1].Decode < padded {
			add(Shape{Decode: padded})
		}
	}
	for i, p := range [...]int{cfg.Chunk, cfg.MinPrefill} {
		if i > 0 && p == cfg.Chunk {
			break
		}
		add(Shape{Prefill: p})
		if cfg.Recurrent {
			continue
		}
		// A prefill beside decodes, and the first one over two sequences, has pipelines of its own.
		last := 0
		for _, d := range [...]int{1, min(8, cfg.MaxRunning/2), cfg.MaxRunning - 1} {
			if p := min(p, cfg.Chunk-d); d > last && p > 0 {
				last = d
				add(Shape{Decode: d, Prefill: p})
			}
		}
		add(Shape{Prefill: p, Prompts: 2})
	}
	for _, p := range prefillSizes {
		if p < cfg.Chunk && p != cfg.MinPrefill {
			add(Shape{Prefill: p})
		}
	}
	return out
}

// Prime teaches the cost model what a shape costs on this machine before there are requests: a warm run of it, with
// span cells in use (n_kv), took d. Two spans of one decode shape tell the price of a longer context. A shape with
// both kinds of rows teaches nothing before one with the same Decode alone.
func (s *Scheduler) Prime(sh Shape, span int, d time.Duration) {
	s.cost.observe(s.loadOfShape(sh, span), d, false)
}
