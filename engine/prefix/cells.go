package prefix

import (
	"math/bits"
	"slices"
)

// Cells mirrors one pool of KV cells of llama.cpp 0.7.0: which cell holds which position for which sequence ids. The
// rules are those of the library's unified attention cache, measured and read (find_slot, seq_rm, seq_cp): a step's rows take
// the first usable cells from a moving head, a copy shares cells, a cell is free when no id holds it. With a window it
// mirrors the sliding-window half of an iSWA cache, in which a cell whose only owner no longer sees it is usable, too.
//
// Ids are pinned (a running sequence) or not (a cached prefix). A cell is pinned while any of its owners is.
//
// Copies start at position 0, so the number of owners never grows along a sequence; the queries rest on that.
type Cells struct {
	window int32
	owners []uint16
	pins   []uint16 // how many of the owners are pinned
	xor    []uint16 // of the owners' ids: the owner itself when there is one
	pos    []int32
	taken  []uint64 // bitmap of cells with an owner
	used   int
	pinned int
	head   int
	top    int // no cell from here on is taken
	seqs   []seqCells

	found []int32 // cells for the rows of the step in progress
	lost  []int32 // per id: highest position that lost its cell to the window rule, -1
	victs []int32 // ids with a lost entry
}

// seqCells lists the cells of one sequence: position first+i is in cells[off+i].
type seqCells struct {
	first  int32
	off    int
	cells  []int32
	pinned bool
	cut    cut // what Cut said last; its ratio is 0 where that is no longer true
}

func (s *seqCells) len() int          { return len(s.cells) - s.off }
func (s *seqCells) end() int32        { return s.first + int32(s.len()) }
func (s *seqCells) at(p int32) *int32 { return &s.cells[s.off+int(p-s.first)] }

// NewCells returns size free cells for ids 0..ids-1. A positive window makes it the sliding-window half.
func NewCells(size, ids, window int) *Cells {
	c := &Cells{
		window: int32(window),
		owners: make([]uint16, size), pins: make([]uint16, size), xor: make([]uint16, size),
		pos: make([]int32, size), taken: make([]uint64, (size+63)/64),
		seqs: make([]seqCells, ids), lost: make([]int32, ids),
	}
	for i := range c.lost {
		c.lost[i] = -1
	}
	return c
}

// Size is the number of cells; Used those with an owner; Pinned those with a pinned owner; Free the rest of Size and Used.
func (c *Cells) Size() int   { return len(c.owners) }
func (c *Cells) Used() int   { return c.used }
func (c *Cells) Pinned() int { return c.pinned }
func (c *Cells) Free() int   { return len(c.owners) - c.used }

// Len is how many positions of the sequence have cells, First the lowest of them, End one behind the highest (0 when there are none).
func (c *Cells) Len(id int) int     { return c.seqs[id].len() }
func (c *Cells) First(id int) int32 { return c.seqs[id].first }
func (c *Cells) End(id int) int32 {
	if c.seqs[id].len() == 0 {
		return 0
	}
	return c.seqs[id].end()
}

// Place gives cells to the rows of one graph evaluation, in order: row i is position pos[i] of sequence ids[i]. It
// returns false and changes nothing when they do not fit, which is llama_decode's return code 1.
func (c *Cells) Place(ids, pos []int32) bool {
	if !c.find(len(ids)) {
		return false
	}
	for i, idx := range c.found {
		c.take(int(idx), ids[i], pos[i])
	}
	for _, id := range c.victs {
		c.Remove(int(id), c.seqs[id].first, c.lost[id]+1)
		c.lost[id] = -1
	}
	c.victs = c.victs[:0]
	if n := len(c.found); n > 0 {
		c.head = int(c.found[n-1]) + 1
	}
	return true
}

