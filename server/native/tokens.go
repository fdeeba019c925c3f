package native

import (
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"hearth/engine"
	"hearth/server/api"
)

// withModel decodes the body, acquires the model it names and calls f.
func (a *API) withModel(c *gin.Context, f func(o *api.Object, model engine.Model) ([]byte, error)) error {
	o, err := api.DecodeBody(c.Request)
	if err != nil {
		return err
	}
	name := o.Str("model", "")
	if err := o.Err(); err != nil {
		return err
	}
	model, release, err := api.Acquire(c.Request.Context(), a.cfg.Models, name, a.cfg.DefaultModel)
	if err != nil {
		return err
	}
	defer release()
	body, err := f(o, model)
	if err != nil {
		return err
	}
	return api.WriteJSON(c.Writer, http.StatusOK, body, a.cfg.WriteTimeout)
}

// tokenize returns {"tokens":[...]}: ids, or with with_pieces objects of id and piece, where a piece that is not UTF-8
// is an array of bytes.
func (a *API) tokenize(c *gin.Context) error {
	return a.withModel(c, func(o *api.Object, model engine.Model) ([]byte, error) {
		content, ok := o.First("content", "prompt") // vLLM says prompt
		if !ok {
			return nil, api.BadField("content", "must be a string")
		}
		text, err := content.Str()
		o.Fail(err)
		prompt := engine.Prompt{
			Segments:   []engine.Segment{{Text: text, Special: o.Bool("parse_special", true)}},
			AddSpecial: o.Bool("add_special", false),
		}
		pieces := o.Bool("with_pieces", false)
		if err := o.Err(); err != nil {
			return nil, err
		}
		tokens, err := model.Tokenize(c.Request.Context(), prompt)
		if err != nil {
			return nil, err
		}
		b := []byte(`{"tokens":[`)
		for i, t := range tokens {
			if i > 0 {
				b = append(b, ',')
			}
			if !pieces {
				b = strconv.AppendInt(b, int64(t), 10)
				continue
			}
			piece, err := model.Detokenize(c.Request.Context(), tokens[i:i+1])
			if err != nil {
				return nil, err
			}
			b = append(b, `{"id":`...)
			b = strconv.AppendInt(b, int64(t), 10)
			b = append(b, `,"piece":`...)
			b = appendPiece(b, piece)
			b = append(b, '}')
		}
		b = append(b, `],"count":`...)
		b = strconv.AppendInt(b, int64(len(tokens)), 10)
		return append(b, '}'), nil
	})
}

func appendPiece(b, piece []byte) []byte {
	if utf8.Valid(piece) {
		return api.AppendString(b, string(piece))
	}
	b = append(b, '[')
	for i, c := range piece {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(c), 10)
	}
	return append(b, ']')
}

// detokenize returns {"content":"..."}.
func (a *API) detokenize(c *gin.Context) error {
	return a.withModel(c, func(o *api.Object, model engine.Model) ([]byte, error) {
		v, ok := o.Get("tokens")
		if !ok {
			return nil, api.BadField("tokens", "must be an array of token ids")
		}
		tokens, err := v.Ints()
		if err != nil {
			return nil, err
		}
		size := model.Info().VocabSize
		for i, t := range tokens {
			if t < 0 || size > 0 && int(t) >= size {
				return nil, api.BadField("tokens["+strconv.Itoa(i)+"]", "is outside the vocabulary of "+strconv.Itoa(size))
			}
		}
		text, err := model.Detokenize(c.Request.Context(), tokens)
		if err != nil {
			return nil, err
		}
		b := api.AppendString([]byte(`{"content":`), string(text))
		return append(b, '}'), nil
	})
}

// applyTemplate returns {"prompt":"..."}: what a chat request's messages become.
func (a *API) applyTemplate(c *gin.Context) error {
	return a.withModel(c, func(o *api.Object, model engine.Model) ([]byte, error) {
		text, err := a.cfg.RenderChat(o, model.Info())
		if err != nil {
			return nil, err
		}
		b := api.AppendString([]byte(`{"prompt":`), text)
		return append(b, '}'), nil
	})
}
