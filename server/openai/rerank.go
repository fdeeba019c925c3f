package openai

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/gin-gonic/gin"

	"hearth/engine"
	"hearth/server/api"
)

// rerankRequest is a rerank request in any of the forms: Jina and Cohere send documents, TEI sends texts and wants a
// bare array back.
type rerankRequest struct {
	query     string
	documents []string
	topN      int
	tei       bool
	texts     bool // the reply repeats the documents
	rawScores bool
}

func decodeRerank(o *api.Object) (rerankRequest, error) {
	var r rerankRequest
	field := "documents"
	if o.Has("texts") && !o.Has("documents") {
		field, r.tei = "texts", true
	}
	query, ok := o.Get("query")
	if !ok {
		return r, api.BadField("query", "must be a string")
	}
	var err error
	if r.query, err = query.Str(); err != nil {
		return r, err
	}
	list, ok := o.Get(field)
	if !ok {
		return r, api.BadField("documents", "must be an array of strings")
	}
	items, err := list.Items()
	if err != nil {
		return r, err
	}
	switch n := len(items); {
	case n == 0:
		return r, api.BadField(field, "must not be empty")
	case n > maxInputs:
		return r, api.BadField(field, fmt.Sprintf("holds %d entries, at most %d are allowed", n, maxInputs))
	}
	for _, item := range items {
		text := item
		if item.Kind() == '{' {
			object, err := item.Object()
			if err != nil {
				return r, err
			}
			if text, ok = object.Get("text"); !ok {
				return r, api.BadField(item.Path+".text", "must be a string")
			}
		}
		s, err := text.Str()
		if err != nil {
			return r, err
		}
		r.documents = append(r.documents, s)
	}
	r.topN = int(o.Int("top_n", int64(len(items)), 0, math.MaxInt32))
	r.texts = o.Bool("return_documents", false) || o.Bool("return_text", false)
	r.rawScores = o.Bool("raw_scores", true)
	return r, o.Err()
}

func (a *API) rerank(c *gin.Context) error {
	ctx := c.Request.Context()
	body, err := api.DecodeBody(c.Request)
	if err != nil {
		return err
	}
	r, err := decodeRerank(body)
	if err != nil {
		return err
	}
	model, release, err := a.acquire(ctx, body)
	if err != nil {
		return err
	}
	defer release()
	info := model.Info()
	if !info.Rerank {
		return &engine.Error{Kind: engine.KindUnsupported, Field: "model", Message: "model " + info.Name + " was not loaded for reranking", Hint: "load it with mode rerank"}
	}
	req := engine.EmbedRequest{Rerank: true, Query: r.query, Tenant: api.RequestFrom(ctx).Tenant}
	for _, d := range r.documents {
		// A document is data: special tokens spelled in it are text.
		req.Inputs = append(req.Inputs, engine.Prompt{Segments: []engine.Segment{{Text: d}}})
	}
	field := "documents"
	if r.tei {
		field = "texts"
	}
	result, err := a.embed(ctx, model, req, field)
	if err != nil {
		return err
	}
	scores := make([]float32, len(result.Vectors))
	for i, row := range result.Vectors {
		if len(row) != 1 {
			return &engine.Error{Kind: engine.KindInternal, Message: "the engine failed", Cause: fmt.Errorf("a score with %d values", len(row))}
		}
		scores[i] = row[0]
		if r.tei && !r.rawScores {
			scores[i] = float32(1 / (1 + math.Exp(-float64(row[0]))))
		}
	}
	return a.reply(c, r.encode(info.Name, scores, result))
}

// encode orders the documents by falling score.
func (r *rerankRequest) encode(model string, scores []float32, result engine.EmbedResult) []byte {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(scores[j], scores[i]) })
	if r.topN < len(order) {
		order = order[:r.topN]
	}
	var b []byte
	scoreName := "relevance_score"
	if r.tei {
		scoreName = "score"
		b = append(b, '[')
	} else {
		b = append(b, `{"id":"`+newID("rerank-")+`","object":"list","model":`...)
		b = api.AppendString(b, model)
		b = append(b, `,"results":[`...)
	}
	for n, i := range order {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"`+scoreName+`":`...)
		b = appendFloat32(b, scores[i])
		switch {
		case r.texts && r.tei:
			b = append(b, `,"text":`...)
			b = api.AppendString(b, r.documents[i])
		case r.texts:
			b = append(b, `,"document":{"text":`...)
			b = api.AppendString(b, r.documents[i])
			b = append(b, '}')
		}
		b = append(b, '}')
	}
	b = append(b, ']')
	if r.tei {
		return b
	}
	b = append(b, `,"meta":{"billed_units":{"search_units":1}}`...)
	b = appendInputUsage(b, result)
	return append(b, '}')
}
