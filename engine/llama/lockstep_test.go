package llama_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"hearth/engine/batch"
	"hearth/engine/batch/kvsim"
	"hearth/engine/llama"
	"hearth/internal/toygguf"
)

// The scheduler plans with a mirror of llama.cpp's cells, and its own tests check that mirror against the simulator
// engine/batch/kvsim. These tests close the circle: the library and the simulator get the same steps, planned for
// random work, and must agree on return codes and on the first and last position of every sequence after each one.
// The logits of some samples are compared with those of the same tokens computed plainly in another context.

type lockstep struct {
	name   string
	spec   toygguf.Spec
	params llama.ContextParams
	cfg    batch.Config // the rest is taken from the context
	window bool
}

func lockstepCases() []lockstep {
	uni := func(ctx, seqs, chunk int) llama.ContextParams {
		return llama.ContextParams{Ctx: ctx, Batch: chunk, UBatch: chunk, SeqMax: seqs, OutputsMax: seqs, Threads: 1, KVUnified: true}
	}
	str := uni(256*4, 4, 64)
	host := batch.Host{Bytes: 3000, TokenBytes: 1, Save: time.Microsecond, Load: time.Microsecond}
	parts := host
	parts.Range, parts.PartBytes = 10*time.Microsecond, 50
	str.KVUnified = false
	return []lockstep{
		{name: "unified", spec: toygguf.Spec{Kind: toygguf.Llama, Layers: 2}, params: uni(512, 6, 64), cfg: batch.Config{Context: 256, Parking: 12}},
		{name: "unified without parking", spec: toygguf.Spec{Kind: toygguf.Llama, Layers: 2}, params: uni(512, 8, 64), cfg: batch.Config{Context: 512, MaxRunning: 4}},
		{name: "streams", spec: toygguf.Spec{Kind: toygguf.Llama, Layers: 2}, params: str, cfg: batch.Config{Layout: batch.LayoutStreams}},
		{name: "unified, many sequences", spec: toygguf.Spec{Kind: toygguf.Llama, Layers: 2}, params: uni(1536, 14, 64), cfg: batch.Config{Context: 256, Parking: 6}},
		{name: "streams, many sequences", spec: toygguf.Spec{Kind: toygguf.Llama, Layers: 2}, params: streamsOf(uni(256*14, 14, 64)), cfg: batch.Config{Layout: batch.LayoutStreams}},
		{name: "host memory", spec: toygguf.Spec{Kind: toygguf.Llama, Layers: 2}, params: uni(512, 6, 64), cfg: batch.Config{Context: 256, Parking: 12, Host: host}},
		{name: "host memory in parts", spec: toygguf.Spec{Kind: toygguf.Llama, Layers: 2}, params: flashOf(uni(512, 6, 64)), cfg: batch.Config{Context: 256, Parking: 12, Host: parts}},
		{name: "sliding window", spec: toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, Embd: 64, SWA: 96}, params: uni(1024, 4, 64), cfg: batch.Config{Context: 512, Parking: 6, Window: 96}, window: true},
		{name: "sliding window in streams", spec: toygguf.Spec{Kind: toygguf.Gemma3, Layers: 6, Embd: 64, SWA: 96}, params: streamsOf(uni(512*4, 4, 64)), cfg: batch.Config{Layout: batch.LayoutStreams, Window: 96}, window: true},
		{name: "hybrid", spec: toygguf.Spec{Kind: toygguf.Jamba}, params: uni(512, 6, 64), cfg: batch.Config{Context: 256, MaxRunning: 3, Recurrent: true}},
		{name: "recurrent", spec: toygguf.Spec{Kind: toygguf.Mamba}, params: uni(512, 6, 64), cfg: batch.Config{Context: 256, MaxRunning: 3, Recurrent: true, NoAttention: true}},
	}
}

func streamsOf(p llama.ContextParams) llama.ContextParams {
	p.KVUnified = false
	return p
}

func flashOf(p llama.ContextParams) llama.ContextParams {
	p.Flash = llama.FlashOn
	return p
}

var lockstepSeeds = flag.Uint64("lockstep", 1, "random runs of TestLockstep for each kind of context")

func TestLockstep(t *testing.T) {
	for _, c := range lockstepCases() {
		t.Run(c.name, func(t *testing.T) {
			for seed := range *lockstepSeeds {
				t.Run(fmt.Sprint(seed), func(t *testing.T) { c.run(t, seed) })
			}
		})
	}
}

