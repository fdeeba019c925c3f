package batch

import (
	"time"

	"hearth/engine"
)

// JobID names a job; the caller chooses it, unique among the jobs that have not finished.
type JobID uint64

// Job is a request as the scheduler sees it: tokenised, with its limits. The scheduler keeps the slices until the
// job's EventDone and never writes to them.
type Job struct {
	ID JobID
	// Prompt is 1..Context-1 tokens.
	Prompt []engine.Token
	// Choices is how many continuations to sample; 0 means 1. The prompt is prefilled once.
	Choices int
	// MaxTokens bounds each choice's output, Resume included. Negative: until the context is full. Zero: prefill only.
	MaxTokens int
	// Resume lists, per choice, tokens that it already produced; it continues behind them. May be shorter than Choices.
	Resume   [][]engine.Token
	Tenant   string
	Priority engine.Priority
	// Cache lets cached prefixes be used and kept.
	Cache bool
	// Namespace separates prefixes that must not be shared beside tokens: adapter set, control vector.
	Namespace uint64
	// Marks are prefix lengths of Prompt, ascending, at which a later request is likely to diverge: the end of the system
	// prompt, the end of the last user turn. Recurrent models keep a checkpoint there. Optional.
	Marks []int
}

// OpKind is a change to the context's memory.
type OpKind uint8

// Memory operations. They never fail when the step is applied in order.
const (
	// OpRemove is llama_memory_seq_rm(Seq, P0, P1); P0 0 and P1 -1 clear the sequence.
	OpRemove OpKind = iota
	// OpCopy is llama_memory_seq_cp(Src, Seq, P0, P1): the destination is empty, or has none of these positions behind an OpLoad, and
	// P1 -1 means all. LayoutStreams and Recurrent copy whole sequences only.
	OpCopy
	// OpSave copies the state of Seq, which can be decoded, into host slot Host, which is empty or holds something that nobody
	// wants any more. It may fail: then the slot is named in Result.Lost.
	OpSave
	// OpLoad gives Seq, which is empty, cells P0..P1-1 of those that the state in host slot Host lists. The slot keeps all.
	OpLoad
	// OpForget empties host slot Host, if it holds anything.
	OpForget
)

// Op is one change to the context's memory, to be applied in order.
type Op struct {
	Kind     OpKind
	Seq, Src int32
	P0, P1   int32
	Host     int32
}

// RowKind says what a row of the batch is for.
type RowKind uint8

// Kinds of rows.
const (
	RowDecode  RowKind = iota // the last sampled token of a choice
	RowPrefill                // a token of a prompt, or of what a resumed choice already had
	RowPad                    // fills the step up to a shape that the backend has a graph for; its logits are ignored
)

// Row is one entry of the batch that goes to llama_decode: one token at one position of one sequence.
type Row struct {
	Token engine.Token
	Pos   int32
	Seq   int32
	// Output is the row's index among the rows with logits, -1 for a row without.
	Output int32
	Kind   RowKind
}

// Sample asks for one token of one choice. Several choices of one job may be sampled from the same row.
type Sample struct {
	Job    JobID
	Choice int32
	// Row is the index into Step.Rows (what llama_get_logits_ith takes), Output its index among the rows with logits.
	Row, Output int32
	// Index is how many tokens the choice has produced before this one, Resume included: the counter of its random draws.
	Index int32
}

// Step is what Plan decided. Its slices belong to the Scheduler and are valid until the next Plan.
type Step struct {
	// Number counts steps from 1.
	Number uint64
	// Ops come before the decode, After behind a decode that returned 0.
	Ops, After []Op
	// Rows is the batch in order. It may be empty while Ops is not.
	Rows    []Row
	Samples []Sample
	Events  []Event
	// Decodes, Prefills and Pads count the rows by kind; Outputs counts rows with logits.
	Decodes, Prefills, Pads, Outputs int
	// Evaluations is how many graph evaluations llama.cpp makes of the rows.
	Evaluations int
	// Predicted is the cost model's guess of the step's duration; 0 before it has learned anything.
	Predicted time.Duration
	// Wait, of an idle step, is when to plan again although nothing may have come: a prompt waits for company.
	Wait time.Duration
}

