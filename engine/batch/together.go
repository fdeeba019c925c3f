package batch

import (
	"math"
	"slices"
	"time"
)

// On a CPU prompts are computed much faster alone than beside decode rows: in large steps products have better kernels, and there is no time
// between tokens to keep. So prompts that begin together start to answer together (startTogether), and prompts wait for answers that are
// about to end (waitForDecodes), each where the mean time to the first token is shorter for it. The answers themselves come faster, too.

const (
	// togetherMost is for how long a prompt may be kept from its first token for the sake of others, in idle targets, and togetherStretch
	// the same in times that it took to be ready: who finds everything cached does not wait for long prompts.
	togetherMost, togetherStretch = 3, 8
	// togetherLeast is how long prompts must take to be worth a thought, in seconds.
	togetherLeast = 0.1
	// togetherGain is what part of the mean time to the first token must be left.
	togetherGain = 0.9
	// shortAnswer is up to what part of its prompt's time in large steps an answer may take to count for nothing.
	shortAnswer = 0.2
	// waitMost is how much longer than expected decode rows may take to end for which prompts wait.
	waitMost = 1.2
	// outputGuess is how long the longest answer is thought to become, in lengths that four of five recent ones stayed below.
	outputGuess = 1.5
	// company is for how long a prompt that takes companyWorth or more waits for others behind the last one that came, and companyMost for all
	// of them: clients whose answers ended in one step ask again within some milliseconds.
	company, companyMost, companyWorth = 10 * time.Millisecond, 40 * time.Millisecond, 400 * time.Millisecond
)

// together decides when prompts are computed on a device on which that matters, and leaves those in s.prefills that get rows in this step.
func (s *Scheduler) together() {
	bulk := s.bulkTime()
	if s.waitForCompany(bulk) {
		s.prefills = s.prefills[:0]
		return
	}
	s.startTogether(bulk)
	s.waitForDecodes(bulk)
}

// worthTogether reports whether it matters when the prompts are computed, at bulk seconds a row, and whether enough is known to say so.
func (s *Scheduler) worthTogether(bulk float64) bool {
	return s.cost.beside.size.largest > 0 && float64(rowsLeft(s.prefills))*bulk > togetherLeast
}

// waitForCompany reports whether a step without decode rows waits for prompts that come at about the same time as those that are there, and
// says until when. Once it has begun it takes up to the idle target, and its prompts decode before others have begun.
func (s *Scheduler) waitForCompany(bulk float64) bool {
	if len(s.decodes) > 0 || float64(rowsLeft(s.prefills))*bulk < companyWorth.Seconds() {
		return false
	}
	oldest, newest := s.now, time.Duration(0)
	for _, r := range s.prefills {
		oldest, newest = min(oldest, r.job.submitted), max(newest, r.job.submitted)
	}
	wait := min(newest+company, oldest+companyMost) - s.now
	if wait <= 0 {
		return false
	}
	s.step.Wait = wait
	return true
}

// startTogether decides, for a step without decode rows, whether the prompts in it are kept from their first tokens: each is computed but for
// its last row, and these are one step when all of them are ready. Otherwise the first one to end would decode, and the others come in by
// a few rows a step. It leaves those in s.prefills that get rows.
func (s *Scheduler) startTogether(bulk float64) {
	s.holding = false
	if len(s.decodes) > 0 || len(s.prefills) < 2 || bulk <= 0 {
		return
	}
	ready, peers := 0, 0 // of the first one's class: the others go behind them
	for _, r := range s.prefills {
		peer, is := r.class() == s.prefills[0].class(), s.isReady(r)
		if peer {
			peers++
		}
		if peer && is {
			ready++
		}
		if is && r.ready == 0 {
			r.ready = s.now
		}
	}
	if ready == len(s.prefills) || !s.worthTogether(bulk) {
		return
	}
	group := s.group(bulk)
	left := rowsLeft(s.prefills[:group])
	took := float64(left) * bulk
	if group == len(s.prefills) && took <= s.idleTarget() && int(left) <= s.room() {
		return // all end in this step
	}
	if ready < group && group > 1 {
		if late, _ := s.apart(s.prefills[:group], bulk); sooner(group, took, late) {
			s.holding = true
			s.keepReady(false)
			return
		}
	}
	if ready > 1 {
		s.prefills = s.prefills[:peers]
		s.keepReady(true)
	}
}

// allReady reports whether the prompts in s.prefills, more than one, lack their last rows only: these are one step then.
func (s *Scheduler) allReady() bool {
	return len(s.prefills) > 1 && !slices.ContainsFunc(s.prefills, func(r *run) bool { return !s.isReady(r) })
}

// lastRows is a step of the last rows of all prompts.
func (s *Scheduler) lastRows() packing {
	return packing{k: len(s.prefills), each: int32(min(len(s.prefills), s.room()))}
}

// isReady reports whether only the last row of a prompt is missing.
func (s *Scheduler) isReady(r *run) bool { return r.have == r.target-1 }

