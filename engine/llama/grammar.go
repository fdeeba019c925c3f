package llama

// #include <stdlib.h>
// #include "sampler.h"
import "C"

import (
	"fmt"
	"strconv"
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
	broken bool // llama.cpp threw half-way; its next step would abort
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
	return checkNesting(text)
}

// checkNesting walks the grammar outside of literals, classes and comments. It
// bounds the nesting of parentheses and refuses {m,n} with n below m, over
// which llama.cpp's parser loops for ever.
func checkNesting(text string) error {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = skipTo(text, i+1, '"')
		case '[':
			i = skipTo(text, i+1, ']')
		case '#':
			i = skipTo(text, i+1, '\n')
		case '(':
			if depth++; depth > maxGrammarDepth {
				return fail("new grammar", ErrGrammar, fmt.Sprintf("nested deeper than %d", maxGrammarDepth))
			}
		case ')':
			depth = max(0, depth-1)
		case '{':
			end := skipTo(text, i+1, '}')
			low, high, both := strings.Cut(text[i+1:end], ",")
			m, errM := strconv.ParseUint(strings.TrimSpace(low), 10, 32)
			n, errN := strconv.ParseUint(strings.TrimSpace(high), 10, 32)
			open := both && strings.TrimSpace(high) == ""
			if errM != nil || both && !open && (errN != nil || n < m) {
				return fail("new grammar", ErrGrammar, fmt.Sprintf("repetition {%.20s}", text[i+1:end]))
			}
			i = end
		}
	}
	return nil
}

// skipTo returns the index of the next unescaped stop from i on, or the text's length.
func skipTo(text string, i int, stop byte) int {
	for ; i < len(text) && text[i] != stop; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return min(i, len(text))
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

// usable is the guard in front of every step of the automaton.
func (g *Grammar) usable(op string) error {
	switch {
	case g.closed.Load():
		return fail(op, ErrClosed, "grammar")
	case g.broken:
		return fail(op, ErrGrammar, "the grammar failed earlier")
	}
	return nil
}

// failed turns a shim code into an error. An exception ends this grammar alone,
// so it is an ErrGrammar and not a fault of the engine.
func (g *Grammar) failed(op string, kind error, rc C.int, e *C.hs_err) error {
	if rc == C.HS_EXCEPTION || rc == C.HS_NOMEM {
		g.broken = true
	}
	if rc == C.HS_EXCEPTION {
		kind, rc = ErrGrammar, C.HS_FAILED
	}
	return shimError(op, kind, rc, e)
}

// Clone copies the grammar in its present state.
func (g *Grammar) Clone() (*Grammar, error) {
	if err := g.usable("clone grammar"); err != nil {
		return nil, err
	}
	if !g.m.refs.acquire() {
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

// Allows reports whether the token may come next. Errors: ErrClosed, ErrRange, ErrGrammar.
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
	if err := g.usable("check grammar"); err != nil {
		return err
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
		return g.failed("check grammar", ErrGrammar, rc, &e)
	}
	for i := range tokens {
		ok[i] = g.check8[i] != 0
	}
	return nil
}

// Accept advances the grammar over a token. Errors: ErrRejected, with the
// grammar unchanged, when it may not come next; ErrRange, ErrClosed; ErrGrammar when
// llama.cpp gave up on a token its own check allowed (rules that name tokens do
// that), after which the grammar answers nothing else.
func (g *Grammar) Accept(tok Token) error {
	if err := g.usable("accept grammar"); err != nil {
		return err
	}
	if tok < 0 || int(tok) >= g.m.info.Vocab {
		return fail("accept grammar", ErrRange, fmt.Sprintf("token %d", tok))
	}
	var e C.hs_err
	return g.failed("accept grammar", ErrRejected, C.hs_grammar_accept(g.h, C.int32_t(tok), &e), &e)
}
