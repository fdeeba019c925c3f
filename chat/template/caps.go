package template

import (
	"encoding/json/jsontext"
	"strings"
	"time"
)

// Caps is what a template can do, found by rendering small conversations and looking for their texts in the result.
type Caps struct {
	System          bool // prints a system message
	LateSystem      bool // prints a system message that is not the first message
	Developer       bool // knows the role "developer"
	Repeats         bool // accepts two user messages in a row
	Tools           bool // prints the tools it is given
	ToolCalls       bool // prints an assistant's tool calls
	StringArguments bool // wants a call's arguments as a string, not as an object
	ShortToolIDs    bool // refuses tool call ids that are not nine letters and digits
	ContentParts    bool // wants content as an array of parts, not as a string
}

// Texts of the probes. They are unlike anything that a template says by itself.
const (
	probeUser   = "qUserq"
	probeSystem = "qSystemq"
	probeLate   = "qLateq"
	probeTool   = "q_tool_q"
	probeValue  = "qArgq"
)

func (t *Template) probe() Caps {
	// Probes are tiny, so a template that is slow on them is not fit for use; finding that out must not take long.
	t = &Template{source: t.source, code: t.code, budget: t.budget}
	t.budget.Steps = min(t.budget.Steps, 20_000)
	t.budget.Time = min(t.budget.Time, 250*time.Millisecond)
	// No text of ours contains a special token, so the plain render is the whole truth.
	shows := func(caps Caps, in Input, want ...string) bool {
		in.AddGenerationPrompt = true
		in.Now = time.Unix(0, 0).UTC()
		in.BOS, in.EOS = "<s>", "</s>"
		text, err := t.renderAs(in, in.Messages, caps)
		if err != nil {
			return false
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	}
	user, assistant := Message{Role: "user", Content: probeUser}, Message{Role: "assistant", Content: "ok"}
	system := Message{Role: "system", Content: probeSystem}
	talk := func(m ...Message) Input { return Input{Messages: m} }

	caps := Caps{}
	parts := Caps{ContentParts: true}
	caps.ContentParts = !shows(caps, talk(user), probeUser) && shows(parts, talk(user), probeUser)
	caps.System = shows(caps, talk(system, user), probeSystem, probeUser)
	// Templates that print any role by its name show a developer's message too, but no model was trained on that.
	developer := Message{Role: "developer", Content: probeSystem}
	caps.Developer = strings.Contains(t.source, "developer") && shows(caps, talk(developer, user), probeSystem, probeUser)
	late := Message{Role: "system", Content: probeLate}
	caps.LateSystem = caps.System && shows(caps, talk(system, user, assistant, late, user), probeSystem, probeLate)
	caps.Repeats = shows(caps, talk(Message{Role: "user", Content: probeLate}, user), probeLate, probeUser)

	tool := jsontext.Value(`{"type":"function","function":{"name":"` + probeTool + `","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string","description":"d"}},"required":["a"]}}}`)
	caps.Tools = shows(caps, Input{Messages: []Message{user}, Tools: []jsontext.Value{tool}}, probeTool)

	call := func(id string) Input {
		return Input{Tools: []jsontext.Value{tool}, Messages: []Message{
			user,
			{Role: "assistant", ToolCalls: []ToolCall{{ID: id, Name: probeTool, Arguments: `{"a": "` + probeValue + `"}`}}},
			{Role: "tool", Name: probeTool, ToolCallID: id, Content: "result"},
		}}
	}
	const short, long = "abcdef123", "call_abcdef_12345"
	caps.ShortToolIDs = !shows(caps, call(long), probeTool) && shows(caps, call(short), probeTool)
	// A template that prints an object the way Python does ('a') meant to be given text.
	asObject := shows(caps, call(short), probeTool, probeValue) && !shows(caps, call(short), `'a': '`+probeValue)
	asString := caps
	asString.StringArguments = true
	caps.StringArguments = !asObject && shows(asString, call(short), probeTool, probeValue)
	caps.ToolCalls = asObject || caps.StringArguments
	return caps
}
