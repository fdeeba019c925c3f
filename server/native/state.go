package native

import (
	"cmp"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"hearth/engine"
	"hearth/server/api"
)

// psModel is one row of /api/ps: Ollama's fields, then ours.
type psModel struct {
	Name          string    `json:"name"`
	Model         string    `json:"model"`
	Size          uint64    `json:"size"`
	Digest        string    `json:"digest"`
	Details       psDetails `json:"details"`
	ExpiresAt     time.Time `json:"expires_at"`
	SizeVRAM      uint64    `json:"size_vram"`
	ContextLength int       `json:"context_length"`

	State          string    `json:"state"`
	Progress       float64   `json:"progress"`
	Error          string    `json:"error,omitempty"`
	Backend        string    `json:"backend"`
	Device         string    `json:"device"`
	DeviceName     string    `json:"device_description"`
	PCI            string    `json:"pci"`
	FallbackReason string    `json:"fallback_reason,omitempty"`
	PID            int       `json:"pid"`
	Restarts       int       `json:"restarts"`
	LoadedAt       time.Time `json:"loaded_at,omitzero"`
	CellsUsed      int       `json:"cells_used"`
	CellsCached    int       `json:"cells_cached"`
	CellsTotal     int       `json:"cells_total"`
	WindowCells    int       `json:"window_cells"`
	HostTokens     int       `json:"host_tokens"`
	HostBytes      int64     `json:"host_bytes"`
	HostLimit      int64     `json:"host_limit"`
	Running        int       `json:"running"`
	Waiting        int       `json:"waiting"`
	MaxSequences   int       `json:"max_sequences"`
	KVLayout       string    `json:"kv_layout"`
	LlamaVersion   string    `json:"llama_version"`
}

type psDetails struct {
	ParentModel       string   `json:"parent_model"`
	Format            string   `json:"format"`
	Family            string   `json:"family"`
	Families          []string `json:"families"`
	ParameterSize     string   `json:"parameter_size"`
	QuantizationLevel string   `json:"quantization_level"`
}

// farFuture is what Ollama's clients take for "never": its own server sends a date some centuries ahead.
func farFuture() time.Time { return time.Date(2318, 1, 1, 0, 0, 0, 0, time.UTC) }

func (a *API) ps(c *gin.Context) error {
	entries, err := a.cfg.Models.List(c.Request.Context())
	if err != nil {
		return err
	}
	rows := []psModel{}
	for _, s := range a.cfg.Models.Loaded() {
		row := psRow(s)
		for _, e := range entries {
			if e.Name == s.Name {
				row.Details.QuantizationLevel = e.Quantization
				if row.Details.ParameterSize == "" {
					row.Details.ParameterSize = parameterSize(e.Params)
				}
			}
		}
		rows = append(rows, row)
	}
	c.PureJSON(http.StatusOK, gin.H{"models": rows})
	return nil
}

func psRow(s api.Status) psModel {
	expires := s.ExpiresAt
	if expires.IsZero() {
		expires = farFuture()
	}
	families := []string{}
	if s.Info.Architecture != "" {
		families = append(families, s.Info.Architecture)
	}
	return psModel{
		Name: s.Name, Model: s.Name, Size: s.Info.SizeBytes, Digest: s.Digest, ExpiresAt: expires,
		SizeVRAM: s.VRAMBytes, ContextLength: s.Info.Context,
		Details: psDetails{Format: "gguf", Family: s.Info.Architecture, Families: families, ParameterSize: parameterSize(s.Info.Params)},
		State:   string(s.State), Progress: s.Progress, Error: s.Err,
		Backend: s.Info.Backend, Device: s.Info.Device.Name, DeviceName: s.Info.Device.Description, PCI: s.Info.Device.PCI,
		FallbackReason: s.FallbackReason, PID: s.PID, Restarts: s.Restarts, LoadedAt: s.LoadedAt,
		CellsUsed: s.Stats.CellsUsed, CellsCached: s.Stats.CellsCached, CellsTotal: s.Stats.CellsTotal, WindowCells: s.Info.WindowCells,
		HostTokens: s.Stats.HostTokens, HostBytes: s.Stats.HostBytes, HostLimit: s.Stats.HostLimit,
		Running: s.Stats.Running, Waiting: s.Stats.Waiting, MaxSequences: s.Info.MaxSequences,
		KVLayout: cmp.Or(s.Stats.KVLayout, s.Info.KVLayout), LlamaVersion: s.Info.LlamaVersion,
	}
}

