package server_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"hearth/engine"
	"hearth/engine/enginetest"
	"hearth/server"
	"hearth/server/api"
	"hearth/server/apitest"
)

// decode unmarshals a 200.
func decode[T any](t testing.TB, f *fixture, method, path, body string) T {
	t.Helper()
	w := f.do(method, path, body)
	var v T
	if w.Code != 200 {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, w.Body)
	}
	return v
}

func TestTokenizer(t *testing.T) {
	f := newFixture(t)
	type tokens struct{ Tokens []int }
	if got := decode[tokens](t, f, "POST", "/tokenize", `{"content":"AB","add_special":true}`).Tokens; len(got) != 3 || got[0] != int(enginetest.BOS) || got[1] != 'A' {
		t.Errorf("got %v", got)
	}
	w := f.post("/tokenize", `{"content":"é","with_pieces":true}`)
	if want := `{"tokens":[{"id":195,"piece":[195]},{"id":169,"piece":[169]}],"count":2}`; w.Body.String() != want {
		t.Errorf("got %s, want %s", w.Body, want)
	}
	if got := decode[struct{ Content string }](t, f, "POST", "/detokenize", `{"tokens":[72,105]}`).Content; got != "Hi" {
		t.Errorf("got %q", got)
	}
	got := decode[struct{ Prompt string }](t, f, "POST", "/apply-template", `{"messages":[{"role":"system","content":"S"},{"role":"user","content":"<b>"}]}`).Prompt
	if want := "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n<b><|im_end|>\n<|im_start|>assistant\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPS(t *testing.T) {
	f := newFixture(t)
	info := f.model.Details
	info.Backend, info.Device = "vulkan", engine.Device{Name: "Vulkan0", Description: "card", PCI: "0000:03:00.0"}
	f.models.SetLoaded(
		api.Status{Name: "m", State: api.StateReady, Progress: 1, Info: info, PID: 7, VRAMBytes: 500, FallbackReason: "hip: no kernels", Stats: engine.Stats{Running: 2, Waiting: 3, CellsUsed: 10, CellsTotal: 100}},
		api.Status{Name: "n", State: api.StateLoading, Progress: 0.5},
	)
	type row struct {
		Name, Model, State, Backend, Device, PCI string
		SizeVRAM                                 uint64 `json:"size_vram"`
		ContextLength                            int    `json:"context_length"`
		FallbackReason                           string `json:"fallback_reason"`
		PID, Running, Waiting                    int
		CellsUsed                                int `json:"cells_used"`
		CellsTotal                               int `json:"cells_total"`
		Progress                                 float64
		Details                                  struct{ Format, Family string }
	}
	got := decode[struct{ Models []row }](t, f, "GET", "/api/ps", "").Models
	if len(got) != 2 {
		t.Fatalf("%d rows", len(got))
	}
	r := got[0]
	if r.Name != "m" || r.State != "ready" || r.Backend != "vulkan" || r.Device != "Vulkan0" || r.PCI != "0000:03:00.0" || r.SizeVRAM != 500 ||
		r.ContextLength != 4096 || r.FallbackReason != "hip: no kernels" || r.PID != 7 || r.Running != 2 || r.Waiting != 3 || r.CellsUsed != 10 ||
		r.CellsTotal != 100 || r.Details.Format != "gguf" || r.Details.Family != "fake" {
		t.Errorf("got %+v", r)
	}
	if got[1].State != "loading" || got[1].Progress != 0.5 {
		t.Errorf("got %+v", got[1])
	}
	if w := f.do("GET", "/slots?fail_on_no_slot=1", ""); w.Code != 200 || strings.Count(w.Body.String(), `"is_processing":true`) != 2 {
		t.Errorf("slots: %d %s", w.Code, w.Body)
	}
}

// Every reply says where its model runs, and why not where it was asked for: on one line, whatever a driver printed.
func TestPlacementHeaders(t *testing.T) {
	f := newFixture(t)
	f.model.Details.Backend, f.model.Details.Device = "vulkan", engine.Device{Name: "Vulkan0", PCI: "0000:03:00.0"}
	f.models.SetLoaded(api.Status{Name: f.model.Details.Name, State: api.StateReady, FallbackReason: "hip: no code object\nfor gfx1201 \u2013 use Vulkan" + strings.Repeat("x", 1000)})
	for _, body := range []string{`{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}`, `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"stream":true}`} {
		h := f.do("POST", "/v1/chat/completions", body).Header()
		if h.Get("X-Hearth-Backend") != "vulkan" || h.Get("X-Hearth-Device") != "0000:03:00.0" {
			t.Errorf("%s: %v", body, h)
		}
		if got := h.Get("X-Hearth-Fallback"); !strings.HasPrefix(got, "hip: no code object for gfx1201 ? use Vulkan") || len(got) > 400 {
			t.Errorf("%s: fallback %q", body, got)
		}
	}
	f.models.SetLoaded()
	if h := f.do("POST", "/tokenize", `{"content":"hi"}`).Header(); h.Get("X-Hearth-Backend") != "vulkan" || h.Values("X-Hearth-Fallback") != nil {
		t.Errorf("without a fallback: %v", h)
	}
	if h := f.do("GET", "/health", "").Header(); h.Values("X-Hearth-Backend") != nil {
		t.Errorf("without a model: %v", h)
	}
}