// Idle reports that there is nothing to do until the next Submit, Cancel or Hold.
func (s *Step) Idle() bool { return len(s.Rows) == 0 && len(s.Ops) == 0 }

// Code is how the decode of a step ended, in llama_decode's numbers.
type Code int32

// Codes of llama_decode.
const (
	CodeOK      Code = 0
	CodeNoSlot  Code = 1  // no cells: nothing changed
	CodeAborted Code = 2  // the abort callback said so: some evaluations may have finished
	CodeInvalid Code = -1 // refused: nothing changed
	// CodeFatal and everything below: the backend failed and the worker is about to be replaced.
	CodeFatal Code = -2
)

// Sampled answers one Sample.
type Sampled struct {
	Token engine.Token
	// Finish ends the choice with this token (stop string, end of generation, error in the sampler); empty: it goes on. The
	// scheduler itself ends choices at MaxTokens and at the end of the context.
	Finish engine.FinishReason
}

// Result is how a step went. Sampled is parallel to Step.Samples when Code is CodeOK and ignored otherwise.
type Result struct {
	Code     Code
	Duration time.Duration // of the decode until its results were there
	Sampled  []Sampled
	// Saving and Loading are what the step's OpSave and OpLoad took together.
	Saving, Loading time.Duration
	// Lost are host slots that an OpSave of this step could not fill.
	Lost []int32
}

// EventKind says what an Event tells.
type EventKind uint8

// Kinds of Event.
const (
	// EventAdmitted: the choice left the queue; Cached of its Total tokens came from the cache. Again after a preemption.
	EventAdmitted EventKind = iota + 1
	// EventPrefill: Done of Total tokens are in the cache, Cached of them were found there.
	EventPrefill
	// EventFinished: the choice ended for Reason. Its last token, if it had one, is in the Sampled of the same Commit.
	EventFinished
	// EventDone: every choice of the job ended; Usage has the totals. The job's slices are free again.
	EventDone
	// EventPreempted: the choice lost its place and waits again. Its client sees a pause.
	EventPreempted
	// EventMismatch: llama_decode found no cells where the mirror had some. A bug, survived.
	EventMismatch
	// EventRelayout: the context is drained and Layout would serve the recent load better. The caller may create a
	// new context and call Relayout, or ignore it. It comes from Commit, and from a Plan that may be idle although jobs wait.
	EventRelayout
)

// Event is news for the caller. Fields that a kind does not mention are zero.
type Event struct {
	Kind                EventKind
	Job                 JobID
	Choice              int32
	Reason              engine.FinishReason
	Cached, Done, Total int32
	Usage               Usage
	Layout              Layout
}

// Usage is what a job cost.
type Usage struct {
	// Prompt is len(Job.Prompt); Cached is how many of them its first admission found in the cache, at most Prompt-1.
	Prompt, Cached int
	// Completion counts sampled tokens over all choices, without Resume.
	Completion int
	// Queue is Submit to the first admission, Prefill from there to the first sampled token, Decode from there to the end.
	Queue, Prefill, Decode time.Duration
	Preemptions            int
}

// Stats is the scheduler's state and its counters since New.
type Stats struct {
	// Running and Waiting count choices, Jobs requests that have not finished.
	Running, Waiting, Jobs int
	Layout                 Layout
	// CellsUsed includes CellsCached, the cells that only cached prefixes hold.
	CellsUsed, CellsTotal, CellsCached int
	// Span is n_kv, the cells that attention reads in every step of LayoutUnified; 0 in LayoutStreams.
	Span                   int
	Steps                  uint64
	PromptTokens           uint64 // prefilled, recomputation included
	CachedTokens           uint64
	CompletionTokens       uint64
	Preemptions, Evictions uint64
	EvictedCells           uint64
	Mismatches             uint64
	PadRows                uint64
	// HostPrefixes are cached prefixes in host memory, of HostTokens tokens and HostBytes bytes; HostLimit is the budget.
	HostPrefixes, HostTokens  int
	HostBytes, HostLimit      int64
	HostSaves, HostLoads      uint64
	LastDecodes, LastPrefills int
	LastStep                  time.Duration
}
