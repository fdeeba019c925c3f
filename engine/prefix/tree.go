package prefix

import (
	"slices"
	"time"
)

// Token is a vocabulary id.
type Token = int32

// Key is a namespace of the tree: prefixes of different keys never meet.
type Key struct {
	Namespace uint64 // adapter set and whatever else changes what tokens mean to the model
	Tenant    string
	Private   uint64 // non-zero: a job that shares with nobody
}

// Tree is a radix tree over tokens. Its leaves and some of its inner nodes are the ends of holders: sequence ids whose
// KV cells hold, or are going to hold, the tokens from the root to there. Each id is at most one holder.
//
// Have says how many tokens of its path a holder has computed. A node stays while a holder is at or below it.
type Tree struct {
	roots   map[Key]*node
	holders []holder
	spare   []*node // removed nodes, for reuse
	version uint64
	stack   []*node
}

type holder struct {
	at      *node // nil: no holder
	have    int32
	lastUse time.Duration
	hits    int32
}

type node struct {
	parent *node
	kids   []*node
	ids    []int32 // holders that end at this node's end
	tokens []Token // edge from the parent
	start  int32   // depth of the edge's first token
	key    Key     // of a root
}

func (n *node) end() int32 { return n.start + int32(len(n.tokens)) }

// NewTree returns an empty tree for ids 0..ids-1.
func NewTree(ids int) *Tree {
	return &Tree{roots: map[Key]*node{}, holders: make([]holder, ids)}
}

// Version changes with every change that can make a Match longer or shorter.
func (t *Tree) Version() uint64 { return t.version }

// Holds reports whether the id is a holder.
func (t *Tree) Holds(id int) bool { return t.holders[id].at != nil }

// Have is how many tokens the holder has computed; Path is the length of its path.
func (t *Tree) Have(id int) int32 { return t.holders[id].have }

// Path is the length of the holder's path in tokens.
func (t *Tree) Path(id int) int32 {
	if n := t.holders[id].at; n != nil {
		return n.end()
	}
	return 0
}

// Branch is the depth at which the holder's last edge starts: what is behind it, no other path shares.
func (t *Tree) Branch(id int) int32 {
	if n := t.holders[id].at; n != nil {
		return n.start
	}
	return 0
}

// Key is the namespace of a holder.
func (t *Tree) Key(id int) Key {
	n := t.holders[id].at
	for n.parent != nil {
		n = n.parent
	}
	return n.key
}

// SetHave notes progress of a holder's computation.
func (t *Tree) SetHave(id int, have int32) {
	if t.holders[id].have != have {
		t.holders[id].have = have
		t.version++
	}
}

// Touch notes that the holder was of use: it was matched (hit) or it just finished.
func (t *Tree) Touch(id int, now time.Duration, hit bool) {
	h := &t.holders[id]
	h.lastUse = now
	if hit {
		h.hits++
	}
}

// Used returns when the holder was last of use and how often it was matched.
func (t *Tree) Used(id int) (last time.Duration, hits int) {
	return t.holders[id].lastUse, int(t.holders[id].hits)
}

// Insert makes the id a holder of the path a followed by b, of which it has computed have tokens.
func (t *Tree) Insert(key Key, id int, a, b []Token, have int32, now time.Duration) {
	if t.Holds(id) {
		panic("prefix: id holds a path already")
	}
	root := t.roots[key]
	if root == nil {
		root = t.newNode(nil, nil, 0)
		root.key = key
		t.roots[key] = root
	}
	mid := t.grow(root, a)
	n := t.grow(mid, b)
	n.ids = append(n.ids, int32(id))
	t.holders[id] = holder{at: n, have: have, lastUse: now}
	if mid != n {
		t.prune(mid) // the border of a and b is none of the tree's
	}
	t.version++
}

// grow returns the node at the end of the path from n's end along tokens, making it when needed.
func (t *Tree) grow(n *node, tokens []Token) *node {
	for len(tokens) > 0 {
		kid := n.kid(tokens[0])
		if kid == nil {
			return t.newNode(n, tokens, n.end())
		}
		m := common(kid.tokens, tokens)
		if m < len(kid.tokens) {
			kid = t.split(kid, m)
		}
		n, tokens = kid, tokens[m:]
	}
	return n
}