// find fills c.found with the cells that the next n rows would get.
func (c *Cells) find(n int) bool {
	c.found = c.found[:0]
	size := len(c.owners)
	if n > size || (c.window == 0 && n > c.Free()) {
		return false
	}
	head := c.head
	if head > c.used+2*n {
		head = 0
	}
	for tested := 0; len(c.found) < n; {
		if tested >= size {
			return false
		}
		if head >= size {
			head = 0
		}
		if c.window == 0 { // skip whole words of taken cells
			if skip := bits.TrailingZeros64(^(c.taken[head/64] >> (head % 64))); skip > 0 {
				skip = min(skip, 64-head%64, size-head)
				head += skip
				tested += skip
				continue
			}
		}
		if c.usable(head) {
			c.found = append(c.found, int32(head))
		}
		head++
		tested++
	}
	return true
}

// usable reports whether find_slot takes the cell: it is free, or its only owner is past the window.
func (c *Cells) usable(i int) bool {
	if c.owners[i] == 0 {
		return true
	}
	return c.window > 0 && c.owners[i] == 1 && c.seqs[c.xor[i]].end()-c.pos[i] >= c.window
}

// take puts a row into a cell, out of which the window rule may push another position.
func (c *Cells) take(i int, id, pos int32) {
	if c.owners[i] != 0 {
		old := int32(c.xor[i])
		if c.lost[old] < 0 {
			c.victs = append(c.victs, old)
		}
		c.lost[old] = max(c.lost[old], c.pos[i])
		*c.seqs[old].at(c.pos[i]) = -1
		c.drop(i, int(old))
	}
	s := &c.seqs[id]
	if s.len() == 0 {
		s.first, s.off, s.cells = pos, 0, s.cells[:0]
	}
	s.cells, s.cut.ratio = append(s.cells, int32(i)), 0
	c.pos[i] = pos
	c.own(i, int(id))
}

func (c *Cells) own(i, id int) {
	if c.owners[i] == 0 {
		c.used++
		c.taken[i/64] |= 1 << (i % 64)
		c.top = max(c.top, i+1)
	}
	c.owners[i]++
	c.xor[i] ^= uint16(id)
	if c.seqs[id].pinned {
		c.pin(i)
	}
}

// drop takes an owner away and reports whether the cell is free now.
func (c *Cells) drop(i, id int) bool {
	if c.seqs[id].pinned {
		c.unpin(i)
	}
	c.owners[i]--
	c.xor[i] ^= uint16(id)
	if c.owners[i] > 0 {
		return false
	}
	c.used--
	c.taken[i/64] &^= 1 << (i % 64)
	return true
}

func (c *Cells) pin(i int) {
	if c.pins[i]++; c.pins[i] == 1 {
		c.pinned++
	}
}

func (c *Cells) unpin(i int) {
	if c.pins[i]--; c.pins[i] == 0 {
		c.pinned--
	}
}

// Remove is llama_memory_seq_rm for positions p0..p1-1; p1 < 0 means all behind p0. The range must reach the
// sequence's end or its beginning.
func (c *Cells) Remove(id int, p0, p1 int32) {
	s := &c.seqs[id]
	p0 = max(p0, s.first)
	if p1 < 0 || p1 > s.end() {
		p1 = s.end()
	}
	if p0 >= p1 {
		return
	}
	s.cut.ratio = 0
	low := len(c.owners)
	for p := p0; p < p1; p++ {
		if i := int(*s.at(p)); i >= 0 && c.drop(i, id) {
			low = min(low, i)
		}
	}
	if low < c.head {
		c.head = low
	}
	switch {
	case p1 == s.end():
		s.cells = s.cells[:s.off+int(p0-s.first)]
	case p0 == s.first:
		s.off += int(p1 - p0)
		s.first = p1
		if s.off > 256 && s.off > len(s.cells)/2 {
			s.cells = slices.Delete(s.cells, 0, s.off)
			s.off = 0
		}
	default:
		panic("prefix: hole in a sequence")
	}
	if s.len() == 0 {
		s.first, s.off, s.cells = 0, 0, s.cells[:0]
	}
}

