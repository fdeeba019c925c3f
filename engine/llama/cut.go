package llama

import (
	"slices"
	"strings"
)

// tokenizePiece is how many bytes of a long text are tokenised in one call, at least. llama.cpp cuts a text at the special
// tokens spelled in it with a cost that grows with the square of their number (0.7.0: 80,000 of them took 23 s on a busy
// 2-core machine, twice as many four times that), and cannot be interrupted.
const tokenizePiece = 4 << 10

// cutter finds places where a text may be cut without changing its tokens: right before a special token, which ends
// whatever is tokenised in front of it.
type cutter struct {
	texts   map[string]bool
	lengths []int // of the texts in bytes, longest first, each once
	first   [256]bool
}

// newCutter makes a cutter for the special tokens' texts; nil when there are none.
func newCutter(texts []string) *cutter {
	c := &cutter{texts: make(map[string]bool, len(texts))}
	for _, s := range texts {
		// The vocabulary spells spaces in another way than the text does.
		if s == "" || strings.ContainsAny(s, " \u2581") || c.texts[s] {
			continue
		}
		c.texts[s], c.first[s[0]] = true, true
		c.lengths = append(c.lengths, len(s))
	}
	if len(c.texts) == 0 {
		return nil
	}
	slices.SortFunc(c.lengths, func(a, b int) int { return b - a })
	c.lengths = slices.Compact(c.lengths)
	return c
}

// at returns the length of the longest special token at text[i:], 0 when there is none.
func (c *cutter) at(text string, i int) int {
	if !c.first[text[i]] {
		return 0
	}
	for _, n := range c.lengths {
		if i+n <= len(text) && c.texts[text[i:i+n]] {
			return n
		}
	}
	return 0
}

// next returns the first place at or after from where text may be cut, len(text) when there is none.
func (c *cutter) next(text string, from int) int {
	for i := from; i < len(text); i++ {
		if n := c.at(text, i); n > 0 && c.alone(text, i, n) {
			return i
		}
	}
	return len(text)
}

// alone says that no other special token overlaps the one at text[i:i+n] without lying inside it: llama.cpp takes the
// longest first, wherever it is, so of two that overlap the one at i may not be the one that counts.
func (c *cutter) alone(text string, i, n int) bool {
	for j := max(0, i-c.lengths[0]+1); j < i+n; j++ {
		if k := c.at(text, j); k > 0 && (j < i && j+k > i || j > i && j+k > i+n) {
			return false
		}
	}
	return true
}

// cutterFor returns the cutter for texts in which control tokens count (special) or not; nil: do not cut. User-defined
// tokens count in both.
func (m *Model) cutterFor(special bool) *cutter {
	i := 0
	if special {
		i = 1
	}
	m.cutOnce[i].Do(func() { m.cut[i] = m.buildCutter(special) })
	return m.cut[i]
}

func (m *Model) buildCutter(special bool) *cutter {
	mask := AttrUserDefined
	if special {
		mask |= AttrControl | AttrUnknown
	}
	var texts []string
	for i, a := range m.attrs {
		if a&(AttrLStrip|AttrRStrip) != 0 {
			return nil // such a token eats spaces across the cut
		}
		if a&mask != 0 {
			texts = append(texts, string(m.SpecialPiece(Token(i))))
		}
	}
	return newCutter(texts)
}
