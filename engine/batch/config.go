package batch

import (
	"errors"
	"fmt"
	"time"
)

// Layout is how the context lays out its KV cache. It is fixed when the context is created.
type Layout uint8

// Layouts of the KV cache.
const (
	// LayoutUnified is one pool of cells for all sequences (kv_unified=true). Prefixes are shared by reference and any
	// mix of rows is one evaluation.
	LayoutUnified Layout = iota
	// LayoutStreams is one buffer of Context cells per sequence id (kv_unified=false). Prefixes are shared by copying a
	// whole buffer, and rows are one evaluation only when their ids are consecutive and their token counts equal.
	LayoutStreams
)

// String is "unified" or "streams".
func (l Layout) String() string {
	if l == LayoutStreams {
		return "streams"
	}
	return "unified"
}

// Config is what a Scheduler must know about the context it plans for. The caller fills in what the context reports
// after creation and what its self-test found. The zero value of a field has the meaning written beside it.
type Config struct {
	Layout Layout
	// Cells is the size of the KV pool in tokens (llama_n_ctx). LayoutStreams ignores it: each sequence has Context.
	Cells int
	// Context is the most tokens that one sequence can hold (llama_n_ctx_seq). In LayoutUnified Context <= Cells.
	Context int
	// Sequences is n_seq_max: ids 0..Sequences-1 can be decoded.
	Sequences int
	// Parking is how many further ids, Sequences..Sequences+Parking-1, accept seq_cp and seq_rm but no decode: they keep
	// cached prefixes alive in LayoutUnified of pure attention models. 0 when the self-test refused it; then cached
	// prefixes occupy idle ids below Sequences. Sequences+Parking <= 256. Ignored by LayoutStreams and Recurrent.
	Parking int
	// MaxRunning bounds the sequences that are prefilled or decoded at the same time; 0: Sequences. A smaller value
	// leaves ids for cached prefixes and, for Recurrent, for checkpoints.
	MaxRunning int
	// Chunk is n_batch == n_ubatch: the most rows in one step.
	Chunk int
	// Outputs is n_outputs_max: the most rows with logits in one step; 0: Chunk.
	Outputs int
	// Window is the sliding window of iSWA models in tokens (n_swa) when their window cache is smaller than the full
	// one (swa_full=false), else 0.
	Window int
	// WindowCells is the size of the window cache in cells, per pool or per stream like Cells and Context. Needed with Window.
	WindowCells int
	// Recurrent says that the model carries a state which cannot be rolled back (recurrent and hybrid models). Prefixes are reused
	// only as whole states, and prefill and decode rows never share a step.
	Recurrent bool
	// NoAttention says, with Recurrent, that there are no KV cells at all (Mamba, RWKV): only ids are accounted.
	NoAttention bool

	// ITLTarget bounds a step that holds decode rows; 0: the larger of 50 ms and 2.5 times a decode-only step.
	ITLTarget time.Duration
	// IdleTarget bounds a step without decode rows, which bounds how long a cancel or a new request waits; 0: 250 ms.
	IdleTarget time.Duration
	// MinPrefill is the smallest prefill worth a step beside decodes, in tokens: below it the weights are read for
	// little work; 0: 64.
	MinPrefill int
	// FollowMin is the least uncached common prefix, in tokens, for which a request waits for another one that is
	// computing it; 0: 64. Choices of one request always follow their first.
	FollowMin int
	// MinShare is the shortest cached prefix that a request starts from, in tokens: sharing scans all cells in LayoutUnified
	// and copies a whole buffer in LayoutStreams; 0: 16 and 64.
	MinShare int
	// CopyTime is what copying one sequence takes in LayoutStreams, whatever its length; 0: unknown.
	CopyTime time.Duration
	// Host is the memory that cached prefixes move to; none for Window, Recurrent, NoCopy and NoTrim, and none for LayoutStreams,
	// where idle prefixes cost nothing and the library puts copies of sequences off until the next decode, but not saved states.
	Host Host
	// TenantCache keeps the prefixes of different tenants apart.
	TenantCache bool
	// QueueLimit bounds waiting requests; 0: 512.
	QueueLimit int

	// NoCopy, NoPad and NoTrim switch features off that the self-test found broken: sharing by seq_cp, padding rows, and
	// seq_rm of a sequence's tail.
	NoCopy, NoPad, NoTrim bool
}

