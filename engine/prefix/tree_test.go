package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// flat is the obvious model of Tree: a list of paths.
type flat struct {
	key  map[int]Key
	path map[int][]Token
	have map[int]int32
}

func commonLen(a, b []Token) int32 {
	n := int32(0)
	for int(n) < len(a) && int(n) < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// best returns the most tokens that any holder has computed of a path, and is going to compute.
func (f *flat) best(key Key, path []Token) (n, next int32) {
	limit := int32(len(path) - 1)
	for id, p := range f.path {
		if f.key[id] == key {
			c := min(commonLen(p, path), limit)
			n = max(n, min(c, f.have[id]))
			if c > f.have[id] {
				next = max(next, c)
			}
		}
	}
	if next <= n {
		next = 0
	}
	return n, next
}

func TestTree(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomTree(t, rand.New(rand.NewPCG(seed, 3))) })
	}
}

func randomTree(t *testing.T, rng *rand.Rand) {
	const ids = 8
	tree := NewTree(ids)
	f := &flat{key: map[int]Key{}, path: map[int][]Token{}, have: map[int]int32{}}
	word := func() (out []Token) { // two letters, so that prefixes are common
		for range 1 + rng.IntN(12) {
			out = append(out, Token(rng.IntN(2)))
		}
		return out
	}
	keys := []Key{{}, {Tenant: "x"}}
	for range 400 {
		id := rng.IntN(ids)
		path, held := f.path[id]
		switch op := rng.IntN(8); {
		case op == 0 && held:
			tree.Remove(id)
			delete(f.path, id)
			delete(f.have, id)
		case op == 1 && held:
			n := 1 + rng.Int32N(int32(len(path)))
			tree.Truncate(id, n)
			f.path[id], f.have[id] = slices.Clone(path[:n]), min(f.have[id], n)
		case op == 2 && held:
			more := word()
			tree.Extend(id, more)
			f.path[id] = append(slices.Clone(path), more...)
		case op == 3 && held:
			f.have[id] = rng.Int32N(int32(len(path) + 1))
			tree.SetHave(id, f.have[id])
		case op == 4 && held:
			if to := rng.IntN(ids); f.path[to] == nil {
				tree.Rename(id, to)
				f.path[to], f.have[to], f.key[to] = path, f.have[id], f.key[id]
				delete(f.path, id)
				delete(f.have, id)
			}
		case op == 5 && held:
			if to := rng.IntN(ids); f.path[to] == nil {
				tree.Share(id, to)
				f.path[to], f.have[to], f.key[to] = path, f.have[id], f.key[id]
			}
		case !held:
			w := word()
			cut := rng.IntN(len(w) + 1)
			f.key[id], f.path[id], f.have[id] = keys[rng.IntN(2)], w, rng.Int32N(int32(len(w)+1))
			tree.Insert(f.key[id], id, w[:cut], w[cut:], f.have[id], 0)
		}
		checkTree(t, tree, f, ids)
		w, key := word(), keys[rng.IntN(2)]
		cut := rng.IntN(len(w) + 1)
		m := tree.Match(key, w[:cut], w[cut:], func(_ int, n int32) int32 { return n })
		if n, next := f.best(key, w); m.N != n || m.Next != next {
			t.Fatalf("match of %v: %d and %d, want %d and %d in %v have %v", w, m.N, m.Next, n, next, f.path, f.have)
		}
	}
}

