// Package fit estimates the memory that a model will need, from its header alone: weights, KV cache and compute
// buffers, on the device and on the host, for a context, KV type and number of offloaded layers.
//
// The numbers come from gguf-parser-go's model of llama.cpp and are estimates: the worker's own report after load is
// the truth. backends and the supervisor's resolver call it before a load, `hearth show` for people. Every function is
// pure and safe for concurrent use.
package fit

import (
	"errors"
	"fmt"
	"math"

	ggufparser "github.com/gpustack/gguf-parser-go"

	"hearth/models/gguf"
)

// ErrRequest is wrapped by errors about an impossible Request.
var ErrRequest = errors.New("impossible memory request")

// Request says how the model would be loaded. The zero value is the model's own context, one sequence, an f16 KV cache,
// no flash attention and every layer offloaded.
type Request struct {
	// Cells is the KV pool in tokens, shared by all sequences (0: the model's training context).
	Cells int
	// Chunk is n_batch and n_ubatch (0: 512).
	Chunk int
	// KVTypeK and KVTypeV are ggml type names, such as "q8_0" (empty: f16).
	KVTypeK, KVTypeV string
	FlashAttention   bool
	// Sequences is how many have a recurrent state or a window of their own, in models that have one (0: 1).
	Sequences int
	// Windows lets layers with a sliding window keep one window for each sequence, not all cells (swa_full=false).
	Windows bool
	// Streams says that Cells are divided between the sequences (kv_unified=false), which changes what windows take.
	Streams bool
	// Outputs is the number of rows whose logits a step keeps, n_outputs_max (0: 32, or Chunk if that is less). The
	// worker needs one for each sequence; llama.cpp's own tools keep a whole chunk of them, which for a vocabulary of
	// 262144 tokens is 512 MiB, twice.
	Outputs int
	// HostLayers is how many layers stay on the host; math.MaxInt or more than there are: all of them, the device is unused.
	HostLayers int
	// NoMMap reads weights into anonymous memory instead of mapping the file.
	NoMMap bool
}

// AllOnHost as HostLayers is a load without a GPU.
const AllOnHost = math.MaxInt

// Usage is memory on one side, bytes.
type Usage struct {
	Weights uint64 `json:"weights"`
	KV      uint64 `json:"kv"`
	Compute uint64 `json:"compute"`
}

// Total is the sum.
func (u Usage) Total() uint64 { return u.Weights + u.KV + u.Compute }

// Estimate is what a load would take. Host weights are page cache when the file is mapped: they can be dropped under
// pressure, but every token reads them.
type Estimate struct {
	Device Usage `json:"device"`
	Host   Usage `json:"host"`
	// Layers counts the repeating layers plus the output layer; Offloaded of them sit on the device.
	Layers    int `json:"layers"`
	Offloaded int `json:"offloaded"`
	Cells     int `json:"cells"`
}

// Of estimates one load.
func Of(f *gguf.File, r Request) (Estimate, error) {
	if r.Windows && r.Streams && r.Sequences > 1 {
		return streams(f, r)
	}
	opts, err := r.options()
	if err != nil {
		return Estimate{}, err
	}
	var e Estimate
	err = f.Guard(func() {
		layers := f.Parsed().Architecture().BlockCount + 1
		off := layers - min(uint64(max(r.HostLayers, 0)), layers)
		run := f.Parsed().EstimateLLaMACppRun(append(opts, ggufparser.WithLLaMACppOffloadLayers(off))...)
		e = Estimate{Layers: int(layers), Offloaded: int(off), Cells: int(run.ContextSize)}
		host := run.Devices[0]
		for _, d := range run.Devices[1:] {
			if d.Weight.Output > 0 {
				host.Weight.Output = 0 // the parser counts it on both sides
			}
		}
		if tied(f) {
			host.Weight.Output = 0 // it is the input matrix; only a device gets a copy of its own
		}
		e.Host = r.usage(f, host)
		for _, d := range run.Devices[1:] {
			u := r.usage(f, d)
			e.Device.Weights += u.Weights
			e.Device.KV += u.KV
			e.Device.Compute += u.Compute
		}
		if off == 0 {
			// The parser still gives the device scratch for batches that llama.cpp may offload op by op; a worker without a
			// GPU plugin has none, so it is the host's.
			e.Host.Compute = max(e.Host.Compute, e.Device.Compute)
			e.Device = Usage{}
		}
	})
	return e, err
}

// streams estimates a load with windows in streams. The parser knows one pool for all windows, in which they share the room for an
// evaluation; in streams each has room for a whole one. So the KV cache is that of one stream, many times.
func streams(f *gguf.File, r Request) (Estimate, error) {
	one := r
	one.Streams, one.Sequences, one.Cells = false, 1, r.Cells/r.Sequences
	part, err := Of(f, one)
	if err != nil {
		return Estimate{}, err
	}
	r.Streams = false
	e, err := Of(f, r)
	e.Device.KV, e.Host.KV = part.Device.KV*uint64(r.Sequences), part.Host.KV*uint64(r.Sequences)
	return e, err
}

// Window is the model's sliding window in tokens, 0 without one, and the name of its architecture.
func Window(f *gguf.File) (window int, architecture string, err error) {
	err = f.Guard(func() {
		a := f.Parsed().Architecture()
		window, architecture = int(a.AttentionSlidingWindow), a.Architecture
	})
	return window, architecture, err
}