// stop unloads {"model": name} and answers when its memory is free.
func (a *API) stop(c *gin.Context) error {
	o, err := api.DecodeBody(c.Request)
	if err != nil {
		return err
	}
	name := o.Str("model", "")
	if o.Err() == nil && name == "" {
		name = o.Str("name", "")
	}
	if err := o.Err(); err != nil {
		return err
	}
	if name == "" {
		return api.BadField("model", "must name a loaded model")
	}
	if err := a.cfg.Models.Stop(c.Request.Context(), name); err != nil {
		return err
	}
	c.PureJSON(http.StatusOK, gin.H{"model": name, "state": "stopped"})
	return nil
}

// loaded returns the ready model that ?model= names, or the only one there is. It loads nothing.
func (a *API) loaded(c *gin.Context) (api.Status, error) {
	name := c.Query("model")
	var ready []api.Status
	for _, s := range a.cfg.Models.Loaded() {
		if s.State == api.StateReady && (name == "" || s.Name == name) {
			ready = append(ready, s)
		}
	}
	switch {
	case len(ready) == 1:
		return ready[0], nil
	case len(ready) > 1:
		return api.Status{}, api.BadField("model", "must name one of the loaded models")
	}
	return api.Status{}, &engine.Error{Kind: engine.KindUnavailable, Message: "no model is ready"}
}

// props describes a loaded model in llama-server's form.
func (a *API) props(c *gin.Context) error {
	s, err := a.loaded(c)
	if err != nil {
		return err
	}
	c.PureJSON(http.StatusOK, gin.H{
		"default_generation_settings": gin.H{"n_ctx": s.Info.Context},
		"total_slots":                 s.Info.MaxSequences,
		"model_alias":                 s.Name,
		"model_path":                  filepath.Base(s.Info.Path), // the directory is nobody's business
		"chat_template":               s.Info.ChatTemplate,
		"bos_token":                   s.Info.BOS,
		"eos_token":                   s.Info.EOS,
		"build_info":                  "hearth " + a.cfg.Version + ", llama.cpp " + s.Info.LlamaVersion,
		"modalities":                  gin.H{"vision": false, "audio": false},
		"n_ctx_train":                 s.Info.ContextTrain,
		"n_vocab":                     s.Info.VocabSize,
		"backend":                     s.Info.Backend,
		"features":                    features(s.Info.Features),
	})
	return nil
}

func features(list []engine.Feature) []gin.H {
	out := []gin.H{}
	for _, f := range list {
		out = append(out, gin.H{"name": f.Name, "on": f.On, "reason": f.Reason})
	}
	return out
}

// slots shows a loaded model's sequences in llama-server's form. Sequences are interchangeable here: the first Running
// ones are shown as busy.
func (a *API) slots(c *gin.Context) error {
	s, err := a.loaded(c)
	if err != nil {
		return err
	}
	out := []gin.H{}
	for i := range s.Info.MaxSequences {
		out = append(out, gin.H{"id": i, "n_ctx": s.Info.Context, "is_processing": i < s.Stats.Running})
	}
	if c.Query("fail_on_no_slot") != "" && s.Stats.Running >= s.Info.MaxSequences {
		return &engine.Error{Kind: engine.KindUnavailable, Message: "all sequences are busy"}
	}
	c.PureJSON(http.StatusOK, out)
	return nil
}

// parameterSize spells a parameter count as Ollama does: "134.52M".
func parameterSize(n uint64) string {
	switch {
	case n == 0:
		return ""
	case n >= 1e9:
		return format2(float64(n)/1e9) + "B"
	case n >= 1e6:
		return format2(float64(n)/1e6) + "M"
	}
	return format2(float64(n)/1e3) + "K"
}

func format2(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
