package kvsim

import (
	"slices"

	"hearth/engine/batch"
)

// split cuts a batch into evaluations as llama_batch_allocr does: as it is for a unified attention cache, by equal
// token counts otherwise, and by consecutive ids in streams.
func (s *Sim) split(rows []batch.Row) [][]batch.Row {
	streams := s.cfg.Layout == batch.LayoutStreams
	if !streams && !s.cfg.Recurrent {
		return [][]batch.Row{rows}
	}
	var evals [][]batch.Row
	taken := make([]bool, len(rows))
	for {
		var ids []int32
		for i, r := range rows {
			if taken[i] || slices.Contains(ids, r.Seq) {
				continue
			}
			if streams && len(ids) > 0 && r.Seq != ids[len(ids)-1]+1 {
				continue
			}
			ids = append(ids, r.Seq)
		}
		if len(ids) == 0 {
			return evals
		}
		evals = append(evals, s.equal(rows, taken, ids))
	}
}

// equal takes one more token of every id until one of them has none left or the evaluation is full.
func (s *Sim) equal(rows []batch.Row, taken []bool, ids []int32) []batch.Row {
	of := map[int32][]int{}
	for i, r := range rows {
		if !taken[i] && slices.Contains(ids, r.Seq) {
			of[r.Seq] = append(of[r.Seq], i)
		}
	}
	n := 0
	for {
		n++
		full := (n+1)*len(ids) > s.cfg.Chunk
		for _, id := range ids {
			full = full || len(of[id]) == n
		}
		if full {
			break
		}
	}
	var ev []batch.Row
	for _, id := range ids {
		for _, i := range of[id][:n] {
			taken[i] = true
			ev = append(ev, rows[i])
		}
	}
	return ev
}

// prepare reports whether all evaluations find cells. It leaves the memory as it was.
func (s *Sim) prepare(evals [][]batch.Row) bool {
	if len(evals) == 1 && len(s.base) <= 1 && len(s.win) <= 1 {
		for _, p := range slices.Concat(s.base, s.win) {
			if !p.fits(len(evals[0])) {
				return false
			}
		}
		return true
	}
	saveBase, saveWin := clonePools(s.base), clonePools(s.win)
	defer func() { s.base, s.win = saveBase, saveWin }()
	s.base, s.win = clonePools(s.base), clonePools(s.win)
	for _, ev := range evals {
		if !s.placePools(ev) {
			return false
		}
	}
	return true
}

// fits counts usable cells, without a copy of the pool.
func (p *pool) fits(n int) bool {
	for i := 0; i < len(p.cells) && n > 0; i++ {
		if p.usable(i) {
			n--
		}
	}
	return n <= 0
}

func clonePools(ps []*pool) []*pool {
	var out []*pool
	for _, p := range ps {
		c := &pool{cells: slices.Clone(p.cells), head: p.head, window: p.window}
		for i := range c.cells {
			c.cells[i].owners = slices.Clone(c.cells[i].owners)
		}
		out = append(out, c)
	}
	return out
}

// place puts one evaluation into the memory.
func (s *Sim) place(ev []batch.Row) {
	s.placePools(ev)
	if s.cfg.Recurrent {
		for _, r := range ev {
			s.states[r.Seq] = append(slices.Clone(s.states[r.Seq]), r.Token)
		}
	}
}

// placePools gives every row a cell in each of its pools.
func (s *Sim) placePools(ev []batch.Row) bool {
	for _, kind := range [][]*pool{s.base, s.win} {
		for i, p := range kind {
			mine := ev
			if len(kind) > 1 {
				mine = slices.DeleteFunc(slices.Clone(ev), func(r batch.Row) bool { return int(r.Seq) != i })
			}
			if !p.place(mine) {
				return false
			}
		}
	}
	return true
}

// place is find_slot and apply_ubatch.
func (p *pool) place(rows []batch.Row) bool {
	n := len(rows)
	if n == 0 {
		return true
	}
	if p.head > p.used()+2*n {
		p.head = 0
	}
	if n > len(p.cells) {
		return false
	}
	var found []int
	head := p.head
	for tested := 0; len(found) < n; tested++ {
		if tested >= len(p.cells) {
			return false
		}
		if head >= len(p.cells) {
			head = 0
		}
		if p.usable(head) {
			found = append(found, head)
		}
		head++
	}
	lost := map[int32]int32{}
	for i, k := range found {
		c := &p.cells[k]
		if len(c.owners) > 0 {
			id := c.owners[0]
			lost[id] = max(lost[id], c.pos)
		}
		*c = cell{pos: rows[i].Pos, token: rows[i].Token, owners: []int32{rows[i].Seq}}
	}
	for id, pos := range lost {
		p.remove(id, 0, pos+1)
	}
	p.head = found[n-1] + 1
	return true
}

func (p *pool) usable(i int) bool {
	c := p.cells[i]
	if len(c.owners) == 0 {
		return true
	}
	if p.window == 0 || len(c.owners) > 1 {
		return false
	}
	end := int32(0)
	for _, o := range p.cells {
		if slices.Contains(o.owners, c.owners[0]) {
			end = max(end, o.pos+1)
		}
	}
	return end-c.pos >= p.window
}
