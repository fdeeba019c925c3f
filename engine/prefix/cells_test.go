package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// plain is the obvious model of Cells: every cell lists its position and owners.
type plain struct {
	cells  []plainCell
	head   int
	window int32
	pinned map[int]bool
}

type plainCell struct {
	pos    int32
	owners map[int]bool
}

func newPlain(size int, window int32) *plain {
	p := &plain{cells: make([]plainCell, size), window: window, pinned: map[int]bool{}}
	for i := range p.cells {
		p.cells[i].owners = map[int]bool{}
	}
	return p
}

func (p *plain) end(id int) (end int32) {
	for _, c := range p.cells {
		if c.owners[id] {
			end = max(end, c.pos+1)
		}
	}
	return end
}

func (p *plain) count(f func(plainCell) bool) (n int) {
	for _, c := range p.cells {
		if f(c) {
			n++
		}
	}
	return n
}

func (p *plain) used() int { return p.count(func(c plainCell) bool { return len(c.owners) > 0 }) }

func (p *plain) usable(c plainCell) bool {
	if len(c.owners) == 0 {
		return true
	}
	if p.window == 0 || len(c.owners) > 1 {
		return false
	}
	for id := range c.owners {
		return p.end(id)-c.pos >= p.window
	}
	return false
}

func (p *plain) place(ids, pos []int32) bool {
	n := len(ids)
	if p.head > p.used()+2*n {
		p.head = 0
	}
	var found []int
	head := p.head
	for range p.cells {
		if head >= len(p.cells) {
			head = 0
		}
		if len(found) < n && p.usable(p.cells[head]) {
			found = append(found, head)
		}
		head++
	}
	if len(found) < n {
		return false
	}
	lost := map[int]int32{}
	for i, k := range found {
		for id := range p.cells[k].owners {
			lost[id] = max(lost[id], p.cells[k].pos)
		}
		p.cells[k] = plainCell{pos: pos[i], owners: map[int]bool{int(ids[i]): true}}
	}
	for id, at := range lost {
		p.remove(id, 0, at+1)
	}
	p.head = found[n-1] + 1
	return true
}

func (p *plain) remove(id int, p0, p1 int32) {
	low := len(p.cells)
	for i, c := range p.cells {
		if c.owners[id] && c.pos >= p0 && (p1 < 0 || c.pos < p1) {
			if delete(c.owners, id); len(c.owners) == 0 {
				low = min(low, i)
			}
		}
	}
	if low < p.head {
		p.head = low
	}
}

func (p *plain) copy(src, dst int, n int32) {
	for _, c := range p.cells {
		if c.owners[src] && c.pos < n {
			c.owners[dst] = true
		}
	}
}

// saved lists the positions of a sequence by cell.
func (p *plain) saved(id int) (pos []int32) {
	for _, c := range p.cells {
		if c.owners[id] {
			pos = append(pos, c.pos)
		}
	}
	return pos
}

// from returns the lowest position of id from which on keep holds for all its cells.
func (p *plain) from(id int, keep func(plainCell) bool) int32 {
	at := p.end(id)
	for pos := at - 1; pos >= 0; pos-- {
		for _, c := range p.cells {
			if c.owners[id] && c.pos == pos {
				if !keep(c) {
					return at
				}
				at = pos
			}
		}
	}
	return at
}

// TestCells runs random operations on Cells and on the obvious model.
func TestCells(t *testing.T) {
	for _, window := range []int{0, 8} {
		t.Run(fmt.Sprint("window ", window), func(t *testing.T) {
			for seed := range uint64(40) {
				rng := rand.New(rand.NewPCG(seed, 7))
				randomCells(t, rng, 40+rng.IntN(100), window)
			}
		})
	}
}

