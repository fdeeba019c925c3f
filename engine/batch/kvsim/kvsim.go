// Package kvsim is a slow, obvious model of what llama.cpp 0.7.0 does with KV cells and batches. Tests of the scheduler
// and of the step loop run against it in place of a context. It shares no code with the mirror in engine/prefix, which
// it is there to contradict: every cell lists its position, token and owners, and every question is a scan.
//
// What the library answers with a return code, Decode returns; what the library answers with abort() is an error. A
// Sim belongs to one goroutine.
package kvsim

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"hearth/engine"
	"hearth/engine/batch"
)

// Config has the fields of batch.Config that describe a context, with the same meaning.
type Config struct {
	Layout              batch.Layout
	Cells, Context      int
	Sequences, Parking  int
	Chunk, Outputs      int
	Window, WindowCells int
	Recurrent           bool
	NoAttention         bool
	Vocab               int // tokens that Decode answers with are below it; 0: 1000
}

// ConfigOf takes the context's part of a scheduler's config.
func ConfigOf(c batch.Config) Config {
	return Config{
		Layout: c.Layout, Cells: c.Cells, Context: c.Context, Sequences: c.Sequences, Parking: c.Parking,
		Chunk: c.Chunk, Outputs: c.Outputs, Window: c.Window, WindowCells: c.WindowCells,
		Recurrent: c.Recurrent, NoAttention: c.NoAttention,
	}
}

// ErrAbort is wrapped by errors for calls that would have ended the process.
var ErrAbort = errors.New("kvsim: llama.cpp would abort")

// cell is one KV cell: free without owners.
type cell struct {
	pos    int32
	token  engine.Token
	owners []int32
}

// pool is one buffer of cells with its search head.
type pool struct {
	cells  []cell
	head   int
	window int32
}

// Sim is a context's memory.
type Sim struct {
	cfg    Config
	base   []*pool // one, or one for each stream; none without attention
	win    []*pool
	states map[int32][]engine.Token // Recurrent: what each id's state has read
	saved  map[int32][]cell         // by host slot: the cells of a sequence, by index
	next   []engine.Token           // of the last Decode, by row
	evals  int
}

// New returns an empty memory.
func New(c Config) *Sim {
	if c.Outputs == 0 {
		c.Outputs = c.Chunk
	}
	if c.Vocab == 0 {
		c.Vocab = 1000
	}
	s := &Sim{cfg: c, states: map[int32][]engine.Token{}, saved: map[int32][]cell{}}
	n, size := 1, c.Cells
	if c.Layout == batch.LayoutStreams {
		n, size = c.Sequences, c.Context
	}
	for range n {
		if !c.NoAttention {
			s.base = append(s.base, &pool{cells: make([]cell, size)})
		}
		if c.Window > 0 {
			s.win = append(s.win, &pool{cells: make([]cell, c.WindowCells), window: int32(c.Window)})
		}
	}
	return s
}

// pools lists the pools that hold cells of an id.
func (s *Sim) pools(id int32) []*pool {
	var ps []*pool
	for _, kind := range [][]*pool{s.base, s.win} {
		switch {
		case len(kind) == 1:
			ps = append(ps, kind[0])
		case len(kind) > 1 && int(id) < len(kind):
			ps = append(ps, kind[id])
		}
	}
	return ps
}

// Apply does one operation of a step.
func (s *Sim) Apply(op batch.Op) error {
	switch op.Kind {
	case batch.OpCopy:
		return s.Copy(op.Src, op.Seq, op.P0, op.P1)
	case batch.OpSave:
		return s.Save(op.Seq, op.Host)
	case batch.OpLoad:
		return s.Load(op.Host, op.Seq, op.P0, op.P1)
	case batch.OpForget:
		delete(s.saved, op.Host)
		return nil
	}
	return s.Remove(op.Seq, op.P0, op.P1)
}

// Remove is llama_memory_seq_rm. A recurrent state that would have to go back is an error: the library returns false there.
func (s *Sim) Remove(id, p0, p1 int32) error {
	if err := s.known(id); err != nil {
		return err
	}
	if p1 < 0 {
		p1 = 1 << 30
	}
	if s.cfg.Recurrent {
		n := int32(len(s.states[id]))
		switch {
		case p0 <= 0 && p1 >= n:
			delete(s.states, id)
		case p0 < n:
			return fmt.Errorf("kvsim: seq_rm(%d, %d, %d) cannot roll a recurrent state of %d tokens back", id, p0, p1, n)
		}
	}
	for _, p := range s.pools(id) {
		p.remove(id, p0, p1)
	}
	return nil
}