func TestStop(t *testing.T) {
	f := newFixture(t)
	if w := f.post("/api/stop", `{"model":"m"}`); w.Code != 200 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if w := f.post(chatPath, chatWith(`"n":1`)); w.Code != 404 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if w := f.do("GET", "/props", ""); w.Code != 503 {
		t.Errorf("props without a model: %d", w.Code)
	}
}

func embedding(f *fixture) *fixture {
	f.model.Details.Embedding = true
	return f
}

func TestEmbeddings(t *testing.T) {
	f := embedding(newFixture(t))
	type reply[V any] struct {
		Object, Model string
		Data          []struct {
			Object    string
			Index     int
			Embedding V
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		}
	}
	floats := decode[reply[[]float64]](t, f, "POST", embedPath, `{"model":"m","input":["abc","d"]}`)
	if floats.Object != "list" || floats.Model != "m" || len(floats.Data) != 2 || floats.Data[1].Index != 1 || floats.Usage.Prompt != 6 || floats.Usage.Total != 6 {
		t.Errorf("got %+v", floats)
	}
	length := 0.0
	for _, v := range floats.Data[0].Embedding {
		length += v * v
	}
	if math.Abs(length-1) > 1e-5 {
		t.Errorf("the vector's length is %v", length)
	}
	coded := decode[reply[string]](t, f, "POST", embedPath, `{"model":"m","input":"abc","encoding_format":"base64"}`)
	raw, err := base64.StdEncoding.DecodeString(coded.Data[0].Embedding)
	if err != nil || len(raw) != 16 {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	for i, want := range floats.Data[0].Embedding {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])); math.Abs(float64(got)-want) > 1e-6 {
			t.Errorf("value %d: %v, want %v", i, got, want)
		}
	}
	if got := decode[reply[[]float64]](t, f, "POST", embedPath, `{"model":"m","input":[[1,2],[3]]}`); len(got.Data) != 2 || got.Usage.Prompt != 3 {
		t.Errorf("tokens: %+v", got)
	}
	if w := f.post(embedPath, `{"model":"m","input":"x","dimensions":4}`); w.Code != 200 {
		t.Errorf("the model's own dimensions: %d %s", w.Code, w.Body)
	}
	for body, param := range map[string]string{
		`{"model":"m","input":"x","dimensions":2}`:                               "dimensions",
		`{"model":"m","input":"` + strings.Repeat("x", 5000) + `"}`:              "input",
		`{"model":"m","input":["a"` + strings.Repeat(`,"a"`, 3000) + `]}`:        "input",
		`{"model":"m","input":[[300]]}`:                                          "input[0][0]",
		`{"model":"m","input":{"content":"x"}}`:                                  "input",
		`{"model":"m","input":"x","encoding_format":"float","dimensions":"all"}`: "dimensions",
	} {
		w := f.post(embedPath, body)
		if e := decodeError(t, w.Body.String()); w.Code != 400 || deref(e.Error.Param) != param {
			t.Errorf("%.60s: %d %s", body, w.Code, w.Body)
		}
	}
	if w := f.post(chatPath, chatWith(`"n":1`)); w.Code != 400 || !strings.Contains(w.Body.String(), "makes embeddings") {
		t.Errorf("chat: %d %s", w.Code, w.Body)
	}
}

