package openai

import (
	"context"
	"encoding/json/jsontext"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"hearth/chat/template"
	"hearth/engine"
	"hearth/server/api"
)

// output is how the reply is to be shaped.
type output struct {
	stream       bool
	includeUsage bool
	progress     bool
	logprobs     bool
	topLogprobs  int
}

func decodeOutput(o *api.Object) output {
	out := output{stream: o.Bool("stream", false), progress: o.Bool("return_progress", false)}
	if so := o.Object("stream_options"); so != nil {
		out.includeUsage = so.Bool("include_usage", false)
		o.Fail(so.Err())
	}
	out.progress = out.progress && out.stream
	return out
}

func (a *API) chatCompletions(c *gin.Context) error {
	body, err := api.DecodeBody(c.Request)
	if err != nil {
		return err
	}
	in, err := decodeChat(body)
	if err != nil {
		return err
	}
	out := decodeOutput(body)
	out.logprobs = body.Bool("logprobs", false)
	out.topLogprobs = int(body.Int("top_logprobs", 0, 0, engine.MaxTopLogprobs))
	request := func(info engine.Info) (engine.Request, error) {
		r := engine.Request{Logprobs: out.logprobs, TopLogprobs: out.topLogprobs, Progress: out.progress}
		decodeCommon(body, &r, info, -1, 1)
		if in.jsonObject {
			if r.Sampling.Grammar != "" {
				body.Fail(api.BadField("grammar", "cannot be combined with response_format json_object"))
			}
			r.Sampling.Grammar = jsonGrammar
		}
		if err := body.Err(); err != nil {
			return r, err
		}
		return r, r.Validate()
	}
	// A request that is wrong in itself does not load a model.
	if _, err := request(engine.Info{}); err != nil {
		return err
	}
	return a.generate(c, job{
		out: out, body: body, prefix: "chatcmpl-", field: "messages",
		plan: func(_ context.Context, model engine.Model) ([]engine.Request, error) {
			r, err := request(model.Info())
			if err != nil {
				return nil, err
			}
			r.Prompt, err = a.renderPrompt(in, model.Info())
			return []engine.Request{r}, err
		},
		shape: func(h head) shape { return newChatShape(h, out) },
	})
}

// chatInput is what the prompt is made from.
type chatInput struct {
	template.Input
	jsonObject bool
}

// decodeChat reads everything of a chat request that does not need the model.
func decodeChat(o *api.Object) (chatInput, error) {
	var in chatInput
	var err error
	if in.Messages, err = decodeMessages(o); err != nil {
		return in, err
	}
	if err := refuseUnsupported(o); err != nil {
		return in, err
	}
	if in.Tools, err = decodeTools(o); err != nil {
		return in, err
	}
	if err := decodeToolChoice(o, len(in.Tools) > 0); err != nil {
		return in, err
	}
	if in.jsonObject, err = decodeFormat(o); err != nil {
		return in, err
	}
	in.ContinueFinal = o.Bool("continue_final_message", false)
	in.AddGenerationPrompt = o.Bool("add_generation_prompt", true)
	if in.ContinueFinal && in.Messages[len(in.Messages)-1].Role != "assistant" {
		return in, api.BadField("continue_final_message", "needs a last message of role assistant")
	}
	in.Kwargs, err = decodeKwargs(o)
	o.Fail(err)
	return in, o.Err()
}

// refuseUnsupported names the fields whose meaning would be lost if they were ignored.
func refuseUnsupported(o *api.Object) error {
	if v, ok := o.Get("functions"); ok && v.Kind() == '[' {
		return api.Unsupported("functions", "is OpenAI's old form of tools, which is not supported")
	}
	if err := refuseConstraints(o); err != nil {
		return err
	}
	if v, ok := o.Get("modalities"); ok {
		list, err := stringList(v, 8)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(list, func(m string) bool { return m != "text" }) {
			return api.Unsupported("modalities", "may only hold \"text\"")
		}
	}
	return nil
}

