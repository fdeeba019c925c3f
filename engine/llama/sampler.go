package llama

// #include "sampler.h"
import "C"

import (
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"unsafe"
)

// Sampler runs the fused kernel: one call samples every row of a step, on its
// own small pool of threads. One goroutine at a time; a second one panics.
type Sampler struct {
	lease
	busy  atomic.Bool
	h     *C.hs_sampler
	jobs  []C.hs_job
	vocab int
	// Scratch of Resample, grown to the vocabulary when a grammar asks for it.
	ids     []Token
	logits  []float32
	ok      []bool
	allowed []Token
}

// Job asks for one token: row Index of the step's rows, by the settings of Row.
// Several jobs may name one index (n > 1 of one prompt), but not one Row.
type Job struct {
	Row   *Row
	Index int
}

// NewSampler makes a sampler for a vocabulary. threads counts the caller's own;
// maxRows is the most jobs of one Sample. Errors: ErrRange, ErrOutOfMemory.
func NewSampler(vocab, maxRows, threads int, log *slog.Logger) (*Sampler, error) {
	return newSampler(vocab, maxRows, threads, C.HS_SIMD_BEST, log)
}

func newSampler(vocab, maxRows, threads, simd int, log *slog.Logger) (*Sampler, error) {
	if vocab < 1 || maxRows < 1 || maxRows > 1<<16 || threads < 1 || threads > 256 {
		return nil, fail("new sampler", ErrRange, fmt.Sprintf("%d tokens, %d rows, %d threads", vocab, maxRows, threads))
	}
	h := C.hs_sampler_new(C.int32_t(vocab), C.int32_t(threads), C.int32_t(maxRows), C.int32_t(simd))
	if h == nil {
		return nil, fail("new sampler", ErrOutOfMemory, "")
	}
	s := &Sampler{h: h, vocab: vocab, jobs: unsafe.Slice(C.hs_sampler_jobs(h), maxRows)}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	track(&s.lease, s, "sampler", log)
	return s, nil
}

// Close stops the threads.
func (s *Sampler) Close() error {
	if s.closed.Load() {
		return nil
	}
	s.claim()
	defer s.busy.Store(false)
	if s.release() {
		C.hs_sampler_free(s.h)
		s.h, s.jobs = nil, nil
	}
	return nil
}

func (s *Sampler) claim() {
	if !s.busy.CompareAndSwap(false, true) {
		panic("llama: sampler used by two goroutines at once")
	}
}

// SIMD tells which kernels are in use: 0 without vectors, 1 with AVX2, 2 with AVX-512.
func (s *Sampler) SIMD() int { return int(C.hs_sampler_simd(s.h)) }

// Sample samples all jobs and leaves the results in their rows. When some row
// has no token to give (ErrNoCandidate) the others are still sampled; Row.Err
// tells which. Other errors: ErrRange for an impossible job, ErrClosed; nothing
// was sampled then. rows must be those of the last step of an open context.
func (s *Sampler) Sample(rows Rows, jobs []Job) error {
	s.claim()
	defer s.busy.Store(false)
	if s.closed.Load() {
		return fail("sample", ErrClosed, "")
	}
	if len(jobs) == 0 {
		return nil
	}
	if len(jobs) > len(s.jobs) {
		return fail("sample", ErrRange, fmt.Sprintf("%d rows, at most %d", len(jobs), len(s.jobs)))
	}
	for i, j := range jobs {
		if err := s.check(rows, j); err != nil {
			return err
		}
		s.jobs[i] = C.hs_job{row: j.Row.h, logits: (*C.float)(rows.p[j.Index])}
	}
	return rowError(C.hs_sample(s.h, C.int32_t(len(jobs))))
}

// check is the guard in front of the kernel.
func (s *Sampler) check(rows Rows, j Job) error {
	switch {
	case j.Index < 0 || j.Index >= len(rows.p):
		return fail("sample", ErrRange, fmt.Sprintf("row %d of %d", j.Index, len(rows.p)))
	case rows.p[j.Index] == nil:
		return fail("sample", ErrUnsupported, "the context makes no logits")
	case j.Row == nil || j.Row.closed.Load():
		return fail("sample", ErrClosed, "row")
	case rows.vocab != s.vocab || j.Row.vocab != s.vocab:
		return fail("sample", ErrRange, fmt.Sprintf("row of %d tokens, settings for %d, sampler for %d", rows.vocab, j.Row.vocab, s.vocab))
	}
	return nil
}

func rowError(rc C.int) error {
	kind := ErrNoCandidate
	switch rc {
	case C.HS_OK:
		return nil
	case C.HS_NOMEM:
		kind = ErrOutOfMemory
	case C.HS_EXCEPTION:
		kind = ErrException
	}
	return fail("sample", kind, "")
}