func randomCells(t *testing.T, rng *rand.Rand, size, window int) {
	t.Helper()
	const ids = 6
	c, p := NewCells(size, ids, window), newPlain(size, int32(window))
	for range 300 {
		id := rng.IntN(ids)
		switch rng.IntN(9) {
		case 0:
			n := int32(0)
			if end := c.End(id); end > 0 && rng.IntN(2) == 0 {
				n = rng.Int32N(end)
			}
			c.Remove(id, n, -1)
			p.remove(id, n, -1)
		case 1:
			if dst := rng.IntN(ids); dst != id && c.Len(dst) == 0 && c.End(id) > 0 {
				n := 1 + rng.Int32N(c.End(id))
				c.Copy(id, dst, n)
				p.copy(id, dst, n)
			}
		case 2:
			on := rng.IntN(2) == 0
			c.SetPinned(id, on)
			p.pinned[id] = on
		case 3:
			if dst := rng.IntN(ids); window == 0 && c.Len(dst) == 0 && c.End(id) > 0 {
				saveAndRestore(t, c, p, id, dst)
			}
		default:
			seqs, pos := randomRows(rng, c, ids)
			if got, want := c.Place(seqs, pos), p.place(seqs, pos); got != want {
				t.Fatalf("place %v: %v, want %v", seqs, got, want)
			}
		}
		compare(t, c, p, ids)
	}
}

// saveAndRestore brings the state of a sequence back under another id.
func saveAndRestore(t *testing.T, c *Cells, p *plain, id, dst int) {
	t.Helper()
	pos := p.saved(id)
	order := c.Order(id)
	if order == nil && !slices.IsSorted(pos) || order != nil && !slices.Equal(order, pos) {
		t.Fatalf("order %v, want %v", order, pos)
	}
	ids := make([]int32, len(pos))
	for i := range ids {
		ids[i] = int32(dst)
	}
	if most := len(pos)%5 + 1; most > 2 {
		restoreParts(t, c, p, dst, pos, most)
	} else if got, want := c.Restore(dst, len(pos), order), p.place(ids, pos); got != want {
		t.Fatalf("restore: %v, want %v", got, want)
	}
	defer func() {
		if n := min(c.End(id), c.End(dst)-1); n > 0 && c.Len(dst) > 0 {
			c.Graft(id, dst, n)
			p.remove(dst, 0, n)
			p.copy(id, dst, n)
		}
	}()
	if again := c.Order(dst); again == nil && !slices.IsSorted(p.saved(dst)) || again != nil && !slices.Equal(again, p.saved(dst)) {
		t.Fatalf("restored in the order %v, want %v", again, p.saved(dst))
	}
}

// restoreParts is the rest of saveAndRestore in parts, each in consecutive cells.
func restoreParts(t *testing.T, c *Cells, p *plain, dst int, pos []int32, most int) {
	t.Helper()
	room, about := c.Room(len(pos), most, 1e-9)
	parts := c.RestoreParts(dst, len(pos), most, pos)
	if fits := len(p.cells)-p.used() >= len(pos); fits != (parts != nil) || fits != (room == len(pos)) || fits != (about > 0) {
		t.Fatalf("%d positions, parts %v, about %d, room %d", len(pos), parts, about, room)
	}
	at := 0
	for _, n := range parts {
		ids := slices.Repeat([]int32{int32(dst)}, n)
		if !p.place(ids, pos[at:at+n]) || n > most {
			t.Fatalf("a part of %d does not fit", n)
		}
		first := slices.IndexFunc(p.cells, func(c plainCell) bool { return c.owners[dst] && c.pos == pos[at] })
		for i := range n {
			if cell := p.cells[first+i]; !cell.owners[dst] || cell.pos != pos[at+i] {
				t.Fatalf("position %d is not in cell %d", pos[at+i], first+i)
			}
		}
		at += n
	}
	if parts != nil && at != len(pos) {
		t.Fatalf("parts %v of %d", parts, len(pos))
	}
}

// cut is the length for which the tokens less what their ranges cost, but for the first, is most.
func (p *plain) cut(id int, ratio float64) (best int) {
	top := 0.0
	for n := range int(p.end(id)) {
		if worth := float64(n+1) - ratio*float64(p.ranges(id, n+1)-1); worth > top {
			best, top = n+1, worth
		}
	}
	return best
}

// ranges counts the runs of consecutive cells of the first positions.
func (p *plain) ranges(id, positions int) (n int) {
	last := -2
	for pos := range int32(positions) {
		at := slices.IndexFunc(p.cells, func(c plainCell) bool { return c.owners[id] && c.pos == pos })
		if at != last+1 {
			n++
		}
		last = at
	}
	return n
}

