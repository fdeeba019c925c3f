package openai

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"github.com/gin-gonic/gin"

	"hearth/engine"
	"hearth/server/api"
)

// maxInputs bounds the inputs of one embeddings or rerank request (OpenAI's limit).
const maxInputs = 2048

func (a *API) embeddings(c *gin.Context) error {
	ctx := c.Request.Context()
	body, err := api.DecodeBody(c.Request)
	if err != nil {
		return err
	}
	inputs, err := decodePrompts(body, "input")
	if err != nil {
		return err
	}
	if len(inputs) > maxInputs {
		return api.BadField("input", fmt.Sprintf("holds %d inputs, at most %d are allowed", len(inputs), maxInputs))
	}
	format := body.Str("encoding_format", "float")
	if format != "float" && format != "base64" {
		body.Fail(api.BadField("encoding_format", `must be "float" or "base64"`))
	}
	dimensions := body.Int("dimensions", 0, 1, math.MaxInt32)
	normalize := body.Bool("normalize", true)
	if err := body.Err(); err != nil {
		return err
	}
	model, release, err := a.acquire(ctx, body)
	if err != nil {
		return err
	}
	defer release()
	info := model.Info()
	if !info.Embedding {
		return &engine.Error{Kind: engine.KindUnsupported, Field: "model", Message: "model " + info.Name + " was not loaded for embeddings", Hint: "load it with mode embedding"}
	}
	if dimensions > 0 && int(dimensions) != info.EmbeddingLen {
		return api.Unsupported("dimensions", fmt.Sprintf("must be %d: this model's embeddings cannot be shortened", info.EmbeddingLen))
	}
	req := engine.EmbedRequest{Normalize: normalize, Tenant: api.RequestFrom(ctx).Tenant}
	for _, in := range inputs {
		if err := in.checkVocabulary(info.VocabSize); err != nil {
			return err
		}
		req.Inputs = append(req.Inputs, in.prompt())
	}
	result, err := a.embed(ctx, model, req, "input")
	if err != nil {
		return err
	}
	b := append(make([]byte, 0, len(inputs)*(info.EmbeddingLen*12+64)), `{"object":"list","data":[`...)
	for i, vector := range result.Vectors {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"object":"embedding","index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"embedding":`...)
		b = appendVector(b, vector, format == "base64")
		b = append(b, '}')
	}
	b = append(b, `],"model":`...)
	b = api.AppendString(b, info.Name)
	b = appendInputUsage(b, result)
	return a.reply(c, append(b, '}'))
}

// embed calls the model and counts; errors about the prompt name field.
func (a *API) embed(ctx context.Context, model engine.Model, req engine.EmbedRequest, field string) (engine.EmbedResult, error) {
	result, err := model.Embed(ctx, req)
	if err != nil {
		return result, renameField(err, field)
	}
	if len(result.Vectors) != len(req.Inputs) {
		return result, &engine.Error{Kind: engine.KindInternal, Message: "the engine failed", Cause: fmt.Errorf("%d vectors for %d inputs", len(result.Vectors), len(req.Inputs))}
	}
	a.cfg.Metrics.Model(model.Info().Name).Prompt(sum(result.PromptTokens))
	return result, nil
}

// appendVector appends numbers, or base64 of little-endian 32-bit floats, which the official SDKs ask for by default.
func appendVector(b []byte, vector []float32, asBase64 bool) []byte {
	if asBase64 {
		raw := make([]byte, 0, 4*len(vector))
		for _, f := range vector {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
		}
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, raw)
		return append(b, '"')
	}
	b = append(b, '[')
	for i, f := range vector {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendFloat32(b, f)
	}
	return append(b, ']')
}

func appendFloat32(b []byte, f float32) []byte {
	if v := float64(f); math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, '0') // JSON has no such number
	}
	return strconv.AppendFloat(b, float64(f), 'g', -1, 32)
}

func appendInputUsage(b []byte, result engine.EmbedResult) []byte {
	n := sum(result.PromptTokens)
	return fmt.Appendf(b, `,"usage":{"prompt_tokens":%d,"total_tokens":%d}`, n, n)
}

func sum(list []int) int {
	total := 0
	for _, n := range list {
		total += n
	}
	return total
}