// split cuts the node's edge behind m tokens and returns the new upper node.
func (t *Tree) split(n *node, m int) *node {
	p := n.parent
	up := t.newNode(nil, n.tokens[:m], n.start)
	up.parent = p
	p.kids[slices.Index(p.kids, n)] = up
	up.kids = append(up.kids, n)
	n.parent = up
	n.tokens = slices.Delete(n.tokens, 0, m)
	n.start += int32(m)
	return up
}

// Extend appends tokens to a holder's path: what it generated.
func (t *Tree) Extend(id int, tokens []Token) {
	n := t.holders[id].at
	if len(tokens) == 0 {
		return
	}
	t.version++
	if len(n.ids) == 1 && len(n.kids) == 0 && n.parent != nil {
		n.tokens = append(n.tokens, tokens...)
		return
	}
	t.move(id, t.grow(n, tokens))
}

// move makes another node the holder's end.
func (t *Tree) move(id int, to *node) {
	h := &t.holders[id]
	from := h.at
	from.ids = remove(from.ids, int32(id))
	to.ids = append(to.ids, int32(id))
	h.at = to
	t.prune(from)
}

// Truncate cuts the holder's path to n tokens, 0 < n.
func (t *Tree) Truncate(id int, n int32) {
	h := &t.holders[id]
	at := h.at
	if n >= at.end() {
		return
	}
	t.version++
	h.have = min(h.have, n)
	for at.start >= n {
		at = at.parent
	}
	if n < at.end() {
		at = t.split(at, int(n-at.start))
	}
	t.move(id, at)
}

// Remove ends the holder.
func (t *Tree) Remove(id int) {
	h := &t.holders[id]
	at := h.at
	if at == nil {
		return
	}
	at.ids = remove(at.ids, int32(id))
	*h = holder{}
	t.version++
	t.prune(at)
}

// Rename gives a holder another id, which must not be one.
func (t *Tree) Rename(from, to int) {
	h := t.holders[from]
	h.at.ids[slices.Index(h.at.ids, int32(from))] = int32(to)
	t.holders[to] = h
	t.holders[from] = holder{}
	t.version++
}

// Share makes another id, which must not be a holder, one of the same path, with the same history.
func (t *Tree) Share(from, to int) {
	if t.Holds(to) {
		panic("prefix: id holds a path already")
	}
	h := t.holders[from]
	h.at.ids = append(h.at.ids, int32(to))
	t.holders[to] = h
	t.version++
}

// prune removes nodes that no holder needs, from n upwards, and joins an only child with its parent's edge.
func (t *Tree) prune(n *node) {
	for len(n.ids) == 0 && len(n.kids) == 0 {
		p := n.parent
		if p == nil {
			delete(t.roots, n.key)
			t.recycle(n)
			return
		}
		p.kids = remove(p.kids, n)
		t.recycle(n)
		n = p
	}
	if len(n.ids) == 0 && len(n.kids) == 1 && n.parent != nil {
		kid := n.kids[0]
		kid.tokens = slices.Insert(kid.tokens, 0, n.tokens...)
		kid.start = n.start
		kid.parent = n.parent
		n.parent.kids[slices.Index(n.parent.kids, n)] = kid
		t.recycle(n)
	}
}

func (t *Tree) newNode(parent *node, tokens []Token, start int32) *node {
	var n *node
	if k := len(t.spare); k > 0 {
		n, t.spare = t.spare[k-1], t.spare[:k-1]
	} else {
		n = &node{}
	}
	n.parent, n.start = parent, start
	n.tokens = append(n.tokens[:0], tokens...)
	if parent != nil {
		parent.kids = append(parent.kids, n)
	}
	return n
}

func (t *Tree) recycle(n *node) {
	if cap(n.tokens) > 1<<16 {
		n.tokens = nil // do not keep a long prompt's memory for short ones
	}
	*n = node{kids: n.kids[:0], ids: n.ids[:0], tokens: n.tokens[:0]}
	t.spare = append(t.spare, n)
}

func (n *node) kid(first Token) *node {
	for _, k := range n.kids {
		if k.tokens[0] == first {
			return k
		}
	}
	return nil
}

// remove deletes v from an unordered slice.
func remove[T comparable](s []T, v T) []T {
	i := slices.Index(s, v)
	s[i] = s[len(s)-1]
	return s[:len(s)-1]
}

// common is the length of the common prefix.
func common(a, b []Token) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
