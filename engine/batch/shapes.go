package batch

// Shape is a step that is worth running once before the model is ready, because backends compile pipelines and
// allocate at the first use of a shape: Decode rows with logits on ids 0..Decode-1, one each, and Prefill tokens on
// the next id (id 0 when Decode is 0), the last one with logits.
type Shape struct{ Decode, Prefill int }

// WarmupShapes lists the shapes that the planner will use for cfg, cheapest first.
func WarmupShapes(cfg Config) []Shape { panic("not yet") }