// refuseConstraints names the fields by which llama-server's and vLLM's clients constrain the output's form, and which
// would come back as free text.
func refuseConstraints(o *api.Object) error {
	for _, name := range []string{"json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"} {
		if o.Has(name) {
			return api.Unsupported(name, "is not supported yet; grammar (GBNF) and response_format json_object are")
		}
	}
	return nil
}

// decodeToolChoice accepts tools only where no call needs to be found in the reply: calls would come back as plain
// text, and a client that offers tools relies on getting them as calls.
func decodeToolChoice(o *api.Object, tools bool) error {
	choice, given := o.Get("tool_choice")
	mode := "auto"
	if given {
		switch choice.Kind() {
		case '"':
			mode, _ = choice.Str()
			if !slices.Contains([]string{"none", "auto", "required"}, mode) {
				return api.BadField("tool_choice", `must be "none", "auto", "required" or an object`)
			}
		case '{':
			mode = "object"
		default:
			return api.BadField("tool_choice", `must be "none", "auto", "required" or an object`)
		}
	}
	if tools && mode != "none" {
		e := api.Unsupported("tools", "cannot be called yet: replies are not searched for tool calls")
		e.Hint = `send tool_choice "none" to show the tools to the model and get text`
		return e
	}
	if !tools && (mode == "required" || mode == "object") {
		return api.BadField("tool_choice", "needs tools")
	}
	return nil
}

// decodeFormat reads response_format and reports whether the reply must be a JSON object.
func decodeFormat(o *api.Object) (bool, error) {
	format := o.Object("response_format")
	if format == nil {
		return false, o.Err()
	}
	kind := format.Str("type", "text")
	if err := format.Err(); err != nil {
		return false, err
	}
	switch kind {
	case "text":
		return false, nil
	case "json_object":
		if format.Has("schema") {
			return false, api.Unsupported("response_format.schema", "is not supported yet, only json_object without a schema is")
		}
		return true, nil
	case "json_schema":
		return false, api.Unsupported("response_format", "of type json_schema is not supported yet, json_object is")
	}
	return false, api.BadField("response_format.type", `must be "text", "json_object" or "json_schema"`)
}

// decodeKwargs collects the variables that templates know beside the messages.
func decodeKwargs(o *api.Object) (map[string]jsontext.Value, error) {
	kwargs := make(map[string]jsontext.Value)
	for _, name := range []string{"enable_thinking", "reasoning_effort"} {
		if v, ok := o.Get(name); ok {
			kwargs[name] = v.Raw
		}
	}
	if v, ok := o.Get("chat_template_kwargs"); ok {
		object, err := v.Object()
		if err != nil {
			return nil, err
		}
		object.Each(func(name string, v api.Value) { kwargs[name] = v.Raw })
	}
	return kwargs, nil
}

// renderPrompt turns the conversation into the model's prompt.
func (a *API) renderPrompt(in chatInput, info engine.Info) (engine.Prompt, error) {
	segments, err := a.render(in, info)
	if err != nil {
		return engine.Prompt{}, err
	}
	p := engine.Prompt{AddSpecial: true}
	for _, s := range segments {
		p.Segments = append(p.Segments, engine.Segment{Text: s.Text, Special: s.Trusted})
	}
	return p, nil
}

func (a *API) render(in chatInput, info engine.Info) ([]template.Segment, error) {
	tmpl, err := a.cfg.Templates.For(info)
	if err != nil {
		return nil, err
	}
	in.BOS, in.EOS, in.Now = info.BOS, info.EOS, time.Now()
	segments, err := tmpl.Segments(in.Input)
	if err != nil {
		return nil, api.RenderError(err)
	}
	return segments, nil
}

// RenderChat returns the prompt's text for a chat request, for POST /apply-template.
func (a *API) RenderChat(o *api.Object, info engine.Info) (string, error) {
	in, err := decodeChat(o)
	if err != nil {
		return "", err
	}
	segments, err := a.render(in, info)
	if err != nil {
		return "", err
	}
	return template.Join(segments), nil
}