// Host describes host memory for cached prefixes, and what it takes to move one. The zero value: there is none.
type Host struct {
	// Bytes is the budget.
	Bytes int64
	// A saved sequence of n tokens takes EntryBytes + n*TokenBytes.
	EntryBytes, TokenBytes int64
	// Save and Load are a first guess of what a token takes to be copied, Move of what every copy takes beside that. The first
	// two are corrected by what steps take.
	Save, Load, Move time.Duration
	// Range is what every further run of consecutive cells adds to Move, and not 0 where loads must be into such runs: on a GPU each run is a
	// transfer for each layer, and so is each cell of a load into others. Then sequences come back in parts. PartBytes bounds a part.
	Range     time.Duration
	PartBytes int64
}

// ErrConfig is wrapped by every error of Validate.
var ErrConfig = errors.New("batch: bad config")

// Validate names the first field that cannot be.
func (c *Config) Validate() error {
	bad := func(field, why string) error { return fmt.Errorf("%w: %s %s", ErrConfig, field, why) }
	switch {
	case c.Context <= 0:
		return bad("Context", "must be positive")
	case c.Layout > LayoutStreams:
		return bad("Layout", "is unknown")
	case c.Layout == LayoutUnified && c.Cells < c.Context && !c.NoAttention:
		return bad("Cells", "must be at least Context")
	case c.Sequences < 1 || c.Parking < 0 || c.Sequences+c.Parking > MaxIDs:
		return bad("Sequences", fmt.Sprintf("and Parking must be between 1 and %d together", MaxIDs))
	case c.MaxRunning < 0 || c.MaxRunning > c.Sequences:
		return bad("MaxRunning", "must be between 0 and Sequences")
	case c.Chunk < 1:
		return bad("Chunk", "must be positive")
	case c.Outputs < 0:
		return bad("Outputs", "must not be negative")
	case c.Window < 0 || (c.Window > 0 && c.WindowCells < c.Window+c.Chunk):
		return bad("WindowCells", "must hold one window and one chunk")
	case c.ITLTarget < 0 || c.IdleTarget < 0 || c.MinPrefill < 0 || c.FollowMin < 0 || c.MinShare < 0 || c.QueueLimit < 0 || c.CopyTime < 0:
		return bad("ITLTarget", "and the other limits must not be negative")
	case c.Host.Bytes < 0 || c.Host.EntryBytes < 0 || c.Host.TokenBytes < 0 || c.Host.Save < 0 || c.Host.Load < 0 || c.Host.Move < 0 ||
		c.Host.Range < 0 || c.Host.PartBytes < 0:
		return bad("Host", "must not hold anything negative")
	}
	return nil
}

// MaxIDs is llama_max_parallel_sequences() of the pinned library: sequence ids are below it.
const MaxIDs = 256

// withDefaults fills in the zero values.
func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxRunning, c.Sequences)
	def(&c.Outputs, c.Chunk)
	def(&c.MinPrefill, 64)
	def(&c.FollowMin, 64)
	def(&c.QueueLimit, 512)
	if c.Layout == LayoutStreams {
		def(&c.MinShare, 64)
	}
	def(&c.MinShare, 16)
	c.MinPrefill = min(c.MinPrefill, c.Chunk)
	c.MaxRunning = min(c.MaxRunning, c.Outputs, c.Chunk)
	if c.IdleTarget == 0 {
		c.IdleTarget = 250 * time.Millisecond
	}
	if c.Layout == LayoutStreams || c.Recurrent {
		c.Parking = 0
	}
	if c.Layout == LayoutStreams || c.Window > 0 || c.Recurrent || c.NoCopy || c.NoTrim || c.Host.TokenBytes == 0 {
		c.Host.Bytes = 0
	}
	if c.Layout == LayoutStreams {
		c.Cells = c.Context * c.Sequences
	}
	return c
}
