package template

import "slices"

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

// mergeSystem joins the system messages at the start into one, and all later ones too when the template cannot print
// them where they stand.
func mergeSystem(messages []Message, caps Caps) []Message {
	var system *Message
	out := make([]Message, 0, len(messages)+1)
	leading := true
	for _, m := range messages {
		if m.Role != "system" || !leading && caps.LateSystem {
			leading = false
			out = append(out, m)
			continue
		}
		switch {
		case system == nil:
			first := m
			system = &first
		default:
			system.Content = join(system.Content, m.Content)
		}
	}
	if system != nil {
		out = slices.Insert(out, 0, *system)
	}
	return out
}

// foldSystem puts system messages into the user's message that follows, for templates without a system role.
func foldSystem(messages []Message) []Message {
	out := make([]Message, 0, len(messages))
	pending := ""
	for _, m := range messages {
		if m.Role == "system" {
			pending = join(pending, m.Content)
			continue
		}
		if pending != "" && m.Role == "user" {
			m.Content, pending = join(pending, m.Content), ""
		}
		out = append(out, m)
	}
	if pending != "" {
		out = append(out, Message{Role: "user", Content: pending})
	}
	return out
}

// mergeRepeats joins neighbours of the same role, for templates that insist on alternating roles.
func mergeRepeats(messages []Message) []Message {
	var out []Message
	for _, m := range messages {
		if n := len(out); n > 0 && m.Role == out[n-1].Role && (m.Role == "user" || m.Role == "assistant") && len(out[n-1].ToolCalls) == 0 {
			last := &out[n-1]
			last.Content = join(last.Content, m.Content)
			last.Reasoning = join(last.Reasoning, m.Reasoning)
			last.ToolCalls = m.ToolCalls
			continue
		}
		out = append(out, m)
	}
	return out
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n\n" + b
}
