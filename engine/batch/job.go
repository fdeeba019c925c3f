package batch

import (
	"time"

	"hearth/engine"
	"hearth/engine/prefix"
)

// job is a Job in the scheduler: its choices are runs, the unit that is queued, prefilled, decoded and preempted.
type job struct {
	Job
	order  uint64 // of arrival
	runs   []run
	live   int // runs that have not finished
	tenant *tenant
	key    prefix.Key
	held   bool

	submitted, admitted, first time.Duration
	wasAdmitted, wasFirst      bool
	usage                      Usage
}

type runState uint8

const (
	stateWaiting runState = iota
	statePrefill
	stateDecode
	stateDone
)

// run is one choice of a job. Its tokens are job.Prompt followed by gen.
//
// Invariants: waiting and done runs have id -1 and have 0. A prefilling run has have < target. A decoding run has
// have == len()-1: the last sampled token is not in the KV cache yet.
type run struct {
	job    *job
	choice int32
	state  runState
	id     int32
	have   int32          // tokens in the KV cache
	target int32          // where the prefill ends: len() at admission
	cached int32          // of them found in the cache at admission
	gen    []engine.Token // Resume and what was sampled since
	resume int            // len(Resume)

	preempted int
	skip      uint64 // step in which admission passed it over
	match     prefix.Match
	matched   uint64 // tree version of match, 0: never
	followed  uint64 // arrival number of the job that it last waited for
	boost     engine.Priority
	charged   bool          // idle prefixes have paid for what this run's prefill reads of them
	stop      int32         // a follower starts from exactly this length, where the prefill must stop (Recurrent, Window); 0: none
	waitUntil time.Duration // for how long its prompt may wait for decode rows to end; 0: it has not
	ready     time.Duration // when only the last row of its prompt was missing; 0: that was not seen
	take      int32         // rows in the step that is planned
	fill      int32         // padding rows behind them
}

// class is its job's, or that of who waits for its prompt.
func (r *run) class() engine.Priority { return max(r.job.Priority, r.boost) }

func (r *run) len() int32 { return int32(len(r.job.Prompt) + len(r.gen)) }

// token returns the run's i-th token.
func (r *run) token(i int32) engine.Token {
	if n := int32(len(r.job.Prompt)); i >= n {
		return r.gen[i-n]
	}
	return r.job.Prompt[i]
}

// left is how many tokens the run may still sample, in a context of the given size.
func (r *run) left(context int) int {
	n := context - int(r.len())
	if r.job.MaxTokens >= 0 {
		n = min(n, r.job.MaxTokens-len(r.gen))
	}
	return max(n, 0)
}

// before orders runs by class, then by arrival: the first one is never preempted.
func (r *run) before(o *run) bool {
	if r.job.Priority != o.job.Priority {
		return r.job.Priority > o.job.Priority
	}
	if r.job.order != o.job.order {
		return r.job.order < o.job.order
	}
	return r.choice < o.choice
}

// tenant is the fairness account of one API key.
type tenant struct {
	name    string
	deficit int64 // service that it may still get in this round, in prefill tokens; a decoded token counts decodeWeight
	jobs    int
	seen    uint64 // arrival number of its newest job, for forgetting old tenants
}

// Service is counted as in the virtual token counter of VTC (arXiv 2401.00588): output tokens cost twice as much.
const (
	prefillWeight = 1
	decodeWeight  = 2
	// quantum is what a tenant gets in each round of deficit: about one chat answer, so that rounds are short beside
	// what a person notices and long enough for prefix locality within a round (DLPM, arXiv 2501.14312).
	quantum = 2048
	// maxTenants bounds the accounts that are kept for tenants without jobs.
	maxTenants = 1024
)

// tenantOf returns the account of a tenant, new ones with a full quantum.
func (s *Scheduler) tenantOf(name string) *tenant {
	t := s.tenants[name]
	if t == nil {
		if len(s.tenants) >= maxTenants {
			s.forgetTenant()
		}
		t = &tenant{name: name, deficit: quantum}
		s.tenants[name] = t
	}
	t.seen = s.arrivals
	return t
}

// forgetTenant drops the account that has been without jobs for the longest time.
func (s *Scheduler) forgetTenant() {
	var old *tenant
	for _, t := range s.tenants {
		if t.jobs == 0 && (old == nil || t.seen < old.seen) {
			old = t
		}
	}
	if old != nil {
		delete(s.tenants, old.name)
	}
}
