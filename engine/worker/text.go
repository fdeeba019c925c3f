package worker

import (
	"bytes"
	"unicode/utf8"
)

// textStream turns the bytes of one choice's tokens into pieces of valid UTF-8, stopping before a stop string. It holds
// back what the next token may change: an unfinished character, and a suffix that a stop string begins with.
type textStream struct {
	stop    [][]byte
	pending []byte
	scanned int // bytes of pending in which no stop string begins that is whole already
	hit     string
}

func (t *textStream) init(stop []string) {
	for _, s := range stop {
		t.stop = append(t.stop, []byte(s))
	}
}

// push appends a token's bytes and appends the text that is now certain to dst. When a stop string is complete, stopped
// is true and everything from its first byte on is dropped.
func (t *textStream) push(dst, piece []byte) (out []byte, stopped bool) {
	if len(piece) == 0 {
		return dst, false
	}
	t.pending = append(t.pending, piece...)
	if at, which := t.find(); which >= 0 {
		t.hit = string(t.stop[which])
		dst = appendValid(dst, t.pending[:at])
		t.pending, t.scanned = t.pending[:0], 0
		return dst, true
	}
	keep := t.partialStop()
	n := len(t.pending) - keep
	n -= unfinished(t.pending[:n])
	if n == 0 {
		return dst, false
	}
	dst = appendValid(dst, t.pending[:n])
	t.pending = t.pending[:copy(t.pending, t.pending[n:])]
	t.scanned = max(0, t.scanned-n)
	return dst, false
}

// flush gives up what is held back: the choice has ended.
func (t *textStream) flush(dst []byte) []byte {
	dst = appendValid(dst, t.pending)
	t.pending, t.scanned = t.pending[:0], 0
	return dst
}

// find looks for the stop string that begins first.
func (t *textStream) find() (at, which int) {
	at, which = -1, -1
	for i, s := range t.stop {
		j := bytes.Index(t.pending[min(t.scanned, len(t.pending)):], s)
		if j >= 0 && (at < 0 || j+t.scanned < at) {
			at, which = j+t.scanned, i
		}
	}
	return at, which
}

// partialStop is the length of the longest suffix of pending that a stop string begins with, short of all of it. It
// moves scanned past the bytes where no stop string can begin any more.
func (t *textStream) partialStop() int {
	best := 0
	for _, s := range t.stop {
		for n := min(len(s)-1, len(t.pending)); n > best; n-- {
			if bytes.HasPrefix(s, t.pending[len(t.pending)-n:]) {
				best = n
				break
			}
		}
	}
	t.scanned = len(t.pending) - best
	return best
}

// unfinished is how many bytes at the end of b begin a UTF-8 character without completing it (0..3).
func unfinished(b []byte) int {
	for n := 1; n <= 3 && n <= len(b); n++ {
		c := b[len(b)-n]
		if c&0xC0 == 0x80 {
			continue // inside a character
		}
		if c >= 0xC0 && !utf8.FullRune(b[len(b)-n:]) {
			return n
		}
		return 0
	}
	return 0
}

// appendValid appends b with each invalid byte replaced by U+FFFD.
func appendValid(dst, b []byte) []byte {
	if utf8.Valid(b) {
		return append(dst, b...)
	}
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		dst = utf8.AppendRune(dst, r)
		b = b[n:]
	}
	return dst
}