func (p *pool) remove(id, p0, p1 int32) {
	freed := len(p.cells)
	for i := range p.cells {
		c := &p.cells[i]
		if k := slices.Index(c.owners, id); k >= 0 && c.pos >= p0 && c.pos < p1 {
			if c.owners = slices.Delete(c.owners, k, k+1); len(c.owners) == 0 && freed == len(p.cells) {
				freed = i
			}
		}
	}
	if freed < p.head {
		p.head = freed
	}
}

// known refuses ids that the library would assert on.
func (s *Sim) known(ids ...int32) error {
	top := s.cfg.Sequences + s.cfg.Parking
	if s.cfg.Layout == batch.LayoutStreams || s.cfg.Recurrent {
		top = s.cfg.Sequences
	}
	for _, id := range ids {
		if id < 0 || int(id) >= top {
			return fmt.Errorf("%w: sequence id %d", ErrAbort, id)
		}
	}
	return nil
}

// Copy is llama_memory_seq_cp. The destination must have nothing there: the library would have two cells for a position.
func (s *Sim) Copy(src, dst, p0, p1 int32) error {
	if err := s.known(src, dst); err != nil {
		return err
	}
	merges := s.cfg.Layout == batch.LayoutUnified && len(s.win) == 0 && !s.cfg.Recurrent && s.apart(src, dst, p1)
	if src == dst || s.End(dst) > 0 && !merges || p0 != 0 {
		return fmt.Errorf("kvsim: seq_cp(%d, %d, %d, %d) to a sequence that is not empty", src, dst, p0, p1)
	}
	whole := p1 < 0
	if whole {
		p1 = 1 << 30
	}
	if s.cfg.Recurrent {
		s.states[dst] = slices.Clone(s.states[src])
	}
	if s.cfg.Layout == batch.LayoutStreams {
		if !whole {
			return fmt.Errorf("%w: partial copy between streams", ErrAbort)
		}
		from, to := s.pools(src), s.pools(dst)
		for i := range from {
			to[i].head = from[i].head
			for k, c := range from[i].cells {
				to[i].cells[k] = cell{}
				if slices.Contains(c.owners, src) {
					to[i].cells[k] = cell{pos: c.pos, token: c.token, owners: []int32{dst}}
				}
			}
		}
		return nil
	}
	for _, p := range s.pools(src) {
		for i := range p.cells {
			if c := &p.cells[i]; slices.Contains(c.owners, src) && c.pos < p1 {
				c.owners = append(c.owners, dst)
			}
		}
	}
	return nil
}

// Decode is llama_decode. With CodeOK, Next tells what the model says behind each row.
func (s *Sim) Decode(rows []batch.Row) (batch.Code, error) {
	outputs := 0
	for _, r := range rows {
		if r.Output >= 0 {
			if int(r.Output) != outputs {
				return 0, fmt.Errorf("kvsim: row output %d, want %d", r.Output, outputs)
			}
			outputs++
		}
	}
	switch {
	case len(rows) == 0:
		return batch.CodeInvalid, nil
	case len(rows) > s.cfg.Chunk:
		return 0, fmt.Errorf("%w: %d rows, n_batch is %d", ErrAbort, len(rows), s.cfg.Chunk)
	case outputs > s.cfg.Outputs:
		return 0, fmt.Errorf("%w: %d outputs, n_outputs_max is %d", ErrAbort, outputs, s.cfg.Outputs)
	}
	end := map[int32]int32{}
	for _, r := range rows {
		if _, ok := end[r.Seq]; !ok {
			end[r.Seq] = int32(len(s.Tokens(r.Seq)))
		}
		if r.Seq < 0 || int(r.Seq) >= s.cfg.Sequences || r.Pos != end[r.Seq] {
			return batch.CodeInvalid, nil
		}
		end[r.Seq]++
	}
	evals := s.split(rows)
	s.evals = len(evals)
	if !s.prepare(evals) {
		return batch.CodeNoSlot, nil
	}
	s.next = make([]engine.Token, len(rows))
	for _, ev := range evals {
		s.place(ev)
	}
	for i, r := range rows {
		if r.Output >= 0 {
			t, err := s.answer(r)
			if err != nil {
				return 0, err
			}
			s.next[i] = t
		}
	}
	return batch.CodeOK, nil
}

// Evaluations is how many graphs the last Decode was.
func (s *Sim) Evaluations() int { return s.evals }

