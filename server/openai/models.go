package openai

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"hearth/engine"
	"hearth/server/api"
)

func (a *API) listModels(c *gin.Context) error {
	entries, err := a.cfg.Models.List(c.Request.Context())
	if err != nil {
		return err
	}
	loaded := a.cfg.Models.Loaded()
	b := []byte(`{"object":"list","data":[`)
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendModel(b, e, loaded)
	}
	return a.reply(c, append(b, "]}"...))
}

// getModel answers for one model. Ids hold slashes and colons, so the route takes the rest of the path.
func (a *API) getModel(c *gin.Context) error {
	id := strings.TrimPrefix(c.Param("id"), "/")
	if id == "" {
		return a.listModels(c)
	}
	entries, err := a.cfg.Models.List(c.Request.Context())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name == id || slices.Contains(e.Aliases, id) {
			return a.reply(c, appendModel(nil, e, a.cfg.Models.Loaded()))
		}
	}
	return &engine.Error{Kind: engine.KindNotFound, Field: "model", Message: "there is no model " + strconv.Quote(id)}
}

// appendModel appends OpenAI's model object with what other local servers add: context_length, capabilities, status.
func appendModel(b []byte, e api.ModelEntry, loaded []api.Status) []byte {
	b = append(b, `{"id":`...)
	b = api.AppendString(b, e.Name)
	b = append(b, `,"object":"model","created":`...)
	created := int64(0)
	if !e.Created.IsZero() {
		created = e.Created.Unix()
	}
	b = strconv.AppendInt(b, created, 10)
	b = append(b, `,"owned_by":"hearth"`...)
	context := e.ContextTrain
	status := "unloaded"
	for _, s := range loaded {
		if s.Name == e.Name {
			status = string(s.State)
			if s.State == api.StateReady && s.Info.Context > 0 {
				context = s.Info.Context
			}
		}
	}
	if context > 0 {
		b = append(b, `,"context_length":`...)
		b = strconv.AppendInt(b, int64(context), 10)
		b = append(b, `,"max_model_len":`...)
		b = strconv.AppendInt(b, int64(context), 10)
	}
	b = append(b, `,"aliases":`...)
	b = appendStrings(b, e.Aliases)
	b = append(b, `,"capabilities":`...)
	b = appendStrings(b, e.Capabilities)
	b = append(b, `,"status":{"value":`...)
	b = api.AppendString(b, status)
	b = append(b, `},"meta":{"size":`...)
	b = strconv.AppendUint(b, e.SizeBytes, 10)
	b = append(b, `,"n_params":`...)
	b = strconv.AppendUint(b, e.Params, 10)
	b = append(b, `,"n_ctx_train":`...)
	b = strconv.AppendInt(b, int64(e.ContextTrain), 10)
	b = appendMember(b, "architecture", e.Architecture)
	b = appendMember(b, "quantization", e.Quantization)
	return append(b, "}}"...)
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = api.AppendString(b, s)
	}
	return append(b, ']')
}
