package template

import (
	"slices"
	"strings"
)

// normalize returns the conversation in a form that a template with caps accepts. The texts are the user's own; only
// their order and roles change, and only where the template would refuse or drop them.
func normalize(messages []Message, caps Caps, keepTrailing bool) []Message {
	out := slices.Clone(messages)
	for i := range out {
		switch {
		case out[i].Role == "developer" && !caps.Developer:
			out[i].Role = "system"
		case out[i].Role == "function":
			out[i].Role = "tool"
		}
	}
	// Agents send the assistant's turn that they are about to fill.
	if n := len(out); n > 1 && !keepTrailing {
		if last := out[n-1]; last.Role == "assistant" && last.Content == "" && last.Reasoning == "" && len(last.ToolCalls) == 0 {
			out = out[:n-1]
		}
	}
	out = mergeSystem(out, caps)
	if !caps.System {
		out = foldSystem(out)
	}
	if !caps.Repeats {
		out = mergeRepeats(out)
	}
	return out
}

// paragraphs collects texts that become one, with a blank line between them. Joining two at a time would cost the square
// of their number, and a request may hold a hundred thousand messages.
type paragraphs []string

func (p *paragraphs) add(text string) {
	if text != "" {
		*p = append(*p, text)
	}
}

func (p paragraphs) String() string { return strings.Join(p, "\n\n") }

// mergeSystem joins the system messages at the start into one, and all later ones too when the template cannot print
// them where they stand.
func mergeSystem(messages []Message, caps Caps) []Message {
	var system *Message
	var texts paragraphs
	out := make([]Message, 0, len(messages)+1)
	leading := true
	for _, m := range messages {
		if m.Role != "system" || !leading && caps.LateSystem {
			leading = false
			out = append(out, m)
			continue
		}
		if system == nil {
			first := m
			system = &first
		}
		texts.add(m.Content)
	}
	if system != nil {
		system.Content = texts.String()
		out = slices.Insert(out, 0, *system)
	}
	return out
}

// foldSystem puts system messages into the user's message that follows, for templates without a system role.
func foldSystem(messages []Message) []Message {
	out := make([]Message, 0, len(messages))
	var pending paragraphs
	for _, m := range messages {
		if m.Role == "system" {
			pending.add(m.Content)
			continue
		}
		if len(pending) > 0 && m.Role == "user" {
			pending.add(m.Content)
			m.Content, pending = pending.String(), nil
		}
		out = append(out, m)
	}
	if len(pending) > 0 {
		out = append(out, Message{Role: "user", Content: pending.String()})
	}
	return out
}

// mergeRepeats joins neighbours of the same role, for templates that insist on alternating roles.
func mergeRepeats(messages []Message) []Message {
	var out []Message
	for i := 0; i < len(messages); {
		m := messages[i]
		end := i + 1
		for end < len(messages) && joins(&messages[end-1], &messages[end]) {
			end++
		}
		if end > i+1 {
			var content, reasoning paragraphs
			for _, part := range messages[i:end] {
				content.add(part.Content)
				reasoning.add(part.Reasoning)
			}
			m.Content, m.Reasoning, m.ToolCalls = content.String(), reasoning.String(), messages[end-1].ToolCalls
		}
		out = append(out, m)
		i = end
	}
	return out
}

// joins says whether next continues m's turn. Tool calls end a turn.
func joins(m, next *Message) bool {
	return m.Role == next.Role && (m.Role == "user" || m.Role == "assistant") && len(m.ToolCalls) == 0
}