// tied says that the model has no output matrix but uses the input's.
func tied(f *gguf.File) bool {
	_, own := f.Parsed().TensorInfos.Get("output.weight")
	return !own
}

// usage sums one side up, with the logits of Outputs rows in the place of the whole chunk that the parser assumes.
func (r Request) usage(f *gguf.File, d ggufparser.LLaMACppRunDeviceUsage) Usage {
	chunk, outputs := r.rows()
	row := 4 * f.Parsed().Tokenizer().TokensLength // f32 logits
	foot, comp := uint64(d.Footprint), d.Computation
	if all := chunk * row; foot >= all {
		foot -= (chunk - outputs) * row
	}
	comp.Output = comp.Output * ggufparser.GGUFBytesScalar(outputs) / ggufparser.GGUFBytesScalar(chunk)
	return Usage{Weights: uint64(d.Weight.Sum()), KV: uint64(d.KVCache.Sum()), Compute: foot + uint64(comp.Sum())}
}

// rows are Chunk and Outputs with their defaults.
func (r Request) rows() (chunk, outputs uint64) {
	chunk, outputs = 512, 32
	if r.Chunk > 0 {
		chunk = uint64(r.Chunk)
	}
	if r.Outputs > 0 {
		outputs = uint64(r.Outputs)
	}
	return chunk, min(outputs, chunk)
}

func (r Request) options() ([]ggufparser.GGUFRunEstimateOption, error) {
	if r.Cells < 0 || r.Cells > math.MaxInt32 || r.Chunk < 0 || r.Chunk > math.MaxInt32 || r.Outputs < 0 || r.Sequences < 0 || r.Sequences > math.MaxInt32 {
		return nil, fmt.Errorf("%w: cells %d, chunk %d, outputs %d, sequences %d", ErrRequest, r.Cells, r.Chunk, r.Outputs, r.Sequences)
	}
	rows, _ := r.rows()
	chunk := int32(rows)
	opts := []ggufparser.GGUFRunEstimateOption{
		ggufparser.WithLLaMACppLogicalBatchSize(chunk), ggufparser.WithLLaMACppPhysicalBatchSize(chunk),
		ggufparser.WithParallelSize(int32(max(r.Sequences, 1))),
	}
	if !r.Windows {
		opts = append(opts, ggufparser.WithLLaMACppFullSizeSWACache())
	}
	if r.Cells > 0 {
		opts = append(opts, ggufparser.WithLLaMACppContextSize(int32(r.Cells)))
	}
	if r.FlashAttention {
		opts = append(opts, ggufparser.WithFlashAttention())
	}
	k, err := kvType(r.KVTypeK)
	if err != nil {
		return nil, err
	}
	v, err := kvType(r.KVTypeV)
	if err != nil {
		return nil, err
	}
	return append(opts, ggufparser.WithLLaMACppCacheKeyType(k), ggufparser.WithLLaMACppCacheValueType(v)), nil
}

// kvType knows the types that llama.cpp's --cache-type-k accepts.
func kvType(name string) (ggufparser.GGMLType, error) {
	switch name {
	case "", "f16":
		return ggufparser.GGMLTypeF16, nil
	case "f32":
		return ggufparser.GGMLTypeF32, nil
	case "bf16":
		return ggufparser.GGMLTypeBF16, nil
	case "q8_0":
		return ggufparser.GGMLTypeQ8_0, nil
	case "q4_0":
		return ggufparser.GGMLTypeQ4_0, nil
	case "q4_1":
		return ggufparser.GGMLTypeQ4_1, nil
	case "iq4_nl":
		return ggufparser.GGMLTypeIQ4_NL, nil
	case "q5_0":
		return ggufparser.GGMLTypeQ5_0, nil
	case "q5_1":
		return ggufparser.GGMLTypeQ5_1, nil
	}
	return 0, fmt.Errorf("%w: KV type %q is not one of f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1", ErrRequest, name)
}

// HostLayers is the smallest number of layers to keep on the host so that the device part fits in budget bytes, and the
// estimate for it. When not even one layer fits the result is AllOnHost and the host-only estimate.
func HostLayers(f *gguf.File, r Request, budget uint64) (int, Estimate, error) {
	r.HostLayers = 0
	e, err := Of(f, r)
	if err != nil {
		return 0, e, err
	}
	low, high := 0, e.Layers // invariant: low-1 does not fit, high is "all on host"
	for low < high {
		mid := (low + high) / 2
		r.HostLayers = mid
		if e, err = Of(f, r); err != nil {
			return 0, e, err
		}
		if e.Device.Total() <= budget {
			high = mid
		} else {
			low = mid + 1
		}
	}
	r.HostLayers = low
	e, err = Of(f, r)
	if low == e.Layers {
		low = AllOnHost
	}
	return low, e, err
}

// MaxCells is the largest KV pool, in tokens and a multiple of step, for which device and host parts fit their budgets
// (bytes), at most limit; 0 when not even step fits.
func MaxCells(f *gguf.File, r Request, device, host uint64, step, limit int) (int, error) {
	if step <= 0 || limit < 0 {
		return 0, fmt.Errorf("%w: step %d, limit %d", ErrRequest, step, limit)
	}
	low, high := 0, limit/step // invariant: low fits (or is 0), high+1 does not
	for low < high {
		mid := (low + high + 1) / 2
		r.Cells = mid * step
		e, err := Of(f, r)
		if err != nil {
			return 0, err
		}
		if e.Device.Total() <= device && e.Host.Total() <= host {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low * step, nil
}
