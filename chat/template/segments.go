package template

import (
	"errors"
	"regexp"
	"strings"
)

// Segment is a piece of the prompt. In a Trusted one special tokens spelled in the text are meant; in others they are
// what somebody typed into a message, and must be tokenised as plain text.
type Segment struct {
	Text    string
	Trusted bool
}

// specialLike matches what models use as special tokens. It leaves alone the plain-text tags that templates look for
// in messages (<think>, <tool_response>).
var specialLike = regexp.MustCompile(`<\|[^\s<>|]{1,64}\|?>|<[A-Za-z_]{1,32}\|>|<｜[^<>｜]{1,64}｜>|</?s>|<(?:bos|eos|pad|unk|mask)>` +
	`|<(?:start|end)_of_(?:turn|image)>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK|IMG)\]`)

// Segments renders the prompt and says which parts of it came from messages and spell special tokens. Ordinary text is
// never split, so it is tokenised as if it had been rendered in one piece.
func (t *Template) Segments(in Input) ([]Segment, error) {
	messages := normalize(in.Messages, t.caps, in.ContinueFinal)
	if n := len(messages); in.ContinueFinal && (n == 0 || messages[n-1].Role != "assistant") {
		return nil, ErrNotAssistant
	}
	m, ok := newMarks(messages)
	if !ok {
		return nil, errors.New("the messages use every private-use character that could mark them")
	}
	marked := m.mark(messages)
	if in.ContinueFinal {
		last := &messages[len(messages)-1]
		last.Content += m.end
	}
	text, err := t.renderAs(in, messages, t.caps)
	if err != nil {
		return nil, err
	}
	if in.ContinueFinal {
		cut := strings.LastIndex(text, m.end)
		if cut < 0 {
			return nil, errors.New("the chat template does not print the message that is to be continued")
		}
		text = text[:cut]
	}
	if !marked {
		return []Segment{{Text: text, Trusted: true}}, nil
	}
	return m.split(text), nil
}

// marks are three private-use characters that occur in no message.
type marks struct{ open, close, end string }

func newMarks(messages []Message) (marks, bool) {
	const low, high = '\ue100', '\uf8ff'
	// One pass over the text, whatever it holds: a search for each candidate would let a message that holds them all
	// cost thousands of passes.
	var used [high - low]bool
	for i := range messages {
		for _, r := range messages[i].Content {
			if r >= low && r < high {
				used[r-low] = true
			}
		}
	}
	var free []string
	for r := low; r < high && len(free) < 3; r++ {
		if !used[r-low] {
			free = append(free, string(r))
		}
	}
	if len(free) < 3 {
		return marks{}, false
	}
	return marks{free[0], free[1], free[2]}, true
}

// mark puts marks around special tokens in the messages' contents, in place, and reports whether there were any.
// Assistants' messages are left alone: they were generated, and templates cut them apart at such tokens.
func (m marks) mark(messages []Message) bool {
	found := false
	for i := range messages {
		msg := &messages[i]
		if msg.Role == "assistant" || !strings.ContainsAny(msg.Content, "<[") || !specialLike.MatchString(msg.Content) {
			continue
		}
		found = true
		msg.Content = specialLike.ReplaceAllString(msg.Content, m.open+"${0}"+m.close)
	}
	return found
}

// split cuts rendered text at the marks. A template that cut a marked text apart leaves marks without partner; they go.
func (m marks) split(text string) []Segment {
	var out []Segment
	var run strings.Builder // pieces of equal trust, until one of the other kind comes
	trusted := true
	unmark := strings.NewReplacer(m.open, "", m.close, "")
	flush := func() {
		if run.Len() > 0 {
			out = append(out, Segment{run.String(), trusted})
			run.Reset()
		}
	}
	add := func(s string, trust bool) {
		if s = unmark.Replace(s); s == "" {
			return
		}
		if trust != trusted {
			flush()
			trusted = trust
		}
		run.WriteString(s)
	}
	for {
		before, rest, ok := strings.Cut(text, m.open)
		add(before, true)
		if !ok {
			break
		}
		inside, after, ok := strings.Cut(rest, m.close)
		add(inside, false)
		if !ok {
			break
		}
		text = after
	}
	flush()
	return out
}
