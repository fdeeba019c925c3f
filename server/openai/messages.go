package openai

import (
	"encoding/json/jsontext"
	"slices"
	"strings"

	"hearth/chat/template"
	"hearth/server/api"
)

func roles() []string {
	return []string{"system", "developer", "user", "assistant", "tool", "function"}
}

// decodeMessages reads a conversation in OpenAI's form.
func decodeMessages(o *api.Object) ([]template.Message, error) {
	v, ok := o.Get("messages")
	if !ok {
		return nil, api.BadField("messages", "must be an array of messages")
	}
	items, err := v.Items()
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, api.BadField("messages", "must not be empty")
	}
	out := make([]template.Message, len(items))
	for i, item := range items {
		if out[i], err = decodeMessage(item); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func decodeMessage(v api.Value) (template.Message, error) {
	var m template.Message
	o, err := v.Object()
	if err != nil {
		return m, err
	}
	role, ok := o.Get("role")
	if !ok {
		return m, api.BadField(v.Path+".role", "must be a string")
	}
	if m.Role, err = role.Str(); err != nil {
		return m, err
	}
	if !slices.Contains(roles(), m.Role) {
		return m, api.BadField(role.Path, "must be one of "+strings.Join(roles(), ", "))
	}
	m.Name = o.Str("name", "")
	m.ToolCallID = o.Str("tool_call_id", "")
	if r, ok := o.First("reasoning_content", "reasoning"); ok && r.Kind() == '"' {
		m.Reasoning, err = r.Str()
		o.Fail(err)
	}
	if m.Role == "assistant" {
		m.ToolCalls, err = decodeToolCalls(o)
		o.Fail(err)
	}
	content, ok := o.Get("content")
	switch {
	case ok:
		m.Content, err = decodeContent(content)
		o.Fail(err)
	case m.Role != "assistant" && m.Role != "tool" && m.Role != "function":
		o.Fail(api.BadField(v.Path+".content", "must be a string or an array of parts, got null"))
	}
	return m, o.Err()
}

// decodeContent returns the text of a message's content. Text parts are joined by newlines.
func decodeContent(v api.Value) (string, error) {
	switch v.Kind() {
	case '"':
		return v.Str()
	case '[':
	default:
		_, err := v.Str()
		return "", api.BadField(v.Path, strings.Replace(strings.TrimPrefix(api.Classify(err).Message, v.Path+" "), "a string", "a string or an array of parts", 1))
	}
	parts, err := v.Items()
	if err != nil {
		return "", err
	}
	texts := make([]string, 0, len(parts))
	for _, part := range parts {
		o, err := part.Object()
		if err != nil {
			return "", err
		}
		kind := o.Str("type", "text")
		field := ""
		switch kind {
		case "text", "input_text", "output_text":
			field = "text"
		case "refusal":
			field = "refusal"
		case "image_url", "input_image", "image", "input_audio", "file", "video_url":
			o.Fail(api.Unsupported(part.Path, "is of type "+kind+", only text is supported"))
		default:
			o.Fail(api.BadField(part.Path+".type", "must be \"text\""))
		}
		text, ok := o.Get(field)
		if !ok && o.Err() == nil {
			o.Fail(api.BadField(part.Path+"."+field, "must be a string"))
		}
		if err := o.Err(); err != nil {
			return "", err
		}
		s, err := text.Str()
		if err != nil {
			return "", err
		}
		texts = append(texts, s)
	}
	return strings.Join(texts, "\n"), nil
}

// decodeToolCalls reads an assistant's calls, in today's form or that of the old function_call.
func decodeToolCalls(o *api.Object) ([]template.ToolCall, error) {
	if v, ok := o.Get("function_call"); ok && !o.Has("tool_calls") {
		call, err := decodeFunction(v)
		return []template.ToolCall{call}, err
	}
	v, ok := o.Get("tool_calls")
	if !ok {
		return nil, nil
	}
	items, err := v.Items()
	if err != nil {
		return nil, err
	}
	var out []template.ToolCall
	for _, item := range items {
		call, err := item.Object()
		if err != nil {
			return nil, err
		}
		function, ok := call.Get("function")
		if !ok {
			return nil, api.BadField(item.Path+".function", "must be an object")
		}
		c, err := decodeFunction(function)
		if err != nil {
			return nil, err
		}
		c.ID = call.Str("id", "")
		if err := call.Err(); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func decodeFunction(v api.Value) (template.ToolCall, error) {
	var c template.ToolCall
	o, err := v.Object()
	if err != nil {
		return c, err
	}
	name, ok := o.Get("name")
	if !ok {
		return c, api.BadField(v.Path+".name", "must be a string")
	}
	if c.Name, err = name.Str(); err != nil {
		return c, err
	}
	args, ok := o.Get("arguments")
	switch {
	case !ok:
	case args.Kind() == '{': // some clients send what they parsed
		c.Arguments = string(args.Raw)
	default:
		c.Arguments, err = args.Str()
	}
	return c, err
}

// decodeTools reads the function tools; those of other types are for other servers and are left out.
func decodeTools(o *api.Object) ([]jsontext.Value, error) {
	v, ok := o.Get("tools")
	if !ok {
		return nil, nil
	}
	items, err := v.Items()
	if err != nil {
		return nil, err
	}
	var out []jsontext.Value
	for _, item := range items {
		tool, err := item.Object()
		if err != nil {
			return nil, err
		}
		if kind := tool.Str("type", "function"); kind != "function" && tool.Err() == nil {
			continue
		}
		function := tool.Object("function")
		if err := tool.Err(); err != nil {
			return nil, err
		}
		if function == nil {
			return nil, api.BadField(item.Path+".function", "must be an object")
		}
		if function.Str("name", "") == "" && function.Err() == nil {
			return nil, api.BadField(item.Path+".function.name", "must be a non-empty string")
		}
		if err := function.Err(); err != nil {
			return nil, err
		}
		out = append(out, item.Raw)
	}
	return out, nil
}