// Resample bounds.
const (
	resampleFirst = 64   // candidates looked at first
	resampleGrow  = 8    // factor from one look to the next
	resampleTail  = 1e-4 // mass of unseen tokens, over that of the allowed ones, that is ignored
)

// Resample replaces the row's last token, which g rejected, by one that g
// allows, as if the grammar had filtered the vocabulary before everything else.
// It looks at the likeliest tokens first and at the whole vocabulary only when
// too few of them fit: exact for greedy, top-k and min-p rows, and within 1e-4
// of the probabilities otherwise. Errors: ErrNoCandidate when nothing fits.
func (s *Sampler) Resample(rows Rows, j Job, g *Grammar) error {
	s.claim()
	defer s.busy.Store(false)
	if s.closed.Load() {
		return fail("resample", ErrClosed, "")
	}
	if err := s.check(rows, j); err != nil {
		return err
	}
	r, logits := j.Row.h, (*C.float)(rows.p[j.Index])
	for k := min(max(resampleFirst, 2*int(r.top_k)), s.vocab); ; k = min(k*resampleGrow, s.vocab) {
		if len(s.ids) < k {
			s.ids, s.logits, s.ok = make([]Token, k), make([]float32, k), make([]bool, k)
		}
		var rest C.double
		n := int(C.hs_candidates(s.h, r, logits, C.int32_t(k), (*C.int32_t)(&s.ids[0]), (*C.float)(&s.logits[0]), &rest))
		if n < 0 {
			return rowError(C.int(n))
		}
		if n == 0 {
			return fail("resample", ErrNoCandidate, "")
		}
		if err := g.check(s.ids[:n], s.ok[:n]); err != nil {
			return err
		}
		enough := s.gather(r, n, float64(rest))
		if !enough && k < s.vocab && n == k {
			continue
		}
		if len(s.allowed) == 0 {
			return fail("resample", ErrNoCandidate, "no token fits the grammar")
		}
		return rowError(C.hs_resample(s.h, r, logits, (*C.int32_t)(&s.allowed[0]), C.int32_t(len(s.allowed))))
	}
}

// gather collects the allowed ones of n candidates and says whether tokens
// beyond them could still matter.
func (s *Sampler) gather(r *C.hs_row, n int, rest float64) bool {
	s.allowed = s.allowed[:0]
	top, mass := float32(0), 0.0
	temp := max(float64(r.temp), 1)
	for i := range n {
		if !s.ok[i] {
			continue
		}
		if len(s.allowed) == 0 {
			top = s.logits[i]
		}
		s.allowed = append(s.allowed, s.ids[i])
		mass += math.Exp(float64(s.logits[i]-s.logits[0]) / temp)
	}
	switch {
	case len(s.allowed) == 0:
		return false
	case r.chain != nil:
		return rest < resampleTail*mass
	case r.temp <= 0:
		return true
	case r.top_k > 0:
		return len(s.allowed) >= int(r.top_k) || rest < resampleTail*mass
	case r.min_p > 0 && r.top_p >= 1:
		return float64(s.logits[n-1]) < float64(top)+math.Log(float64(r.min_p)) || rest < resampleTail*mass
	}
	return rest < resampleTail*mass
}

// Distribution returns up to limit of the tokens a job would draw from, with
// their probabilities after all filters, likeliest first. It draws nothing. Not
// for rows with Mirostat, which does not leave a distribution behind
// (ErrUnsupported). Other errors as Sample.
func (s *Sampler) Distribution(rows Rows, j Job, limit int) ([]Token, []float32, error) {
	s.claim()
	defer s.busy.Store(false)
	if s.closed.Load() {
		return nil, nil, fail("distribution", ErrClosed, "")
	}
	if err := s.check(rows, j); err != nil {
		return nil, nil, err
	}
	limit = min(limit, s.vocab)
	if limit < 1 {
		return nil, nil, fail("distribution", ErrRange, fmt.Sprintf("limit %d", limit))
	}
	tok, prob := make([]Token, limit), make([]float32, limit)
	n := C.hs_distribution(s.h, j.Row.h, (*C.float)(rows.p[j.Index]), C.int32_t(limit), (*C.int32_t)(&tok[0]), (*C.float)(&prob[0]))
	if n == C.HS_RANGE {
		return nil, nil, fail("distribution", ErrUnsupported, "mirostat")
	}
	if n < 0 {
		return nil, nil, rowError(C.int(n))
	}
	return tok[:n], prob[:n], nil
}
