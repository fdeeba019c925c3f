package template

import (
	"fmt"
	"strconv"
	"strings"
)

// Names that rewritten templates call; run.go binds them. hookVoid takes results nobody reads.
const (
	hookStep  = "hearth_step"  // (bytes of text in the body, depth of a recursive loop): at each iteration
	hookEnter = "hearth_enter" // (bytes of text in the body): at each macro call
	hookLeave = "hearth_leave" // at the end of a macro
	hookOut   = "hearth_out"   // (value) -> value: at each output
	hookSet   = "hearth_set"   // (value) -> value: at each assignment
	hookAttr  = "hearth_attr"  // (namespace, value) -> value: at each assignment to an attribute
	hookCopy  = "hearth_copy"  // (value) -> copy: at each append and insert
	hookVoid  = "hearth_void"
)

// rewrite returns source for the evaluator that prints what src prints, with the hooks in it. Whitespace control is
// done here, so every tag is written with signs that make the evaluator leave text alone.
func rewrite(src string) (string, error) {
	segs, err := scan(src)
	if err != nil {
		return "", err
	}
	weights, err := textWeights(segs)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.Grow(len(src) * 2)
	for i, seg := range segs {
		switch seg.kind {
		case segText:
			writeText(&b, seg.body)
		case segExpr:
			fmt.Fprintf(&b, "{{ %s((%s)) }}", hookOut, guardMutators(seg.body))
		case segStmt:
			writeStmt(&b, seg.body, weights[i])
		}
	}
	return b.String(), nil
}

// writeText writes text. What looks like a tag came out of a raw block and is written as a string.
func writeText(b *strings.Builder, text string) {
	if !strings.Contains(text, "{{") && !strings.Contains(text, "{%") && !strings.Contains(text, "{#") && !strings.HasSuffix(text, "{") {
		b.WriteString(text)
		return
	}
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(text)
	b.WriteString("{{ '" + quoted + "' }}")
}

func stmt(b *strings.Builder, format string, args ...any) {
	b.WriteString("{%+ ")
	fmt.Fprintf(b, format, args...)
	b.WriteString(" +%}")
}

func writeStmt(b *strings.Builder, body string, weight int) {
	body = strings.TrimSpace(body)
	switch keyword(body) {
	case "for":
		stmt(b, "%s", guardMutators(body))
		stmt(b, "set %s = %s(%d, loop.depth0)", hookVoid, hookStep, weight)
	case "macro":
		stmt(b, "%s", guardMutators(body))
		stmt(b, "set %s = %s(%d)", hookVoid, hookEnter, weight)
	case "endmacro":
		stmt(b, "set %s = %s()", hookVoid, hookLeave)
		stmt(b, "endmacro")
	case "set":
		writeSet(b, body)
	case "do":
		stmt(b, "set %s = (%s)", hookVoid, guardMutators(strings.TrimPrefix(body, "do")))
	default:
		stmt(b, "%s", guardMutators(body))
	}
}

// writeSet passes the assigned value through a hook. A set block has no "=" and stays as it is.
func writeSet(b *strings.Builder, body string) {
	eq := assignment(body)
	if eq < 0 {
		stmt(b, "%s", body)
		return
	}
	target := strings.TrimSpace(strings.TrimPrefix(body[:eq], "set"))
	value := guardMutators(body[eq+1:])
	if namespace, _, ok := strings.Cut(target, "."); ok {
		stmt(b, "set %s = %s(%s, (%s))", target, hookAttr, strings.TrimSpace(namespace), value)
		return
	}
	stmt(b, "set %s = %s((%s))", target, hookSet, value)
}

// assignment returns the offset of the first "=" outside strings and brackets that is not part of "==" and the like.
func assignment(body string) int {
	depth := 0
	for i := 0; i < len(body); i++ {
		switch c := body[i]; c {
		case '\'', '"':
			end := stringEnd(body, i)
			if end < 0 {
				return -1
			}
			i = end - 1
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case '=':
			if depth == 0 {
				return i
			}
		}
	}
	return -1
}