// pair is the library and the simulator, doing the same.
type pair struct {
	t     *testing.T
	lib   *llama.Context
	plain *llama.Context // for plain recomputation, one sequence
	batch *llama.Batch
	sim   *kvsim.Sim
	cfg   batch.Config
	sched *batch.Scheduler
	now   time.Duration
	jobs  map[batch.JobID]*pairJob
	rng   *rand.Rand
	drawn int
	host  map[int32][]byte
	parts int // of states that came back in parts
}

type pairJob struct {
	tokens [][]llama.Token // by choice: prompt and output
}

func (c lockstep) run(t *testing.T, seed uint64) {
	m := toy(t, c.spec)
	p := &pair{t: t, jobs: map[batch.JobID]*pairJob{}, host: map[int32][]byte{}, rng: rand.New(rand.NewPCG(seed, 11))}
	p.lib = newContext(t, m, c.params)
	p.plain = newContext(t, m, llama.ContextParams{Ctx: 1024, Batch: 512, UBatch: 512, SeqMax: 1, Threads: 1, KVUnified: true, SWAFull: true})
	p.batch = newBatch(t, 512, 1)
	p.cfg = c.cfg
	p.cfg.Cells, p.cfg.Sequences, p.cfg.Chunk, p.cfg.Outputs = p.lib.NCtx(), p.lib.NSeqMax(), p.lib.NBatch(), p.lib.NOutputsMax()
	if p.cfg.Context == 0 {
		p.cfg.Context = p.lib.NCtxSeq()
	}
	if c.window {
		p.cfg.WindowCells = p.lib.WindowCells()
	}
	p.sim = kvsim.New(kvsim.ConfigOf(p.cfg))
	var err error
	if p.sched, err = batch.New(p.cfg); err != nil {
		t.Fatal(err)
	}
	trunk := prompt(p.cfg.Context, int(seed))
	id := batch.JobID(0)
	for id < 24 {
		for p.rng.IntN(3) > 0 {
			id++
			p.submit(id, trunk)
		}
		if p.rng.IntN(8) == 0 {
			p.sched.Cancel(p.now, 1+batch.JobID(p.rng.IntN(int(id)+1)))
		}
		for range p.rng.IntN(8) {
			p.step()
		}
	}
	for i := 0; p.step(); i++ {
		if i > 5000 {
			t.Fatal("no end")
		}
	}
	if st := p.sched.Stats(); p.cfg.Host.Bytes > 0 {
		t.Logf("saved %d, loaded %d, in %d parts", st.HostSaves, st.HostLoads, p.parts)
		if c.params.Flash == llama.FlashOn && st.HostLoads > 0 && p.parts <= int(st.HostLoads) {
			t.Error("nothing came back in parts")
		}
	}
	if st := p.sched.Stats(); st.Jobs > 0 || st.Mismatches > 0 || p.drawn == 0 {
		t.Fatalf("at the end: %+v, %d samples compared", st, p.drawn)
	}
}

func (p *pair) submit(id batch.JobID, trunk []llama.Token) {
	p.t.Helper()
	n := p.rng.IntN(p.cfg.Context * 2 / 3)
	tokens := append(append([]llama.Token{}, trunk[:n]...), prompt(1+p.rng.IntN(p.cfg.Context/4), p.rng.IntN(6)+100)...)
	j := batch.Job{ID: id, Prompt: tokens, MaxTokens: 1 + p.rng.IntN(min(100, p.cfg.Context/3)), Cache: p.rng.IntN(5) > 0, Choices: 1}
	if p.rng.IntN(4) == 0 {
		j.Choices = 3
	}
	if err := p.sched.Submit(p.now, j); err != nil {
		p.t.Fatal(err)
	}
	pj := &pairJob{}
	for range j.Choices {
		pj.tokens = append(pj.tokens, append([]llama.Token{}, tokens...))
	}
	p.jobs[id] = pj
}

func (p *pair) apply(ops []batch.Op) {
	p.t.Helper()
	for _, op := range ops {
		err := p.sim.Apply(op)
		if err == nil {
			err = p.applyLibrary(op)
		}
		if err != nil {
			p.t.Fatalf("%+v: %v", op, err)
		}
	}
}

