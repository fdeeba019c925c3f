package openai

import (
	"context"
	"fmt"

	"github.com/gin-gonic/gin"

	"hearth/engine"
	"hearth/server/api"
)

const (
	// defaultCompletionTokens is OpenAI's default of max_tokens for completions.
	defaultCompletionTokens = 16
	// maxPrompts bounds the prompts of one request.
	maxPrompts = 128
)

func (a *API) completions(c *gin.Context) error {
	body, err := api.DecodeBody(c.Request)
	if err != nil {
		return err
	}
	prompts, err := decodePrompts(body, "prompt")
	if err != nil {
		return err
	}
	if len(prompts) > maxPrompts {
		return api.BadField("prompt", fmt.Sprintf("holds %d prompts, at most %d are allowed", len(prompts), maxPrompts))
	}
	out, echo, err := decodeCompletion(body)
	if err != nil {
		return err
	}
	request := func(info engine.Info) (engine.Request, error) {
		r := engine.Request{Logprobs: out.logprobs, TopLogprobs: out.topLogprobs, Progress: out.progress}
		decodeCommon(body, &r, info, defaultCompletionTokens, 0)
		if body.Int("best_of", int64(r.N), 1, engine.MaxChoices) != int64(r.N) {
			body.Fail(api.Unsupported("best_of", "must be equal to n"))
		}
		if err := body.Err(); err != nil {
			return r, err
		}
		return r, r.Validate()
	}
	if _, err := request(engine.Info{}); err != nil {
		return err
	}
	var echoes []string // per prompt
	perPrompt := 1
	return a.generate(c, job{
		out: out, body: body, prefix: "cmpl-", field: "prompt",
		plan: func(ctx context.Context, model engine.Model) ([]engine.Request, error) {
			info := model.Info()
			r, err := request(info)
			if err != nil {
				return nil, err
			}
			perPrompt = r.Choices()
			requests := make([]engine.Request, len(prompts))
			for i, p := range prompts {
				if err := p.checkVocabulary(info.VocabSize); err != nil {
					return nil, err
				}
				requests[i] = r
				requests[i].Prompt = p.prompt()
				if echo {
					text, err := p.spell(ctx, model)
					if err != nil {
						return nil, err
					}
					echoes = append(echoes, text)
				}
			}
			return requests, nil
		},
		shape: func(h head) shape { return newTextShape(h, out, echoes, perPrompt) },
	})
}

// decodeCompletion reads the fields that only completions have.
func decodeCompletion(o *api.Object) (output, bool, error) {
	out := decodeOutput(o)
	if o.Has("logprobs") {
		out.logprobs = true
		out.topLogprobs = int(o.Int("logprobs", 0, 0, engine.MaxTopLogprobs))
	}
	if o.Str("suffix", "") != "" {
		o.Fail(api.Unsupported("suffix", "needs a model with fill-in-the-middle tokens, which is not supported yet"))
	}
	if format := o.Object("response_format"); format != nil && format.Str("type", "text") != "text" {
		o.Fail(api.Unsupported("response_format", "is for chats"))
	}
	o.Fail(refuseConstraints(o))
	echo := o.Bool("echo", false)
	if echo && out.logprobs {
		o.Fail(api.Unsupported("echo", "cannot be combined with logprobs: those of the prompt are not computed"))
	}
	return out, echo, o.Err()
}

// textOrTokens is a prompt or an input for embeddings as clients send it.
type textOrTokens struct {
	path   string
	text   string
	tokens []engine.Token // wins when not nil
}

// prompt is the engine's prompt. Raw text may spell special tokens: who writes raw prompts writes the template too.
func (p textOrTokens) prompt() engine.Prompt {
	if p.tokens != nil {
		return engine.Prompt{Segments: []engine.Segment{{Tokens: p.tokens}}}
	}
	return engine.TextPrompt(p.text)
}

func (p textOrTokens) checkVocabulary(size int) error {
	for i, t := range p.tokens {
		if t < 0 || size > 0 && int(t) >= size {
			return api.BadField(fmt.Sprintf("%s[%d]", p.path, i), fmt.Sprintf("is token %d, the vocabulary has %d", t, size))
		}
	}
	return nil
}

// spell returns the prompt's text.
func (p textOrTokens) spell(ctx context.Context, model engine.Model) (string, error) {
	if p.tokens == nil {
		return p.text, nil
	}
	b, err := model.Detokenize(ctx, p.tokens)
	return string(b), err
}

// decodePrompts reads a string, a list of strings, a list of token ids, or a list of such lists.
func decodePrompts(o *api.Object, field string) ([]textOrTokens, error) {
	const want = "must be a string, an array of strings, an array of token ids or an array of those"
	v, ok := o.Get(field)
	if !ok {
		return nil, api.BadField(field, want)
	}
	switch v.Kind() {
	case '"':
		s, err := v.Str()
		return []textOrTokens{{path: field, text: s}}, err
	case '[':
	default:
		return nil, api.BadField(field, want)
	}
	kind, err := v.FirstKind()
	if err != nil {
		return nil, err
	}
	switch kind {
	case 0:
		return nil, api.BadField(field, "must not be empty")
	case '0':
		tokens, err := v.Ints()
		return []textOrTokens{{path: field, tokens: tokens}}, err
	case '"', '[':
	default:
		return nil, api.BadField(field, want)
	}
	items, err := v.Items()
	if err != nil {
		return nil, err
	}
	out := make([]textOrTokens, len(items))
	for i, item := range items {
		out[i].path = item.Path
		switch {
		case item.Kind() != kind:
			return nil, api.BadField(item.Path, "must be of the same kind as the first entry")
		case kind == '"':
			out[i].text, err = item.Str()
		default:
			if out[i].tokens, err = item.Ints(); err == nil && len(out[i].tokens) == 0 {
				err = api.BadField(item.Path, "must not be empty")
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