// Next is the token that the model answers the i-th row of the last Decode with, a function of everything before it.
func (s *Sim) Next(i int) engine.Token { return s.next[i] }

// Answer is what Next gives for a sequence of tokens: the truth that a test compares with.
func Answer(tokens []engine.Token, vocab int) engine.Token {
	h := fnv.New32a()
	for _, t := range tokens {
		_, _ = h.Write([]byte{byte(t), byte(t >> 8), byte(t >> 16), byte(t >> 24)})
	}
	return engine.Token(h.Sum32() % uint32(vocab))
}

// answer reads what the row's sequence sees, and complains when that is not one token for each position.
func (s *Sim) answer(r batch.Row) (engine.Token, error) {
	var seen []engine.Token
	if s.cfg.Recurrent {
		seen = s.states[r.Seq]
		if int32(len(seen)) <= r.Pos {
			return 0, fmt.Errorf("kvsim: state of id %d has %d tokens at position %d", r.Seq, len(seen), r.Pos)
		}
		seen = seen[:r.Pos+1]
	}
	for _, p := range s.pools(r.Seq) {
		got, first, err := p.visible(r.Seq, r.Pos)
		if err != nil {
			return 0, err
		}
		switch {
		case p.window > 0 && first > max(0, r.Pos-p.window+1):
			return 0, fmt.Errorf("kvsim: id %d at %d sees its window only from %d", r.Seq, r.Pos, first)
		case p.window > 0:
			continue
		case seen != nil && !slices.Equal(seen, got):
			return 0, fmt.Errorf("kvsim: state and cells of id %d differ", r.Seq)
		case first != 0:
			return 0, fmt.Errorf("kvsim: id %d begins at %d", r.Seq, first)
		}
		seen = got
	}
	return Answer(seen, s.cfg.Vocab), nil
}

// visible lists the tokens of an id up to a position; first is the position of the first one.
func (p *pool) visible(id, top int32) (tokens []engine.Token, first int32, err error) {
	at := make([]engine.Token, top+1)
	seen := make([]bool, top+1)
	first = top + 1
	for _, c := range p.cells {
		if c.pos <= top && slices.Contains(c.owners, id) {
			if seen[c.pos] {
				return nil, 0, fmt.Errorf("kvsim: id %d has position %d twice", id, c.pos)
			}
			at[c.pos], seen[c.pos] = c.token, true
			first = min(first, c.pos)
		}
	}
	for q := first; q <= top; q++ {
		if !seen[q] {
			return nil, 0, fmt.Errorf("kvsim: id %d has no cell at position %d", id, q)
		}
	}
	return at[first:], first, nil
}

// Tokens lists what an id holds, in order. It is what attention reads, or the recurrent state.
func (s *Sim) Tokens(id int32) []engine.Token {
	if s.cfg.NoAttention {
		return s.states[id]
	}
	tokens, _, err := s.pools(id)[0].visible(id, s.End(id)-1)
	if err != nil {
		return nil
	}
	return tokens
}

// End is pos_max+1 of an id.
func (s *Sim) End(id int32) int32 {
	if s.cfg.NoAttention {
		return int32(len(s.states[id]))
	}
	end := int32(0)
	for _, c := range s.pools(id)[0].cells {
		if slices.Contains(c.owners, id) {
			end = max(end, c.pos+1)
		}
	}
	return end
}

// First is pos_min of an id: of its window cache where there is one, of its state where that is all, -1 for an empty id.
func (s *Sim) First(id int32) int32 {
	end := s.End(id)
	switch {
	case end == 0:
		return -1
	case s.cfg.Recurrent:
		return end - 1
	}
	ps := s.pools(id)
	first := end
	for _, c := range ps[len(ps)-1].cells {
		if slices.Contains(c.owners, id) {
			first = min(first, c.pos)
		}
	}
	return first
}

// Used counts cells with an owner, in all streams.
func (s *Sim) Used() int { return used(s.base) }

// WindowUsed is Used for the window cache.
func (s *Sim) WindowUsed() int { return used(s.win) }

func used(pools []*pool) (n int) {
	for _, p := range pools {
		n += p.used()
	}
	return n
}

func (p *pool) used() (n int) {
	for _, c := range p.cells {
		if len(c.owners) > 0 {
			n++
		}
	}
	return n
}

// Top is one behind the highest cell in use of the unified pool.
func (s *Sim) Top() int {
	for i := len(s.base[0].cells) - 1; i >= 0; i-- {
		if len(s.base[0].cells[i].owners) > 0 {
			return i + 1
		}
	}
	return 0
}