func TestRerank(t *testing.T) {
	f := newFixture(t)
	f.model.Details.Rerank = true
	const documents = `["red cars","a big red dog","cats"]`
	type result struct {
		Index    int
		Score    float64 `json:"relevance_score"`
		Document *struct{ Text string }
	}
	got := decode[struct {
		Model   string
		Results []result
		Usage   struct {
			Total int `json:"total_tokens"`
		}
	}](t, f, "POST", "/v1/rerank", `{"model":"m","query":"big red dog","documents":`+documents+`,"top_n":2,"return_documents":true}`)
	if len(got.Results) != 2 || got.Results[0].Index != 1 || got.Results[0].Score != 3 || got.Results[1].Index != 0 || got.Results[0].Document.Text != "a big red dog" || got.Usage.Total == 0 {
		t.Errorf("got %+v", got)
	}
	w := f.post("/reranking", `{"query":"cats","texts":`+documents+`,"return_text":true}`)
	if want := `[{"index":2,"score":1,"text":"cats"},{"index":0,"score":0,"text":"red cars"},{"index":1,"score":0,"text":"a big red dog"}]`; w.Body.String() != want {
		t.Errorf("got %s, want %s", w.Body, want)
	}
	if w := f.post("/v1/reranking", `{"query":"cats","documents":[{"text":"cats"}]}`); w.Code != 200 || strings.Contains(w.Body.String(), `"document"`) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// Somebody else's metrics stand beside the server's own; a name that is taken is an error at start.
func TestMoreMetrics(t *testing.T) {
	more := prometheus.NewGauge(prometheus.GaugeOpts{Name: "hearth_device_test", Help: "A GPU's."})
	s, err := server.New(server.Config{}, server.Deps{Models: apitest.New(), Collectors: []prometheus.Collector{more}})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Host, r.RemoteAddr = "localhost", "127.0.0.1:1"
	s.Handler().ServeHTTP(w, r)
	if !strings.Contains(w.Body.String(), "hearth_device_test 0") {
		t.Errorf("not served: %s", w.Body)
	}
	if _, err := server.New(server.Config{}, server.Deps{Models: apitest.New(), Collectors: []prometheus.Collector{more, more}}); err == nil {
		t.Error("the same metric twice is accepted")
	}
}

// The layout that /api/ps shows is the one that there is now, not the one of the load.
func TestStateSaysTheLayout(t *testing.T) {
	f := newFixture(t)
	f.model.State = engine.Stats{KVLayout: "streams", Steps: 9}
	f.post(chatPath, chatWith(""))
	if body := f.do(http.MethodGet, "/api/ps", "").Body.String(); !strings.Contains(body, `"kv_layout":"streams"`) {
		t.Errorf("%s", body)
	}
}

func TestMetrics(t *testing.T) {
	f := newFixture(t)
	f.model.State = engine.Stats{HostBytes: 70, HostLimit: 700, HostTokens: 7, HostPrefixes: 2, HostSaves: 3, HostLoads: 1, CellsUsed: 5, CellsCached: 2, CellsTotal: 64, Waiting: 1, Steps: 9}
	f.post(chatPath, chatWith(`"stream":true`))
	f.post(chatPath, chatWith(`"n":2`))
	f.post(chatPath, `{`)
	f.do(http.MethodGet, "/v1/models/unknown/one", "")
	body := f.do(http.MethodGet, "/metrics", "").Body.String()
	for _, want := range []string{
		`hearth_requests_total{code="200",route="/v1/chat/completions"} 2`,
		`hearth_requests_total{code="400",route="/v1/chat/completions"} 1`,
		`hearth_requests_total{code="404",route="/v1/models/*id"} 1`,
		`hearth_errors_total{kind="invalid"} 1`,
		`hearth_time_to_first_token_seconds_count{model="m"} 2`,
		`hearth_inter_token_latency_seconds_count{model="m"}`,
		`hearth_queue_time_seconds_count{model="m"} 2`,
		`hearth_request_duration_seconds_count{model="m"} 2`,
		`hearth_tokens_total{kind="completion",model="m"} 81`, // 3 choices of 26 bytes and an end token
		`hearth_tokens_total{kind="cached",model="m"}`,
		`hearth_tokens_total{kind="prompt",model="m"}`,
		`hearth_requests_running{model="m"} 0`,
		`hearth_requests_waiting{model="m"} 1`,
		`hearth_kv_cells{model="m",state="used"} 5`,
		`hearth_kv_cells{model="m",state="cached"} 2`,
		`hearth_kv_cells{model="m",state="total"} 64`,
		`hearth_kv_host_bytes{model="m",state="used"} 70`,
		`hearth_kv_host_bytes{model="m",state="limit"} 700`,
		`hearth_kv_host_tokens{model="m"} 7`,
		`hearth_kv_host_prefixes{model="m"} 2`,
		`hearth_kv_host_moves_total{direction="save",model="m"} 3`,
		`hearth_kv_host_moves_total{direction="load",model="m"} 1`,
		`hearth_model_loaded{backend="cpu",device="CPU",model="m"} 1`,
		`hearth_build_info{version="test"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("missing: %s", want)
		}
	}
	problems, err := testutil.GatherAndLint(f.server.Metrics().Gatherer())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
}
