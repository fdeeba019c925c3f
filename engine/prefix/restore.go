package prefix

import "slices"

// Order returns the positions of a sequence by ascending cell: the order in which a saved state lists them. It is nil
// when that is the order of positions, as it is unless the sequence was computed into scattered cells that wrapped around.
func (c *Cells) Order(id int) []int32 {
	s := &c.seqs[id]
	cells := s.cells[s.off:]
	if slices.IsSorted(cells) {
		return nil
	}
	order := make([]int32, len(cells))
	for i := range order {
		order[i] = s.first + int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return int(*s.at(a) - *s.at(b)) })
	return order
}

// Restore is llama_state_seq_set_data to an empty sequence: the state's n positions, in its order (nil: ascending), get the
// cells that one evaluation of n rows would. It returns false and changes nothing when there are too few. There is no window.
//
// Where the library leaves its head then does not matter: without a window it never is behind the lowest free cell.
func (c *Cells) Restore(id, n int, order []int32) bool {
	s := &c.seqs[id]
	if s.len() > 0 || c.window > 0 {
		panic("prefix: restore to a sequence that is not empty, or with a window")
	}
	if !c.find(n) {
		return false
	}
	s.first, s.off, s.cells, s.cut.ratio = 0, 0, slices.Grow(s.cells[:0], n)[:n], 0
	c.fill(id, 0, order)
	return true
}

// fill gives the cells found to the positions that a state lists from at on.
func (c *Cells) fill(id, at int, order []int32) {
	s := &c.seqs[id]
	for i, idx := range c.found {
		p := int32(at + i)
		if order != nil {
			p = order[p]
		}
		s.cells[p], c.pos[idx] = idx, p
		c.own(int(idx), id)
	}
	c.head = int(c.found[len(c.found)-1]) + 1
}

// RestoreParts is Restore in parts of at most most positions, each of which gets consecutive cells: llama_state_seq_set_data of each to
// another empty id, seq_cp from there and seq_rm there. It returns their lengths, nil when there are too few cells.
func (c *Cells) RestoreParts(id, n, most int, order []int32) (parts []int) {
	s := &c.seqs[id]
	if s.len() > 0 || c.window > 0 {
		panic("prefix: restore to a sequence that is not empty, or with a window")
	}
	if n > c.Free() {
		return nil
	}
	s.first, s.off, s.cells, s.cut.ratio = 0, 0, slices.Grow(s.cells[:0], n)[:n], 0
	for at := 0; at < n; at += len(c.found) {
		c.findRun(min(most, n-at))
		c.fill(id, at, order)
		parts = append(parts, len(c.found))
	}
	return parts
}

// findRun fills c.found with consecutive cells, n at most, that as many rows would get. There are n free ones.
func (c *Cells) findRun(n int) {
	for c.find(n) {
		r := 1
		for r < n && c.found[r] == c.found[r-1]+1 {
			r++
		}
		if r == n {
			return
		}
		n = r // the search for fewer may begin elsewhere
	}
}

// cut is the beginning of a sequence that is worth a copy, and in how many runs of consecutive cells it is.
type cut struct {
	ratio     float64
	n, ranges int
}

// cutter finds the beginning of a row of cells that is worth most, where a run of consecutive cells costs as much as ratio cells are worth.
type cutter struct {
	best       cut
	worth, top float64
	n, ranges  int
	run        int // cells of the last run
	last       int32
}

// add appends a cell; a run has at most most cells.
func (k *cutter) add(cell int32, most int) {
	k.n, k.run, k.worth = k.n+1, k.run+1, k.worth+1
	if k.n == 1 || cell != k.last+1 || k.run > most {
		k.ranges, k.run = k.ranges+1, 1
		if k.n > 1 { // whoever copies anything pays for the first
			k.worth -= k.best.ratio
		}
	}
	if k.last = cell; k.worth > k.top {
		k.top, k.best.n, k.best.ranges = k.worth, k.n, k.ranges
	}
}

// Cut returns the length of the beginning of a sequence that is worth most to save, and its runs of consecutive cells, where copying a
// further run costs as much as ratio tokens are worth, more than 0.
func (c *Cells) Cut(id int, ratio float64) (n, ranges int) {
	s := &c.seqs[id]
	if s.cut.ratio == 0 || ratio > s.cut.ratio*1.25 || ratio < s.cut.ratio*0.8 {
		k := cutter{best: cut{ratio: ratio}}
		for _, cell := range s.cells[s.off:] {
			k.add(cell, len(c.owners))
		}
		s.cut = k.best
	}
	return s.cut.n, s.cut.ranges
}

// Room is Cut for n tokens that come back now, by RestoreParts: how many of them are worth it, and in about how many parts. 0: there are
// too few cells.
func (c *Cells) Room(n, most int, ratio float64) (room, parts int) {
	if n > c.Free() || !c.find(n) {
		return 0, 0
	}
	k := cutter{best: cut{ratio: ratio}}
	for _, cell := range c.found {
		k.add(cell, most)
	}
	return k.best.n, k.best.ranges
}

// Graft gives a restored sequence, whose cells nobody shares, the cells of another one for its first n positions, which are the same
// there, in place of its own: seq_rm of those and seq_cp of these. n is less than either has.
func (c *Cells) Graft(src, dst int, n int32) {
	s, d := &c.seqs[src], &c.seqs[dst]
	c.Remove(dst, 0, n)
	if s.first != 0 || s.end() < n || d.first != n {
		panic("prefix: graft of what is not there")
	}
	d.cells = slices.Concat(s.cells[s.off:s.off+int(n)], d.cells[d.off:])
	d.first, d.off, d.cut.ratio = 0, 0, 0
	for _, i := range d.cells[:n] {
		c.own(int(i), dst)
	}
}
