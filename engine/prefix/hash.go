package prefix

// Hash is a running hash of tokens (FNV-1a over whole tokens), for noticing that tokens were seen before without keeping
// them. The zero value is not a start: use NewHash.
type Hash uint64

// NewHash is the hash of no tokens under a key's namespace; tenants are told apart by the caller if it matters.
func NewHash(k Key) Hash {
	h := Hash(14695981039346656037)
	return h.Add(Token(k.Namespace)).Add(Token(k.Namespace >> 32))
}

// Add appends a token.
func (h Hash) Add(t Token) Hash { return (h ^ Hash(uint32(t))) * 1099511628211 }

// Hash is that of the first n tokens of the id's path, at most all of them. It allocates nothing once its scratch has grown.
func (t *Tree) Hash(id int, n int32) Hash {
	t.stack = t.stack[:0]
	at := t.holders[id].at
	for at != nil && at.parent != nil {
		t.stack = append(t.stack, at)
		at = at.parent
	}
	h := NewHash(t.Key(id))
	for i := len(t.stack) - 1; i >= 0; i-- {
		for _, tok := range t.stack[i].tokens {
			if n == 0 {
				return h
			}
			h = h.Add(tok)
			n--
		}
	}
	return h
}
