package template

import (
	"encoding/json/jsontext"
	"time"

	"github.com/ardanlabs/jinja"
)

// Message is one turn of a conversation. Content is text; what else a client may send is dealt with before.
type Message struct {
	Role       string // "system", "developer", "user", "assistant", "tool" or "function"
	Content    string
	Reasoning  string // of an assistant; templates see it as reasoning_content
	Name       string
	ToolCallID string // of a tool's result
	ToolCalls  []ToolCall
}

// ToolCall is a call that an assistant made. Arguments is JSON text as the model wrote it.
type ToolCall struct{ ID, Name, Arguments string }

// Input is what a template is rendered with.
type Input struct {
	Messages []Message
	// Tools are JSON objects in OpenAI's form {"type":"function","function":{...}}; the order of their keys is kept.
	Tools []jsontext.Value
	// AddGenerationPrompt ends the text with the opening of an assistant's turn.
	AddGenerationPrompt bool
	// ContinueFinal leaves the last message, which must be an assistant's, open to be continued. It overrules
	// AddGenerationPrompt.
	ContinueFinal bool
	BOS, EOS      string
	// Now is what strftime_now shows; the zero time shows year 1.
	Now time.Time
	// Kwargs are further variables, such as enable_thinking. They cannot replace those above.
	Kwargs map[string]jsontext.Value
}

// messageValue spells m in the form that caps asks for.
func messageValue(m Message, caps Caps) jinja.Value {
	v := jinja.NewDict()
	d := v.AsDict()
	d.Set("role", jinja.NewString(m.Role))
	content := jinja.NewString(m.Content)
	if caps.ContentParts {
		part := jinja.NewDict()
		part.AsDict().Set("type", jinja.NewString("text"))
		part.AsDict().Set("text", content)
		content = jinja.NewList([]jinja.Value{part})
	}
	d.Set("content", content)
	if m.Reasoning != "" {
		d.Set("reasoning_content", jinja.NewString(m.Reasoning))
	}
	if m.Name != "" {
		d.Set("name", jinja.NewString(m.Name))
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", jinja.NewString(callID(m.ToolCallID, caps)))
	}
	if len(m.ToolCalls) > 0 {
		calls := make([]jinja.Value, len(m.ToolCalls))
		for i, c := range m.ToolCalls {
			calls[i] = callValue(c, caps)
		}
		d.Set("tool_calls", jinja.NewList(calls))
	}
	return v
}

func callValue(c ToolCall, caps Caps) jinja.Value {
	function := jinja.NewDict()
	function.AsDict().Set("name", jinja.NewString(c.Name))
	function.AsDict().Set("arguments", argumentsValue(c.Arguments, !caps.StringArguments))
	v := jinja.NewDict()
	if c.ID != "" {
		v.AsDict().Set("id", jinja.NewString(callID(c.ID, caps)))
	}
	v.AsDict().Set("type", jinja.NewString("function"))
	v.AsDict().Set("function", function)
	return v
}

// callID spells a tool call's id as nine letters and digits for templates that refuse anything else.
func callID(id string, caps Caps) string {
	if !caps.ShortToolIDs || shortID(id) {
		return id
	}
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	hash := uint64(14695981039346656037) // FNV-1a, 64 bits
	for _, c := range []byte(id) {
		hash = (hash ^ uint64(c)) * 1099511628211
	}
	out := make([]byte, 9)
	for i := range out {
		out[i] = alphabet[hash%uint64(len(alphabet))]
		hash /= uint64(len(alphabet))
	}
	return string(out)
}

func shortID(id string) bool {
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return len(id) == 9
}
