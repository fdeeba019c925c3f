package probe

import "sync"

// Tail is a writer that keeps the last n bytes. It is safe for one writer and any number of readers.
type Tail struct {
	mu   sync.Mutex
	ring []byte
	pos  int  // next byte to write
	full bool // the ring has wrapped
}

// NewTail keeps the last n bytes, n > 0.
func NewTail(n int) *Tail { return &Tail{ring: make([]byte, n)} }

// Write never fails and never blocks on a reader for long.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) >= len(t.ring) {
		p = p[len(p)-len(t.ring):]
		copy(t.ring, p)
		t.pos, t.full = 0, true
		return n, nil
	}
	k := copy(t.ring[t.pos:], p)
	if k < len(p) {
		copy(t.ring, p[k:])
	}
	if t.pos+len(p) >= len(t.ring) {
		t.full = true
	}
	t.pos = (t.pos + len(p)) % len(t.ring)
	return n, nil
}

// String is the kept text, oldest byte first. A first line that was cut is dropped.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.full {
		return string(t.ring[:t.pos])
	}
	s := string(t.ring[t.pos:]) + string(t.ring[:t.pos])
	for i := range len(s) {
		if s[i] == '\n' {
			return s[i+1:]
		}
	}
	return s
}

// head keeps the first max bytes and swallows the rest.
type head struct {
	buf []byte
	max int
}

func (h *head) Write(p []byte) (int, error) {
	if room := h.max - len(h.buf); room > 0 {
		h.buf = append(h.buf, p[:min(room, len(p))]...)
	}
	return len(p), nil
}