// checkTree walks the tree and checks its shape against the paths.
func checkTree(t *testing.T, tree *Tree, f *flat, ids int) {
	t.Helper()
	nodes := 0
	var walk func(n *node, depth int)
	walk = func(n *node, depth int) {
		nodes++
		if int(n.start) != depth {
			t.Fatalf("node starts at %d, is at %d", n.start, depth)
		}
		if n.parent != nil && (len(n.tokens) == 0 || (len(n.ids) == 0 && len(n.kids) < 2)) {
			t.Fatalf("node at %d with %d tokens, %d holders, %d kids", depth, len(n.tokens), len(n.ids), len(n.kids))
		}
		for _, k := range n.kids {
			if k.parent != n {
				t.Fatal("kid of another parent")
			}
			walk(k, depth+len(n.tokens))
		}
	}
	for _, r := range tree.roots {
		walk(r, 0)
	}
	for id := range ids {
		path, held := f.path[id]
		if tree.Holds(id) != held {
			t.Fatalf("id %d holds: %v", id, tree.Holds(id))
		}
		if !held {
			continue
		}
		var got []Token
		for n := tree.holders[id].at; n != nil; n = n.parent {
			got = append(slices.Clone(n.tokens), got...)
		}
		if !slices.Equal(got, path) || tree.Path(id) != int32(len(path)) || tree.Have(id) != f.have[id] || tree.Key(id) != f.key[id] {
			t.Fatalf("id %d: path %v have %d, want %v have %d", id, got, tree.Have(id), path, f.have[id])
		}
		covered, twin := false, false
		for o, p := range f.path {
			if o != id && f.key[o] == f.key[id] && commonLen(p, path) == int32(len(path)) && f.have[o] >= f.have[id] {
				covered = true
				twin = twin || (len(p) == len(path) && f.have[o] == f.have[id])
			}
		}
		if by := tree.Covering(id, 0, ids); (by >= 0) != covered || (tree.Twin(id) >= 0) != twin {
			t.Fatalf("id %d: covered by %d, twin %v, want %v %v", id, by, tree.Twin(id) >= 0, covered, twin)
		} else if covered && (tree.Covering(id, by, by+1) != by || tree.Covering(id, by+1, ids) == by || tree.Covering(id, 0, by) == by) {
			t.Fatalf("id %d: covered by %d, not within bounds", id, by)
		}
	}
	if len(f.path) == 0 && len(tree.roots) > 0 {
		t.Fatal("an empty tree has roots")
	}
}

// TestMatchPrefers checks the order among equals: a holder that ends where the match does, then the lowest id.
func TestMatchPrefers(t *testing.T) {
	tree := NewTree(4)
	tree.Insert(Key{}, 0, []Token{1, 2, 3, 4, 5}, nil, 5, 0)
	tree.Insert(Key{}, 3, []Token{1, 2, 3}, nil, 3, 0)
	tree.Insert(Key{}, 2, []Token{1, 2, 3}, nil, 3, 0)
	all := func(_ int, n int32) int32 { return n }
	if m := tree.Match(Key{}, []Token{1, 2, 3, 9}, nil, all); m.ID != 2 || m.N != 3 {
		t.Fatalf("match %+v", m)
	}
	if m := tree.Match(Key{}, []Token{1, 2, 3, 4, 9}, nil, all); m.ID != 0 || m.N != 4 {
		t.Fatalf("match %+v", m)
	}
	if m := tree.Match(Key{Namespace: 1}, []Token{1, 2, 3, 4, 9}, nil, all); m.ID != -1 || m.Leader != -1 {
		t.Fatalf("another namespace: %+v", m)
	}
	// A memory that cannot be cut offers only its ends.
	ends := func(id int, n int32) int32 {
		if n == tree.Have(id) {
			return n
		}
		return 0
	}
	if m := tree.Match(Key{}, []Token{1, 2, 3, 4, 9}, nil, ends); m.ID != 2 || m.N != 3 {
		t.Fatalf("match %+v", m)
	}
}

func BenchmarkMatch(b *testing.B) {
	tree := NewTree(64)
	trunk := make([]Token, 8192)
	for i := range trunk {
		trunk[i] = Token(i)
	}
	for id := range 64 {
		tree.Insert(Key{}, id, trunk, []Token{Token(id), 1, 2, 3}, 8196, 0)
	}
	all := func(_ int, n int32) int32 { return n }
	tail := []Token{63, 1, 9}
	b.ReportAllocs()
	for b.Loop() {
		tree.Match(Key{}, trunk, tail, all)
	}
}
