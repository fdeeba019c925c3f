package worker

import (
	"fmt"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/enginepb"
)

// job is one request in the worker. It is built by a preparing goroutine and belongs to the loop afterwards.
type job struct {
	id      batch.JobID
	wire    uint64 // the session's name for it
	session *session
	req     engine.Request
	prompt  []engine.Token
	marks   []int // where later requests may diverge, for models that keep whole states
	seed    uint64
	choices []choice
	resumed int // tokens of Resume, over all choices
	filled  int // most tokens of the prompt that were in the context at once
	last    *enginepb.Event
	lastIn  uint64 // loop.gen when last was made
}

// choice is one continuation of a job.
type choice struct {
	row      Row
	text     textStream
	stopHit  string
	finished bool
	ev       *enginepb.Event // made when loop.gen was evIn
	evIn     uint64
	// done is the finish that its resumed tokens imply, "" usually.
	done engine.FinishReason
}

// prepare tokenises a request and makes its samplers: everything that needs the vocabulary but not the context.
func prepare(m Model, req engine.Request, context int) (*job, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	prompt, err := tokenize(m, &req.Prompt, m.Info().VocabSize)
	if err != nil {
		return nil, err
	}
	switch {
	case len(prompt) == 0:
		return nil, engine.Invalid("prompt", "must not be empty")
	case len(prompt) >= context:
		return nil, engine.ContextLength(len(prompt), context)
	}
	j := &job{req: req, prompt: prompt, choices: make([]choice, req.Choices())}
	if info := m.Info(); info.Recurrent || info.Hybrid {
		j.marks = turnEnds(m, prompt)
	}
	if req.Sampling.Seed != nil {
		j.seed = *req.Sampling.Seed
	} else {
		j.seed = uint64(time.Now().UnixNano()) // the supervisor sets one; this serves other callers
	}
	logprobs := -1
	if req.Logprobs {
		logprobs = req.TopLogprobs
	}
	for i := range j.choices {
		c := &j.choices[i]
		c.text.init(req.Stop)
		row, err := m.NewRow(RowParams{
			Sampling: &j.req.Sampling, Seed: choiceSeed(j.seed, i), Logprobs: logprobs, IgnoreEOS: req.IgnoreEOS,
		})
		if err != nil {
			j.close()
			return nil, err
		}
		c.row = row
		row.AcceptPrompt(prompt)
		if i < len(req.Resume) {
			if err := j.resume(m, c, req.Resume[i]); err != nil {
				j.close()
				return nil, err
			}
		}
	}
	return j, nil
}

// turnEnds returns the lengths of the prompt up to its first and its last turn's end: a system prompt that others share, and
// everything before the generation prompt, where the next turn goes on differently.
func turnEnds(v Vocabulary, prompt []engine.Token) []int {
	first, last := 0, 0
	for i, t := range prompt {
		if v.IsEOG(t) {
			last = i + 1
			if first == 0 {
				first = last
			}
		}
	}
	switch {
	case first == 0:
		return nil
	case first == last:
		return []int{first}
	}
	return []int{first, last}
}

// choiceSeed gives every choice its own stream of draws; the first one has the request's seed itself, so that n does
// not change it. The constant is 2^64 divided by the golden ratio, which spreads consecutive numbers.
func choiceSeed(seed uint64, i int) uint64 { return seed + uint64(i)*0x9E3779B97F4A7C15 }

// resume replays tokens that an earlier run produced and sent, silently.
func (j *job) resume(m Model, c *choice, tokens []engine.Token) error {
	size := m.Info().VocabSize
	for _, t := range tokens {
		if t < 0 || int(t) >= size {
			return engine.Invalid("resume", fmt.Sprintf("holds token %d, the vocabulary has %d", t, size))
		}
	}
	if err := c.row.Resume(tokens); err != nil {
		return err
	}
	j.resumed += len(tokens)
	var sent []byte
	for i, t := range tokens {
		var reason engine.FinishReason
		sent, reason = c.feed(m, &j.req, t, sent[:0])
		switch {
		case reason != "":
			c.done = reason
			return nil
		case j.req.MaxTokens >= 0 && i+1 >= j.req.MaxTokens:
			c.done = engine.FinishLength
			return nil
		}
	}
	return nil
}

// feed takes one sampled token into the choice's text: it appends what is certain to dst and says whether the token
// ends the choice.
func (c *choice) feed(v Vocabulary, req *engine.Request, t engine.Token, dst []byte) ([]byte, engine.FinishReason) {
	if !req.IgnoreEOS && v.IsEOG(t) {
		return dst, engine.FinishStop
	}
	for _, s := range req.StopTokens {
		if s == t {
			return dst, engine.FinishStop
		}
	}
	dst, stopped := c.text.push(dst, v.Piece(t))
	if stopped {
		c.stopHit = c.text.hit
		return dst, engine.FinishStop
	}
	return dst, ""
}

// close frees the samplers.
func (j *job) close() {
	for i := range j.choices {
		if r := j.choices[i].row; r != nil {
			r.Close()
			j.choices[i].row = nil
		}
	}
}

// batchJob is the job as the scheduler sees it.
func (j *job) batchJob() batch.Job {
	return batch.Job{
		ID: j.id, Prompt: j.prompt, Marks: j.marks, Choices: len(j.choices), MaxTokens: j.req.MaxTokens, Resume: j.req.Resume,
		Tenant: j.req.Tenant, Priority: j.req.Priority, Cache: j.req.CachePrompt,
	}
}