// keepReady leaves the ready prompts in s.prefills, or the others.
func (s *Scheduler) keepReady(ready bool) {
	n := 0
	for _, r := range s.prefills {
		if s.isReady(r) == ready {
			s.prefills[n] = r
			n++
		}
	}
	s.prefills = s.prefills[:n]
}

// rowsLeft is how many rows some prompts lack.
func rowsLeft(prompts []*run) (n int32) {
	for _, r := range prompts {
		n += r.target - r.have
	}
	return n
}

// group is how many of the first prompts may start together: of one class, none of whose clients has a token yet, all of which can be
// computed before the first of them has been ready for too long.
func (s *Scheduler) group(bulk float64) int {
	at, until := s.now.Seconds(), math.Inf(1)
	class := s.prefills[0].class()
	for i, r := range s.prefills {
		if r.class() != class || len(r.gen) > 0 || r.job.MaxTokens == 0 {
			return i
		}
		ready := r.ready.Seconds()
		if !s.isReady(r) {
			at += float64(r.target-r.have-1) * bulk
			ready = at
		}
		if at > until {
			return i
		}
		until = min(until, ready+min(togetherMost*s.cfg.IdleTarget.Seconds(), togetherStretch*(ready-r.job.submitted.Seconds())))
	}
	return len(s.prefills)
}

// sooner reports whether the first tokens of n prompts come sooner on average when all of them come in took seconds than apart, where the sum of
// the times to them is late.
func sooner(n int, took, late float64) bool { return float64(n)*took <= togetherGain*late }

// apart predicts what happens when each of some prompts decodes as soon as it can: the first one is computed in large steps when nothing
// decodes, a row in bulk seconds, the others beside more and more decode rows. It returns the sum of the times to their first tokens and the
// last one of them, in seconds; 0: unknown.
func (s *Scheduler) apart(prompts []*run, bulk float64) (late, last float64) {
	n := len(s.decodes)
	for _, r := range prompts {
		row := bulk
		if n > 0 {
			if row = s.besideTime(n); row <= 0 {
				return 0, 0
			}
		}
		if !s.isReady(r) { // its last row is a decode row
			last += float64(r.target-r.have) * row
		}
		late += last
		if s.answers(r, bulk) {
			n++
		}
	}
	return late, last
}

// answers reports whether a prompt's answer takes long enough to be in the way of other prompts: one of a single token never does.
func (s *Scheduler) answers(r *run, bulk float64) bool {
	return (s.outputLeft(r)-1)*s.decodeTimeOf(1) > shortAnswer*float64(r.target-r.cached)*bulk
}

// waitForDecodes takes the prompts out of s.prefills that had better wait for the decode rows to end, to be computed as fast as the device
// can: beside them they would come in by a few rows a step. None waits for much longer than it was thought to, nor for longer than
// computing all of them beside the decode rows takes, so that a wrong guess at most doubles that.
func (s *Scheduler) waitForDecodes(bulk float64) {
	n := len(s.decodes)
	if n == 0 || !s.worthTogether(bulk) || s.waitedEnough() {
		return
	}
	if s.cost.decode[bucketOf(n)].n == 0 && s.sinceGrant < persistent { // what these are promised follows from a step of theirs alone
		s.sinceGrant++
		s.prefills = s.prefills[:0]
		return
	}
	longest := 0.0
	for _, r := range s.decodes {
		longest = max(longest, s.outputLeft(r))
	}
	ends := longest * s.decodeTimeOf(n)
	late, last := s.apart(s.prefills, bulk)
	if sooner(len(s.prefills), ends+float64(rowsLeft(s.prefills))*bulk, late) {
		s.keepQuick(ends, bulk, s.now+toDuration(min(last, waitMost*ends)))
	}
}

// waitedEnough reports whether a prompt must not wait for decode rows any longer, whose client has tokens already or whose class is higher than
// that of some of them.
func (s *Scheduler) waitedEnough() bool {
	lowest := s.decodes[0].job.Priority
	for _, r := range s.decodes {
		lowest = min(lowest, r.job.Priority)
	}
	return slices.ContainsFunc(s.prefills, func(r *run) bool {
		return r.waitUntil > 0 && s.now > r.waitUntil || len(r.gen) > 0 || r.class() > lowest
	})
}

// keepQuick leaves the prompts in s.prefills that are better computed now although the others wait until, as they take little. The decode
// rows end in so many seconds.
func (s *Scheduler) keepQuick(ends, bulk float64, until time.Duration) {
	row, kept := s.besideTime(len(s.decodes)), 0
	for _, r := range s.prefills {
		if left := float64(r.target - r.have); left*row <= ends+left*bulk {
			s.prefills[kept] = r
			kept++
		} else if r.waitUntil == 0 {
			r.waitUntil = until
		}
	}
	s.prefills = s.prefills[:kept]
}

// outputLeft guesses how many tokens a choice has still to produce: one that is longer than most is thought to be half-way.
func (s *Scheduler) outputLeft(r *run) float64 {
	made := float64(len(r.gen) - r.resume)
	return min(float64(r.left(s.cfg.Context)), max(outputGuess*s.output-made, made))
}
