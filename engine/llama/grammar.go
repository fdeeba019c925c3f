package llama

// #include <stdlib.h>
// #include "sampler.h"
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// GrammarParams describe a GBNF grammar.
type GrammarParams struct {
	GBNF string
	Root string // start symbol; "" = "root"
	// Lazy grammars allow everything until a trigger was accepted: a token of
	// Tokens, or text that matches one of Patterns (regular expressions from
	// the start of the output; the grammar begins at the first group).
	Lazy     bool
	Patterns []string
	Tokens   []Token
}

// Bounds on a grammar, since llama.cpp's parser recurses per nesting level and
// copies per repetition.
const (
	maxGrammarBytes = 1 << 20
	maxGrammarDepth = 200
)

// Grammar is the state of one request's GBNF grammar. One goroutine at a time.
// Checking one token costs about 2 us, a whole vocabulary 5 to 150 ms: sample
// first, check, and on rejection call Sampler.Resample.
type Grammar struct {
	lease
	h      *C.hs_grammar
	m      *Model
	check8 []uint8
}

// NewGrammar parses a grammar. Errors: ErrGrammar with the parser's words,
// ErrRange for a trigger token outside the vocabulary.
func (m *Model) NewGrammar(p GrammarParams) (*Grammar, error) {
	root := p.Root
	if root == "" {
		root = "root"
	}
	if err := checkGBNF(p.GBNF); err != nil {
		return nil, err
	}
	for _, t := range p.Tokens {
		if t < 0 || int(t) >= m.info.Vocab {
			return nil, fail("new grammar", ErrRange, fmt.Sprintf("trigger token %d", t))
		}
	}
	if !m.refs.acquire() {
		return nil, fail("new grammar", ErrClosed, "model")
	}
	text, croot, pats := C.CString(p.GBNF), C.CString(root), cStrings(p.Patterns)
	defer C.free(unsafe.Pointer(text))
	defer C.free(unsafe.Pointer(croot))
	defer pats.free()
	var h *C.hs_grammar
	var e C.hs_err
	rc := C.hs_grammar_new(m.h, text, croot, pats.list, C.int32_t(len(p.Patterns)),
		(*C.int32_t)(unsafe.SliceData(p.Tokens)), C.int32_t(len(p.Tokens)), C.bool(p.Lazy), &h, &e)
	if rc != C.HS_OK {
		m.refs.release()
		if rc == C.HS_EXCEPTION { // a bad trigger pattern; nothing was made, nothing is broken
			rc = C.HS_FAILED
		}
		return nil, shimError("new grammar", ErrGrammar, rc, &e)
	}
	return m.wrapGrammar(h), nil
}

func (m *Model) wrapGrammar(h *C.hs_grammar) *Grammar {
	g := &Grammar{h: h, m: m}
	track(&g.lease, g, "grammar", m.log)
	return g
}

// checkGBNF refuses what would overflow the parser's stack.
func checkGBNF(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return fail("new grammar", ErrGrammar, "empty")
	case len(text) > maxGrammarBytes:
		return fail("new grammar", ErrGrammar, fmt.Sprintf("%d bytes, at most %d", len(text), maxGrammarBytes))
	case strings.IndexByte(text, 0) >= 0:
		return fail("new grammar", ErrGrammar, "NUL byte")
	}
	depth := 0
	for i := range len(text) { // brackets inside literals count too: a bound need not be exact
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth = max(0, depth-1)
		}
		if depth > maxGrammarDepth {
			return fail("new grammar", ErrGrammar, fmt.Sprintf("nested deeper than %d", maxGrammarDepth))
		}
	}
	return nil
}

// Close frees the grammar.
func (g *Grammar) Close() error {
	if g.release() {
		C.hs_grammar_free(g.h)
		g.h = nil
		g.m.refs.release()
	}
	return nil
}

// Clone copies the grammar in its present state.
func (g *Grammar) Clone() (*Grammar, error) {
	if g.closed.Load() || !g.m.refs.acquire() {
		return nil, fail("clone grammar", ErrClosed, "")
	}
	var h *C.hs_grammar
	var e C.hs_err
	if rc := C.hs_grammar_clone(g.h, &h, &e); rc != C.HS_OK {
		g.m.refs.release()
		return nil, shimError("clone grammar", ErrGrammar, rc, &e)
	}
	return g.m.wrapGrammar(h), nil
}

// Allows reports whether the token may come next. Errors: ErrClosed, ErrRange, ErrException.
func (g *Grammar) Allows(tok Token) (bool, error) {
	var ok [1]bool
	err := g.check([]Token{tok}, ok[:])
	return ok[0], err
}

// AllowsEach fills ok[i] with whether tokens[i] may come next. ok must be as long as tokens.
func (g *Grammar) AllowsEach(tokens []Token, ok []bool) error {
	if len(ok) != len(tokens) {
		return fail("check grammar", ErrRange, fmt.Sprintf("%d tokens, %d answers", len(tokens), len(ok)))
	}
	return g.check(tokens, ok)
}

func (g *Grammar) check(tokens []Token, ok []bool) error {
	if g.closed.Load() {
		return fail("check grammar", ErrClosed, "")
	}
	if len(tokens) == 0 {
		return nil
	}
	for _, t := range tokens {
		if t < 0 || int(t) >= g.m.info.Vocab {
			return fail("check grammar", ErrRange, fmt.Sprintf("token %d", t))
		}
	}
	if len(g.check8) < len(tokens) {
		g.check8 = make([]uint8, len(tokens))
	}
	var e C.hs_err
	rc := C.hs_grammar_check(g.h, (*C.int32_t)(&tokens[0]), C.int32_t(len(tokens)), (*C.uint8_t)(&g.check8[0]), &e)
	if rc != C.HS_OK {
		return shimError("check grammar", ErrException, rc, &e)
	}
	for i := range tokens {
		ok[i] = g.check8[i] != 0
	}
	return nil
}

// Accept advances the grammar over a token. Errors: ErrRejected, with the
// grammar unchanged, when it may not come next; ErrRange, ErrClosed, ErrException.
func (g *Grammar) Accept(tok Token) error {
	if g.closed.Load() {
		return fail("accept grammar", ErrClosed, "")
	}
	if tok < 0 || int(tok) >= g.m.info.Vocab {
		return fail("accept grammar", ErrRange, fmt.Sprintf("token %d", tok))
	}
	var e C.hs_err
	return shimError("accept grammar", ErrRejected, C.hs_grammar_accept(g.h, C.int32_t(tok), &e), &e)
}
