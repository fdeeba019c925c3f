package batch

import "hearth/engine/prefix"

// memory mirrors what the context holds for every id. Operations change the mirror when they are planned, rows when
// their decode succeeded.
type memory struct {
	streams bool
	window  int32
	base    *prefix.Cells   // LayoutUnified with attention; nil otherwise: nothing but ids runs out there
	win     []*prefix.Cells // iSWA: one pool, or one for each stream
	lens    []int32         // tokens of each id
	pinned  []bool

	ids, pos []int32 // scratch of place
}

func newMemory(c *Config) *memory {
	n := c.Sequences + c.Parking
	m := &memory{
		streams: c.Layout == LayoutStreams, window: int32(c.Window),
		lens: make([]int32, n), pinned: make([]bool, n),
		ids: make([]int32, 0, c.Chunk), pos: make([]int32, 0, c.Chunk),
	}
	if !m.streams && !c.NoAttention {
		m.base = prefix.NewCells(c.Cells, n, 0)
	}
	switch {
	case c.Window > 0 && m.streams:
		for range n {
			m.win = append(m.win, prefix.NewCells(c.WindowCells, 1, c.Window))
		}
	case c.Window > 0:
		m.win = []*prefix.Cells{prefix.NewCells(c.WindowCells, n, c.Window)}
	}
	return m
}

// window cache of an id, and the id's name there.
func (m *memory) winOf(id int) (*prefix.Cells, int) {
	switch {
	case len(m.win) == 0:
		return nil, 0
	case m.streams:
		return m.win[id], 0
	}
	return m.win[0], id
}

func (m *memory) setPinned(id int, pinned bool) {
	m.pinned[id] = pinned
	if m.base != nil {
		m.base.SetPinned(id, pinned)
	}
	if w, i := m.winOf(id); w != nil {
		w.SetPinned(i, pinned)
	}
}

// remove cuts the id's sequence to n tokens.
func (m *memory) remove(id int, n int32) {
	if m.base != nil {
		m.base.Remove(id, n, -1)
	}
	if w, i := m.winOf(id); w != nil {
		w.Remove(i, n, -1)
	}
	m.lens[id] = min(m.lens[id], n)
}

// copy makes dst, which is empty, hold the first n tokens of src. In streams the whole buffer is copied and cut.
func (m *memory) copy(src, dst int, n int32) {
	if m.base != nil {
		m.base.Copy(src, dst, n)
	}
	if len(m.win) > 0 {
		if m.streams {
			m.win[dst].CopyFrom(m.win[src])
			m.win[dst].SetPinned(0, m.pinned[dst])
			m.win[dst].Remove(0, n, -1)
		} else {
			m.win[0].Copy(src, dst, n)
		}
	}
	m.lens[dst] = n
}

// restore makes an id, which is empty, hold a saved sequence of n tokens; in the unified layout, without windows.
func (m *memory) restore(id int, n int32, order []int32) {
	if !m.base.Restore(id, int(n), order) {
		panic("batch: no cells for a saved prefix")
	}
	m.lens[id] = n
}

// restoreParts is restore in parts of at most most tokens, each in consecutive cells. It returns their lengths.
func (m *memory) restoreParts(id int, n int32, most int, order []int32) []int {
	parts := m.base.RestoreParts(id, int(n), most, order)
	if parts == nil {
		panic("batch: no cells for a saved prefix")
	}
	m.lens[id] = n
	return parts
}

// graft makes a restored id share the first n tokens with another one, which has the same.
func (m *memory) graft(src, id int, n int32) { m.base.Graft(src, id, n) }

// fits reports whether n rows find cells now.
func (m *memory) fits(n int) bool {
	if m.streams {
		return true
	}
	return (m.base == nil || m.base.Free() >= n) && (len(m.win) == 0 || m.win[0].Available() >= n)
}

// place mirrors a decode that succeeded, evaluation by evaluation. It returns false, with nothing changed, when the
// rows cannot have fitted.
func (m *memory) place(rows []Row, pieces []piece) bool {
	if !m.fits(len(rows)) {
		return false
	}
	if m.streams {
		for _, p := range pieces {
			if len(m.win) > 0 {
				m.stage(rows[p.row:p.row+p.n], 0)
				m.win[p.seq].Place(m.ids, m.pos)
			}
			m.lens[p.seq] += p.n
		}
		return true
	}
	m.stage(rows, -1)
	if m.base != nil {
		m.base.Place(m.ids, m.pos)
	}
	if len(m.win) > 0 {
		m.win[0].Place(m.ids, m.pos)
	}
	for i := range rows {
		m.lens[rows[i].Seq]++
	}
	return true
}

// stage lists ids and positions of rows; a negative id means the row's own.
func (m *memory) stage(rows []Row, id int32) {
	m.ids, m.pos = m.ids[:0], m.pos[:0]
	for i := range rows {
		seq := id
		if seq < 0 {
			seq = rows[i].Seq
		}
		m.ids, m.pos = append(m.ids, seq), append(m.pos, rows[i].Pos)
	}
}

// reusable reports whether a sequence can start from the first n tokens of the id: whether what position n sees, which are the window-1
// before it, is there. The library lets other sequences take every cell but those of what the next position sees, so this is all that a
// cached prefix keeps for sure; with one position more asked of it, none is of use once others have been through the pool.
func (m *memory) reusable(id int, n int32) bool {
	w, i := m.winOf(id)
	return w == nil || (w.Len(i) > 0 && w.First(i) <= max(0, n-m.window+1))
}

// alone is how many tokens at the end of the id's sequence are in cells that it does not share.
func (m *memory) alone(id int) int32 {
	if m.base == nil {
		return m.lens[id]
	}
	return m.lens[id] - m.base.Unique(id)
}

// used, pinned and total count cells; in streams, tokens.
func (m *memory) count() (used, pinned, total int) {
	if m.base != nil {
		return m.base.Used(), m.base.Pinned(), m.base.Size()
	}
	for id, n := range m.lens {
		used += int(n)
		if m.pinned[id] {
			pinned += int(n)
		}
	}
	return used, pinned, 0
}
