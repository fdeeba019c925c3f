package template

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// segKind is what a segment of the source is.
type segKind int

const (
	segText segKind = iota
	segExpr         // {{ body }}
	segStmt         // {% body %}
)

// segment is a piece of the source after whitespace control: comments are gone and text is what Jinja2 would print.
type segment struct {
	kind segKind
	body string // without delimiters and trim signs
	line int
}

// Limits on the source that hold whatever the budget says. They keep the evaluator's recursive parser and evaluator,
// whose stack overflow would end the process, far from the end of the stack.
const (
	maxTagBytes   = 32 << 10
	maxBrackets   = 64 // nested inside one tag
	maxBlockDepth = 64
)

// scanner splits a template as Jinja2 does with trim_blocks and lstrip_blocks set and keep_trailing_newline not set,
// which is how chat templates are written to be read.
type scanner struct {
	src  string
	pos  int
	line int
	// lineStarting says that the token before pos ended with a newline, or that there was none.
	lineStarting bool
	segs         []segment
}

func scan(src string) ([]segment, error) {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	src = strings.TrimSuffix(src, "\n")
	s := &scanner{src: src, line: 1, lineStarting: true}
	for s.pos < len(src) {
		open := s.nextTag()
		if open < 0 {
			s.emitText(src[s.pos:])
			break
		}
		if err := s.tag(open); err != nil {
			return nil, err
		}
	}
	return s.segs, nil
}

// nextTag returns the offset of the next "{{", "{%" or "{#" at or after pos, or -1.
func (s *scanner) nextTag() int {
	for i := s.pos; ; i++ {
		j := strings.IndexByte(s.src[i:], '{')
		if j < 0 || i+j+1 >= len(s.src) {
			return -1
		}
		i += j
		if strings.IndexByte("{%#", s.src[i+1]) >= 0 {
			return i
		}
	}
}

// tag handles the text before the tag at open, and the tag.
func (s *scanner) tag(open int) error {
	text, kind := s.src[s.pos:open], s.src[open+1]
	s.line += strings.Count(text, "\n")
	tagLine := s.line
	i := open + 2
	sign := byte(0)
	if i < len(s.src) && (s.src[i] == '-' || s.src[i] == '+' && kind != '{') {
		sign = s.src[i]
		i++
	}
	s.emitText(s.stripLeft(text, sign, kind))

	closer := string([]byte{kind, '}'})
	if kind == '{' {
		closer = "}}"
	}
	end, err := s.findClose(i, kind, closer)
	if err != nil {
		return fmt.Errorf("line %d: %w", tagLine, err)
	}
	body, endSign := s.src[i:end], byte(0)
	if n := len(body); n > 0 && (body[n-1] == '-' || body[n-1] == '+' && kind != '{') {
		endSign = body[n-1]
		body = body[:n-1]
	}
	if len(body) > maxTagBytes {
		return fmt.Errorf("line %d: a tag of %d bytes, at most %d are allowed", tagLine, len(body), maxTagBytes)
	}
	raw := kind == '%' && strings.TrimSpace(body) == "raw"
	after := s.stripRight(end+2, endSign, kind == '{' || raw)
	s.line += strings.Count(s.src[open:after], "\n")
	s.lineStarting = s.src[after-1] == '\n'
	s.pos = after
	switch {
	case raw:
		return s.rawBlock(tagLine)
	case kind == '{':
		s.segs = append(s.segs, segment{segExpr, body, tagLine})
	case kind == '%':
		s.segs = append(s.segs, segment{segStmt, body, tagLine})
	}
	return nil
}

// stripLeft applies the sign and lstrip_blocks of the tag that follows text.
func (s *scanner) stripLeft(text string, sign, kind byte) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, unicode.IsSpace)
	}
	if sign == '+' || kind == '{' {
		return text
	}
	at := strings.LastIndexByte(text, '\n') + 1
	if (at > 0 || s.lineStarting) && strings.TrimSpace(text[at:]) == "" {
		return text[:at]
	}
	return text
}

// stripRight returns where the text after a tag that ends at end begins. keepNewline is for tags which trim_blocks
// does not apply to.
func (s *scanner) stripRight(end int, sign byte, keepNewline bool) int {
	switch {
	case sign == '-':
		for end < len(s.src) {
			r, size := utf8.DecodeRuneInString(s.src[end:])
			if !unicode.IsSpace(r) {
				break
			}
			end += size
		}
	case sign != '+' && !keepNewline && end < len(s.src) && s.src[end] == '\n':
		end++
	}
	return end
}

// findClose returns the offset of the closer of a tag whose body starts at i. Strings and brackets hide closers.
func (s *scanner) findClose(i int, kind byte, closer string) (int, error) {
	if kind == '#' {
		if j := strings.Index(s.src[i:], closer); j >= 0 {
			return i + j, nil
		}
		return 0, fmt.Errorf("a comment is not closed")
	}
	depth := 0
	for ; i < len(s.src); i++ {
		c := s.src[i]
		if depth == 0 && strings.HasPrefix(s.src[i:], closer) {
			return i, nil
		}
		switch c {
		case '\'', '"':
			end := stringEnd(s.src, i)
			if end < 0 {
				return 0, fmt.Errorf("a string is not closed")
			}
			i = end - 1
		case '(', '[', '{':
			if depth++; depth > maxBrackets {
				return 0, fmt.Errorf("brackets nest deeper than %d", maxBrackets)
			}
		case ')', ']', '}':
			depth--
		}
	}
	return 0, fmt.Errorf("a tag is not closed")
}

// stringEnd returns the offset behind the string literal that starts at i, or -1.
func stringEnd(src string, i int) int {
	quote := src[i]
	for i++; i < len(src); i++ {
		switch src[i] {
		case '\\':
			i++
		case quote:
			return i + 1
		}
	}
	return -1
}

// rawBlock takes the text up to {% endraw %} as it is.
func (s *scanner) rawBlock(line int) error {
	for i := s.pos; ; i++ {
		j := strings.Index(s.src[i:], "{%")
		if j < 0 {
			return fmt.Errorf("line %d: raw is not closed", line)
		}
		i += j
		end := strings.Index(s.src[i:], "%}")
		if end < 0 {
			continue
		}
		body := s.src[i+2 : i+end]
		if strings.TrimSpace(strings.Trim(body, "+-")) != "endraw" {
			continue
		}
		var sign, endSign byte
		if strings.IndexByte("+-", body[0]) >= 0 {
			sign = body[0]
		}
		if last := body[len(body)-1]; strings.IndexByte("+-", last) >= 0 {
			endSign = last
		}
		s.emitText(s.stripLeft(s.src[s.pos:i], sign, '%'))
		after := s.stripRight(i+end+2, endSign, false)
		s.line += strings.Count(s.src[s.pos:after], "\n")
		s.lineStarting = s.src[after-1] == '\n'
		s.pos = after
		return nil
	}
}

func (s *scanner) emitText(text string) {
	if text != "" {
		s.segs = append(s.segs, segment{segText, text, s.line})
	}
}
