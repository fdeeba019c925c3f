package prefix

// Match is what the tree has for a path.
type Match struct {
	// ID holds N computed and usable tokens of the path; -1 and 0 when there is none.
	ID, N int32
	// Leader is a holder that is going to compute Next tokens of the path, Next > N; -1 and 0 when there is none.
	Leader, Next int32
}

// Usable says how many of the first n tokens of a holder another sequence can start from: n, or less where the
// memory cannot be cut there.
type Usable func(id int, n int32) int32

// Match looks the path a followed by b up, and never counts its last token: that one is computed again for its logits.
// Among equals it prefers a holder that ends there, then the lowest id.
func (t *Tree) Match(key Key, a, b []Token, usable Usable) Match {
	m := Match{ID: -1, Leader: -1}
	limit := int32(len(a) + len(b) - 1)
	root := t.roots[key]
	if root == nil || limit <= 0 {
		return m
	}
	at, depth := walk(root, a, b)
	// Holders below `at` share depth tokens with the path. Holders that hang off further up share less.
	for from := (*node)(nil); at != nil; from, at = at, at.parent {
		shared := min(depth, at.end(), limit)
		if shared <= m.N {
			break
		}
		t.visit(at, from, shared, usable, &m)
	}
	if m.Next <= m.N {
		m.Leader, m.Next = -1, 0
	}
	return m
}

// walk follows the path and returns the deepest node that it enters, and how many tokens agree.
func walk(n *node, a, b []Token) (*node, int32) {
	if len(a) == 0 {
		a, b = b, nil
	}
	for len(a) > 0 {
		kid := n.kid(a[0])
		if kid == nil {
			return n, n.end()
		}
		edge, depth := kid.tokens, kid.start
		for len(edge) > 0 && len(a) > 0 {
			m := common(edge, a)
			edge, a = edge[m:], a[m:]
			depth += int32(m)
			if len(a) == 0 {
				a, b = b, nil
				continue
			}
			if len(edge) > 0 {
				return kid, depth
			}
		}
		if len(edge) > 0 {
			return kid, depth
		}
		n = kid
	}
	return n, n.end()
}

// visit offers every holder below n, but not below skip, for shared tokens.
func (t *Tree) visit(n, skip *node, shared int32, usable Usable, m *Match) {
	t.stack = append(t.stack[:0], n)
	for len(t.stack) > 0 {
		n := t.stack[len(t.stack)-1]
		t.stack = t.stack[:len(t.stack)-1]
		for _, id := range n.ids {
			t.offer(int(id), shared, usable, m)
		}
		for _, k := range n.kids {
			if k != skip {
				t.stack = append(t.stack, k)
			}
		}
	}
}

func (t *Tree) offer(id int, shared int32, usable Usable, m *Match) {
	h := &t.holders[id]
	if n := min(shared, h.have); n > 0 {
		if n = usable(id, n); n > m.N || (n == m.N && n > 0 && t.better(id, int(m.ID), n)) {
			m.ID, m.N = int32(id), n
		}
	}
	if next := min(shared, h.at.end()); next > h.have && (next > m.Next || (next == m.Next && h.have > t.holders[m.Leader].have)) {
		m.Leader, m.Next = int32(id), next
	}
}

// better reports whether id is to be preferred to old, which has as many tokens.
func (t *Tree) better(id, old int, n int32) bool {
	exact, oldExact := t.holders[id].have == n, t.holders[old].have == n
	if exact != oldExact {
		return exact
	}
	return id < old
}

// Covering returns another holder of the ids from..to-1, below or at the same place, that has computed everything that this one
// has; -1: none.
func (t *Tree) Covering(id, from, to int) int {
	h := &t.holders[id]
	t.stack = append(t.stack[:0], h.at)
	for len(t.stack) > 0 {
		n := t.stack[len(t.stack)-1]
		t.stack = t.stack[:len(t.stack)-1]
		for _, o := range n.ids {
			if int(o) != id && int(o) >= from && int(o) < to && t.holders[o].have >= h.have {
				return int(o)
			}
		}
		t.stack = append(t.stack, n.kids...)
	}
	return -1
}

// Twin returns another holder that ends at the same place with as many tokens, -1 for none.
func (t *Tree) Twin(id int) int {
	h := &t.holders[id]
	for _, o := range h.at.ids {
		if int(o) != id && t.holders[o].have == h.have {
			return int(o)
		}
	}
	return -1
}

// Above appends to dst the holders that end on the path to this one, at or before its end.
func (t *Tree) Above(id int, dst []int32) []int32 {
	for n := t.holders[id].at; n != nil; n = n.parent {
		for _, o := range n.ids {
			if int(o) != id {
				dst = append(dst, o)
			}
		}
	}
	return dst
}

// Overlap counts tokens that several of the running holders have in their paths: for a token that k of them share, k-1.
// Paths that are not computed yet count as if they were.
func (t *Tree) Overlap(running func(id int) bool) int {
	n := 0
	for _, root := range t.roots {
		root.overlap(running, &n)
	}
	return n
}

// overlap returns how many running holders are at or below the node.
func (n *node) overlap(running func(id int) bool, sum *int) int {
	k := 0
	for _, id := range n.ids {
		if running(int(id)) {
			k++
		}
	}
	for _, kid := range n.kids {
		k += kid.overlap(running, sum)
	}
	if k > 1 {
		*sum += (k - 1) * len(n.tokens)
	}
	return k
}
