package batch

import (
	"errors"
	"time"

	"hearth/engine"
)

// ErrBusy is returned by Relayout while choices run.
var ErrBusy = errors.New("batch: choices are running")

// Scheduler plans steps for one llama context. Make one with New; it belongs to one goroutine.
type Scheduler struct {
	cfg  Config
	step Step
}

// New returns a scheduler for an empty context. The error wraps ErrConfig.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{cfg: cfg.withDefaults()}, nil
}

// Submit queues a job. The error is an *engine.Error: KindContextLength for a prompt that leaves no room for output,
// KindOverloaded for a full queue (RetryAfter is an estimate), KindInvalid for a job that cannot be.
func (s *Scheduler) Submit(now time.Duration, job Job) error { panic("not yet") }

// Cancel ends every choice of a job; the operations that free its cells are in the next Plan. The events (EventFinished with
// FinishCancelled, EventDone) come with the next Plan, too. It reports whether the job was there.
func (s *Scheduler) Cancel(now time.Duration, id JobID) bool { panic("not yet") }

// Finish ends one choice between steps, for a reason that came up outside of sampling (a deadline, a parser that has
// enough). Otherwise it is like Cancel.
func (s *Scheduler) Finish(now time.Duration, id JobID, choice int, reason engine.FinishReason) bool {
	panic("not yet")
}

// Hold stops a job's choices from decoding (a client that reads too slowly) until Hold(id, false).
func (s *Scheduler) Hold(id JobID, held bool) bool { panic("not yet") }

// Plan decides the next step. Time must not go backwards between calls.
func (s *Scheduler) Plan(now time.Duration) *Step { panic("not yet") }

// Commit takes the result of the step that Plan returned. The events are valid until the next Commit.
func (s *Scheduler) Commit(now time.Duration, r Result) []Event { panic("not yet") }

// Relayout forgets everything in the KV cache after the caller created a new, empty context with cfg; queued jobs
// stay. It returns an error wrapping ErrConfig when cfg cannot be, and ErrBusy when a choice is running.
func (s *Scheduler) Relayout(cfg Config) error { panic("not yet") }

// Stats returns the counters.
func (s *Scheduler) Stats() Stats { panic("not yet") }