// Copy is llama_memory_seq_cp of positions 0..n-1 to an empty sequence: dst shares src's cells.
func (c *Cells) Copy(src, dst int, n int32) {
	s, d := &c.seqs[src], &c.seqs[dst]
	if d.len() > 0 || src == dst {
		panic("prefix: copy to a sequence that is not empty")
	}
	d.first, d.off = s.first, 0
	if n = min(n, s.end()); n <= s.first {
		d.first = 0
		return
	}
	d.cells, d.cut.ratio = append(d.cells[:0], s.cells[s.off:s.off+int(n-s.first)]...), 0
	for _, i := range d.cells {
		c.own(int(i), dst)
	}
}

// CopyFrom makes c, a pool of the same shape, equal to o: what seq_cp does between the buffers of two streams. The ids
// are unpinned.
func (c *Cells) CopyFrom(o *Cells) {
	for id := range c.seqs {
		c.SetPinned(id, false)
	}
	copy(c.owners, o.owners)
	copy(c.xor, o.xor)
	copy(c.pos, o.pos)
	copy(c.taken, o.taken)
	c.used, c.head, c.top = o.used, o.head, o.top
	for id := range c.seqs {
		d, s := &c.seqs[id], &o.seqs[id]
		d.first, d.off, d.cells, d.cut.ratio = s.first, 0, append(d.cells[:0], s.cells[s.off:]...), 0
	}
}

// SetPinned says whether a sequence is running.
func (c *Cells) SetPinned(id int, pinned bool) {
	s := &c.seqs[id]
	if s.pinned == pinned {
		return
	}
	s.pinned = pinned
	for _, i := range s.cells[s.off:] {
		if pinned {
			c.pin(int(i))
		} else {
			c.unpin(int(i))
		}
	}
}

// Unique returns the lowest position from which on the sequence is the only owner of its cells; End when it owns none alone.
func (c *Cells) Unique(id int) int32 { return c.search(id, c.owners, 1) }

// Unpinned returns the lowest position from which on no pinned sequence holds the sequence's cells.
func (c *Cells) Unpinned(id int) int32 { return c.search(id, c.pins, 0) }

// search returns the lowest position whose count is at most limit, by the rule that counts never grow along a sequence.
func (c *Cells) search(id int, count []uint16, limit uint16) int32 {
	s := &c.seqs[id]
	lo, hi := 0, s.len()
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if count[s.cells[s.off+mid]] <= limit {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return s.first + int32(lo)
}

// Available is how many rows would find a cell now: the free cells and, with a window, those whose only owner is past it.
func (c *Cells) Available() int {
	n := c.Free()
	if c.window == 0 {
		return n
	}
	for id := range c.seqs {
		if s := &c.seqs[id]; s.len() > 0 {
			if past := s.end() - c.window + 1; past > s.first {
				n += int(max(0, past-c.Unique(id)))
			}
		}
	}
	return n
}

// Top is one behind the highest cell in use.
func (c *Cells) Top() int {
	for c.top > 0 {
		w := (c.top - 1) / 64
		if low := c.taken[w] << (63 - (c.top-1)%64); low != 0 { // taken cells of the word below top
			c.top -= bits.LeadingZeros64(low)
			return c.top
		}
		c.top = w * 64
	}
	return 0
}

// Span is n_kv, the cells that attention reads in every step: Top padded to 256, between 256 and Size.
func (c *Cells) Span() int { return min(len(c.owners), max(256, (c.Top()+255)/256*256)) }

// TopOwner returns the only owner of the highest cell in use; -1 when it has several or there is none.
func (c *Cells) TopOwner() int {
	if top := c.Top(); top > 0 && c.owners[top-1] == 1 {
		return int(c.xor[top-1])
	}
	return -1
}