func randomRows(rng *rand.Rand, c *Cells, ids int) (seqs, pos []int32) {
	end := map[int32]int32{}
	for range 1 + rng.IntN(12) {
		id := rng.Int32N(int32(ids))
		if _, ok := end[id]; !ok {
			end[id] = c.End(int(id))
		}
		seqs, pos = append(seqs, id), append(pos, end[id])
		end[id]++
	}
	return seqs, pos
}

func compare(t *testing.T, c *Cells, p *plain, ids int) {
	t.Helper()
	top, available := 0, 0
	for i, cell := range p.cells {
		if len(cell.owners) > 0 {
			top = i + 1
		}
		if p.usable(cell) {
			available++
		}
	}
	owner := -1
	if top > 0 && len(p.cells[top-1].owners) == 1 {
		for id := range p.cells[top-1].owners {
			owner = id
		}
	}
	if got := c.TopOwner(); got != owner {
		t.Fatalf("top owner %d, want %d", got, owner)
	}
	pinned := p.count(func(c plainCell) bool {
		for id := range c.owners {
			if p.pinned[id] {
				return true
			}
		}
		return false
	})
	if c.Used() != p.used() || c.Pinned() != pinned || c.Top() != top || c.Available() != available || c.head != p.head {
		t.Fatalf("used %d pinned %d top %d available %d head %d, want %d %d %d %d %d",
			c.Used(), c.Pinned(), c.Top(), c.Available(), c.head, p.used(), pinned, top, available, p.head)
	}
	for id := range ids {
		n := p.count(func(c plainCell) bool { return c.owners[id] })
		unique := p.from(id, func(c plainCell) bool { return len(c.owners) == 1 })
		unpinned := p.from(id, func(c plainCell) bool {
			for o := range c.owners {
				if p.pinned[o] {
					return false
				}
			}
			return true
		})
		if p.window == 0 && n > 0 && (p.head+top)%8 == 0 {
			for _, ratio := range []float64{1e-9, 3} {
				if got, ranges := c.Cut(id, ratio); got != p.cut(id, ratio) || ranges != p.ranges(id, got) {
					t.Fatalf("id %d: %d tokens in %d ranges are worth most at %v, want %d in %d", id, got, ranges, ratio, p.cut(id, ratio), p.ranges(id, got))
				}
			}
		}
		if c.Len(id) != n || c.End(id) != p.end(id) || (n > 0 && (c.Unique(id) != unique || c.Unpinned(id) != unpinned)) {
			t.Fatalf("id %d: len %d end %d unique %d unpinned %d, want %d %d %d %d",
				id, c.Len(id), c.End(id), c.Unique(id), c.Unpinned(id), n, p.end(id), unique, unpinned)
		}
	}
}

func TestCellsCopyFrom(t *testing.T) {
	a, b := NewCells(64, 1, 8), NewCells(64, 1, 8)
	for pos := range int32(100) {
		if !a.Place([]int32{0}, []int32{pos}) {
			t.Fatalf("position %d does not fit into a window of 8 in 64 cells", pos)
		}
	}
	b.SetPinned(0, true)
	b.Place([]int32{0}, []int32{0})
	b.CopyFrom(a)
	if b.End(0) != 100 || b.First(0) != a.First(0) || b.Used() != a.Used() || b.Pinned() != 0 {
		t.Fatalf("copy ends at %d, begins at %d, uses %d, pins %d", b.End(0), b.First(0), b.Used(), b.Pinned())
	}
	b.Remove(0, 95, -1)
	if a.End(0) != 100 {
		t.Fatal("the copy shares memory with its source")
	}
}

// FuzzCells drives the same comparison by bytes.
func FuzzCells(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint8(60), uint8(0))
	f.Add(uint64(3), uint64(4), uint8(90), uint8(8))
	f.Fuzz(func(t *testing.T, a, b uint64, size, window uint8) {
		randomCells(t, rand.New(rand.NewPCG(a, b)), 20+int(size), int(window%32))
	})
}