// guardMutators wraps what .append and .insert put into a list, so that a list cannot come to hold itself. The
// evaluator's recursion over such a value would overflow the stack.
func guardMutators(body string) string {
	if !strings.Contains(body, ".append") && !strings.Contains(body, ".insert") {
		return body
	}
	var b strings.Builder
	for i := 0; i < len(body); {
		if c := body[i]; c == '\'' || c == '"' {
			end := stringEnd(body, i)
			if end < 0 {
				end = len(body)
			}
			b.WriteString(body[i:end])
			i = end
			continue
		}
		open, name := mutatorAt(body, i)
		end := -1
		if open >= 0 {
			end = matching(body, open)
		}
		if end < 0 {
			b.WriteByte(body[i])
			i++
			continue
		}
		args := guardMutators(body[open+1 : end])
		first := ""
		if name == ".insert" {
			if comma := topLevelComma(args); comma >= 0 {
				first, args = args[:comma+1], args[comma+1:]
			}
		}
		fmt.Fprintf(&b, "%s(%s%s((%s)))", name, first, hookCopy, args)
		i = end + 1
	}
	return b.String()
}

// mutatorAt returns the offset of the bracket that opens the arguments of a mutator whose "." is at i, or -1.
func mutatorAt(body string, i int) (int, string) {
	for _, name := range []string{".append", ".insert"} {
		rest, ok := strings.CutPrefix(body[i:], name)
		if !ok {
			continue
		}
		trimmed := strings.TrimLeft(rest, " \t\n")
		if strings.HasPrefix(trimmed, "(") {
			return len(body) - len(trimmed), name
		}
	}
	return -1, ""
}

func matching(body string, open int) int {
	depth := 0
	for i := open; i < len(body); i++ {
		switch body[i] {
		case '\'', '"':
			end := stringEnd(body, i)
			if end < 0 {
				return -1
			}
			i = end - 1
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

func topLevelComma(args string) int {
	depth := 0
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case '\'', '"':
			end := stringEnd(args, i)
			if end < 0 {
				return -1
			}
			i = end - 1
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return -1
}

func keyword(body string) string {
	body = strings.TrimSpace(body)
	for i := 0; i < len(body); i++ {
		if c := body[i]; c != '_' && (c < 'a' || c > 'z') {
			return body[:i]
		}
	}
	return body
}

// textWeights returns for each loop and macro (by index into segs) the bytes of text directly in its body, and checks
// that blocks are closed in order and do not nest too deep.
func textWeights(segs []segment) (map[int]int, error) {
	weights := make(map[int]int)
	type block struct {
		keyword string
		at      int
	}
	var stack []block
	for i, seg := range segs {
		switch seg.kind {
		case segExpr:
			continue
		case segText:
			for j := len(stack) - 1; j >= 0; j-- {
				if k := stack[j].keyword; k == "for" || k == "macro" {
					weights[stack[j].at] += len(seg.body)
					break
				}
			}
			continue
		case segStmt:
		}
		k := keyword(seg.body)
		switch {
		case strings.HasPrefix(k, "end"):
			if len(stack) == 0 || stack[len(stack)-1].keyword != k[len("end"):] {
				return nil, fmt.Errorf("line %d: %s closes nothing", seg.line, strconv.Quote(k))
			}
			stack = stack[:len(stack)-1]
		case opensBlock(k, seg.body):
			if stack = append(stack, block{k, i}); len(stack) > maxBlockDepth {
				return nil, fmt.Errorf("line %d: blocks nest deeper than %d", seg.line, maxBlockDepth)
			}
		}
	}
	if len(stack) > 0 {
		return nil, fmt.Errorf("line %d: %s is not closed", segs[stack[len(stack)-1].at].line, strconv.Quote(stack[len(stack)-1].keyword))
	}
	return weights, nil
}

func opensBlock(keyword, body string) bool {
	switch keyword {
	case "for", "if", "macro", "call", "filter", "generation", "block":
		return true
	case "set":
		return assignment(body) < 0
	}
	return false
}