func (p *pair) applyLibrary(op batch.Op) error {
	switch op.Kind {
	case batch.OpCopy:
		return p.lib.SeqCp(op.Src, op.Seq, op.P0, op.P1)
	case batch.OpSave:
		n, err := p.lib.SeqStateSize(op.Seq, 0)
		if err != nil {
			return err
		}
		p.host[op.Host] = make([]byte, n)
		_, err = p.lib.SeqStateGet(p.host[op.Host], op.Seq, 0)
		return err
	case batch.OpLoad:
		part, err := llama.StatePart(nil, p.host[op.Host], int(op.P0), int(op.P1))
		whole := errors.Is(err, llama.ErrState) // V is transposed
		if whole {
			part = p.host[op.Host]
		}
		if err := p.lib.SeqStateSet(part, op.Seq, 0); err != nil {
			return err
		}
		if !whole {
			p.parts++
		}
		return p.sameOrder(part, op)
	case batch.OpForget:
		delete(p.host, op.Host)
		return nil
	}
	return p.lib.SeqRm(op.Seq, op.P0, op.P1)
}

// sameOrder saves what was loaded: a state lists cells in order, so the same state means the same order of positions. Only
// the sequence's id in each cell is another one.
func (p *pair) sameOrder(before []byte, op batch.Op) error {
	after := make([]byte, len(before))
	if n, err := p.lib.SeqStateGet(after, op.Seq, 0); err != nil || n != len(before) {
		return fmt.Errorf("a loaded state of %d bytes is saved in %d: %w", len(before), n, err)
	}
	for i := 0; i+4 <= len(before); i += 4 {
		was, is := binary.LittleEndian.Uint32(before[i:]), binary.LittleEndian.Uint32(after[i:])
		if was != is && (is != uint32(op.Seq) || was >= uint32(p.cfg.Sequences)) {
			return fmt.Errorf("a loaded state is saved otherwise: word %d was %#x and is %#x", i/4, was, is)
		}
	}
	return nil
}

// step is one Plan and Commit on both.
func (p *pair) step() bool {
	p.t.Helper()
	st := p.sched.Plan(p.now)
	if st.Idle() {
		return false
	}
	p.apply(st.Ops)
	p.agree(st, "before")
	res := batch.Result{Duration: 10 * time.Millisecond}
	if len(st.Rows) > 0 {
		p.batch.Reset()
		for _, r := range st.Rows {
			add(p.t, p.batch, r.Token, r.Pos, r.Seq, r.Output >= 0)
		}
		rows, err := p.lib.Step(p.batch)
		code, simErr := p.sim.Decode(st.Rows)
		if err != nil || simErr != nil || code != batch.CodeOK {
			p.t.Fatalf("step %d: library %v (no slot: %v), simulator %d %v", st.Number, err, errors.Is(err, llama.ErrNoKVSlot), code, simErr)
		}
		for _, sm := range st.Samples {
			j := p.jobs[sm.Job]
			logits := rows.Logits(int(sm.Output))
			if p.rng.IntN(40) == 0 {
				p.compare(logits, j.tokens[sm.Choice])
			}
			tok := llama.Token(toygguf.TokenWord0 + (int(llama.Argmax(logits))+int(sm.Choice)*17)%500)
			j.tokens[sm.Choice] = append(j.tokens[sm.Choice], tok)
			res.Sampled = append(res.Sampled, batch.Sampled{Token: tok})
		}
		p.apply(st.After)
		p.agree(st, "after")
	}
	p.now += res.Duration
	p.sched.Commit(p.now, res)
	return true
}

// agree compares the ends of all sequences.
func (p *pair) agree(st *batch.Step, when string) {
	p.t.Helper()
	for id := range int32(p.cfg.Sequences + p.cfg.Parking) {
		if lo, hi := p.lib.PosMin(id), p.lib.PosMax(id); lo != p.sim.First(id) || hi != p.sim.End(id)-1 {
			p.t.Fatalf("%s step %d: id %d is %d..%d in the library, %d..%d in the simulator", when, st.Number, id, lo, hi, p.sim.First(id), p.sim.End(id)-1)
		}
	}
}

// compare computes tokens plainly and compares the logits.
func (p *pair) compare(got []float32, tokens []llama.Token) {
	p.t.Helper()
	p.drawn++
	got = append([]float32{}, got...)
	if err := p.plain.Clear(true); err != nil {
		p.t.Fatal(err)
	}
	want := feed(p.t, p.plain, p.batch, 0, 0, tokens)
	if d := maxDiff(got, want); d > 0.05 {
		p.t.Fatalf("logits behind %d tokens differ by %g from plain ones", len(tokens), d)
	}
}
