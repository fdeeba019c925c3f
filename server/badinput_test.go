package server_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"hearth/engine"
	"hearth/engine/enginetest"
	"hearth/server"
	"hearth/server/api"
)

// errorBody is OpenAI's error shape; code is a string or null.
type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

func decodeError(t testing.TB, body string) errorBody {
	t.Helper()
	var raw map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &raw); err != nil {
		t.Fatalf("not an error body: %v: %q", err, body)
	}
	for _, key := range []string{"message", "type", "param", "code"} {
		if _, ok := raw["error"][key]; !ok {
			t.Errorf("the error has no %q: %s", key, body)
		}
	}
	var e errorBody
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return e
}

func deref(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

const (
	chatPath  = "/v1/chat/completions"
	textPath  = "/v1/completions"
	embedPath = "/v1/embeddings"
)

// chatWith is a valid chat request with more members.
func chatWith(members string) string {
	return `{"model":"m","messages":[{"role":"user","content":"hi"}],` + members + `}`
}

func textWith(members string) string { return `{"model":"m","prompt":"hi",` + members + `}` }

// TestBadInput: every mistake is a 4xx in OpenAI's shape that names the field, and the server goes on.
func TestBadInput(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat("x", 5000)
	tests := []struct {
		name, path, body string
		status           int
		param, message   string // message is part of the error's
	}{
		{"empty body", chatPath, ``, 400, "", "empty"},
		{"blank body", chatPath, " \n", 400, "", "empty"},
		{"not JSON", chatPath, `hello`, 400, "", "at byte 0"},
		{"cut off", chatPath, `{"model":"m","messages":[{"role"`, 400, "", "ends too early"},
		{"trailing comma", chatPath, "{\n\"model\":\"m\",}", 400, "", "line 2"},
		{"two values", chatPath, `{"model":"m"} {}`, 400, "", "behind the object"},
		{"array", chatPath, `[1]`, 400, "", "must be an object, got an array"},
		{"string", chatPath, `"x"`, 400, "", "must be an object, got a string"},
		{"deep nesting", chatPath, `{"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, 400, "", "not valid JSON"},
		{"no messages", chatPath, `{"model":"m"}`, 400, "messages", "must be an array"},
		{"null messages", chatPath, `{"model":"m","messages":null}`, 400, "messages", "must be an array"},
		{"messages a string", chatPath, `{"model":"m","messages":"hi"}`, 400, "messages", "got a string"},
		{"no message", chatPath, `{"model":"m","messages":[]}`, 400, "messages", "must not be empty"},
		{"message a string", chatPath, `{"model":"m","messages":["hi"]}`, 400, "messages[0]", "must be an object"},
		{"message null", chatPath, `{"model":"m","messages":[null]}`, 400, "messages[0]", "must be an object"},
		{"no role", chatPath, `{"model":"m","messages":[{"content":"hi"}]}`, 400, "messages[0].role", "must be a string"},
		{"unknown role", chatPath, `{"model":"m","messages":[{"role":"boss","content":"hi"}]}`, 400, "messages[0].role", "one of system"},
		{"role a number", chatPath, `{"model":"m","messages":[{"role":1,"content":"hi"}]}`, 400, "messages[0].role", "got a number"},
		{"no content", chatPath, `{"model":"m","messages":[{"role":"user"}]}`, 400, "messages[0].content", "must be a string or an array"},
		{"content a number", chatPath, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":7}]}`, 400, "messages[1].content", "messages[1].content must be a string or an array of parts, got a number"},
		{"content an object", chatPath, `{"model":"m","messages":[{"role":"user","content":{}}]}`, 400, "messages[0].content", "got an object"},
		{"part a string", chatPath, `{"model":"m","messages":[{"role":"user","content":["x"]}]}`, 400, "messages[0].content[0]", "must be an object"},
		{"part without text", chatPath, `{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}`, 400, "messages[0].content[0].text", "must be a string"},
		{"part text a number", chatPath, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":1}]}]}`, 400, "messages[0].content[0].text", "got a number"},
		{"image", chatPath, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, 400, "messages[0].content[0]", "only text"},
		{"unknown part", chatPath, `{"model":"m","messages":[{"role":"user","content":[{"type":"smell"}]}]}`, 400, "messages[0].content[0].type", `must be "text"`},
		{"tool call without function", chatPath, `{"model":"m","messages":[{"role":"assistant","tool_calls":[{}]}]}`, 400, "messages[0].tool_calls[0].function", "must be an object"},
		{"tool call without name", chatPath, `{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]}`, 400, "messages[0].tool_calls[0].function.name", "must be a string"},
		{"tool call arguments", chatPath, `{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}]}`, 400, "messages[0].tool_calls[0].function.arguments", "must be a string"},
		{"unknown model", chatPath, `{"model":"gpt-9","messages":[{"role":"user","content":"hi"}]}`, 404, "model", "gpt-9"},
		{"model a number", chatPath, `{"model":4,"messages":[{"role":"user","content":"hi"}]}`, 400, "model", "must be a string"},
		{"stream a string", chatPath, chatWith(`"stream":"yes"`), 400, "stream", "must be a boolean, got a string"},
		{"stream_options a list", chatPath, chatWith(`"stream":true,"stream_options":[]`), 400, "stream_options", "must be an object"},
		{"include_usage a number", chatPath, chatWith(`"stream":true,"stream_options":{"include_usage":1}`), 400, "stream_options.include_usage", "must be a boolean"},
		{"temperature a string", chatPath, chatWith(`"temperature":"hot"`), 400, "temperature", "must be a number"},
		{"temperature negative", chatPath, chatWith(`"temperature":-1`), 400, "temperature", "between 0 and 100"},
		{"temperature huge", chatPath, chatWith(`"temperature":1e400`), 400, "temperature", "too large"},
		{"top_p", chatPath, chatWith(`"top_p":1.5`), 400, "top_p", "between 0 and 1"},
		{"top_k", chatPath, chatWith(`"top_k":1.5`), 400, "top_k", "must be an integer"},
		{"min_p", chatPath, chatWith(`"min_p":2`), 400, "min_p", "between"},
		{"frequency_penalty", chatPath, chatWith(`"frequency_penalty":3`), 400, "frequency_penalty", "between -2 and 2"},
		{"presence_penalty", chatPath, chatWith(`"presence_penalty":[]`), 400, "presence_penalty", "got an array"},
		{"repeat_last_n", chatPath, chatWith(`"repeat_last_n":-2`), 400, "repeat_last_n", "between -1"},
		{"repeat_penalty", chatPath, chatWith(`"repeat_penalty":1e-38`), 400, "repeat_penalty", "between 0.01 and 100"},
		{"mirostat tau", chatPath, chatWith(`"mirostat":2,"mirostat_tau":0`), 400, "mirostat_tau", "more than 0"},
		{"dry base", chatPath, chatWith(`"dry_multiplier":1,"dry_base":0.5`), 400, "dry_base", "at least 1"},
		{"dry breakers", chatPath, chatWith(`"dry_multiplier":1,"dry_sequence_breakers":["a",""]`), 400, "dry_sequence_breakers", "1 to 256 bytes"},
		{"mirostat", chatPath, chatWith(`"mirostat":3`), 400, "mirostat", "between 0 and 2"},
		{"dry_sequence_breakers", chatPath, chatWith(`"dry_sequence_breakers":[1]`), 400, "dry_sequence_breakers[0]", "must be a string"},
		{"max_tokens zero", chatPath, chatWith(`"max_tokens":0`), 400, "max_tokens", "at least 1"},
		{"max_tokens negative", chatPath, chatWith(`"max_tokens":-2`), 400, "max_tokens", "between -1"},
		{"max_tokens a string", chatPath, chatWith(`"max_tokens":"10"`), 400, "max_tokens", "must be an integer"},
		{"max_completion_tokens", chatPath, chatWith(`"max_completion_tokens":1.5`), 400, "max_completion_tokens", "must be an integer"},
		{"n zero", chatPath, chatWith(`"n":0`), 400, "n", "between 1"},
		{"n large", chatPath, chatWith(`"n":1000`), 400, "n", "between 1"},
		{"seed", chatPath, chatWith(`"seed":"x"`), 400, "seed", "must be an integer"},
		{"seed huge", chatPath, chatWith(`"seed":1e30`), 400, "seed", "too large"},
		{"stop a number", chatPath, chatWith(`"stop":1`), 400, "stop", "a string or an array"},
		{"stop of numbers", chatPath, chatWith(`"stop":["a",2]`), 400, "stop[1]", "must be a string"},
		{"stop empty", chatPath, chatWith(`"stop":[""]`), 400, "stop", "empty string"},
		{"stop too many", chatPath, chatWith(`"stop":["` + strings.Repeat(`a","`, 20) + `b"]`), 400, "stop", "at most 16"},
		{"logprobs a number", chatPath, chatWith(`"logprobs":3`), 400, "logprobs", "must be a boolean"},
		{"top_logprobs alone", chatPath, chatWith(`"top_logprobs":3`), 400, "top_logprobs", "needs logprobs"},
		{"top_logprobs large", chatPath, chatWith(`"logprobs":true,"top_logprobs":21`), 400, "top_logprobs", "between 0 and 20"},
		{"logit_bias a string", chatPath, chatWith(`"logit_bias":"x"`), 400, "logit_bias", "must be an object"},
		{"logit_bias key", chatPath, chatWith(`"logit_bias":{"the":1}`), 400, "logit_bias", "token ids"},
		{"logit_bias value", chatPath, chatWith(`"logit_bias":{"5":"x"}`), 400, "logit_bias.5", "must be a number"},
		{"logit_bias range", chatPath, chatWith(`"logit_bias":{"5":101}`), 400, "logit_bias.5", "between -100 and 100"},
		{"logit_bias vocabulary", chatPath, chatWith(`"logit_bias":{"99999":1}`), 400, "logit_bias.99999", "the vocabulary has 258"},
		{"logit_bias pair", chatPath, chatWith(`"logit_bias":[[1]]`), 400, "logit_bias[0]", "a pair"},
		{"priority", chatPath, chatWith(`"priority":"now"`), 400, "priority", "high"},
		{"ignore_eos", chatPath, chatWith(`"ignore_eos":1`), 400, "ignore_eos", "must be a boolean"},
		{"grammar", chatPath, chatWith(`"grammar":{}`), 400, "grammar", "must be a string"},
		{"grammar and json", chatPath, chatWith(`"grammar":"root ::= \"x\"","response_format":{"type":"json_object"}`), 400, "grammar", "combined"},
		{"response_format a string", chatPath, chatWith(`"response_format":"json"`), 400, "response_format", "must be an object"},
		{"response_format unknown", chatPath, chatWith(`"response_format":{"type":"xml"}`), 400, "response_format.type", "json_object"},
		{"json_schema", chatPath, chatWith(`"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{}}}`), 400, "response_format", "not supported"},
		{"json_object with schema", chatPath, chatWith(`"response_format":{"type":"json_object","schema":{}}`), 400, "response_format.schema", "not supported"},
		{"tools", chatPath, chatWith(`"tools":[{"type":"function","function":{"name":"f"}}]`), 400, "tools", "tool calls"},
		{"tools a string", chatPath, chatWith(`"tools":"x"`), 400, "tools", "must be an array"},
		{"tool without name", chatPath, chatWith(`"tools":[{"type":"function","function":{}}],"tool_choice":"none"`), 400, "tools[0].function.name", "non-empty"},
		{"tool_choice", chatPath, chatWith(`"tool_choice":"maybe"`), 400, "tool_choice", "none"},
		{"tool_choice without tools", chatPath, chatWith(`"tool_choice":"required"`), 400, "tool_choice", "needs tools"},
		{"functions", chatPath, chatWith(`"functions":[{"name":"f"}]`), 400, "functions", "old form"},
		{"llama-server's schema", chatPath, chatWith(`"json_schema":{}`), 400, "json_schema", "not supported"},
		{"vLLM's schema", chatPath, chatWith(`"guided_json":{"type":"object"}`), 400, "guided_json", "not supported"},
		{"vLLM's constraints", textPath, textWith(`"structured_outputs":{"choice":["a"]}`), 400, "structured_outputs", "not supported"},
		{"audio", chatPath, chatWith(`"modalities":["text","audio"]`), 400, "modalities", "text"},
		{"kwargs", chatPath, chatWith(`"chat_template_kwargs":1`), 400, "chat_template_kwargs", "must be an object"},
		{"continue a user", chatPath, chatWith(`"continue_final_message":true`), 400, "continue_final_message", "assistant"},
		{"too long", chatPath, `{"model":"m","messages":[{"role":"user","content":"` + long + `"}]}`, 400, "messages", "maximum context length is 4096 tokens"},

		{"no prompt", textPath, `{"model":"m"}`, 400, "prompt", "must be a string"},
		{"prompt a number", textPath, `{"model":"m","prompt":1}`, 400, "prompt", "must be a string"},
		{"prompt empty list", textPath, `{"model":"m","prompt":[]}`, 400, "prompt", "must not be empty"},
		{"prompt mixed", textPath, `{"model":"m","prompt":["a",1]}`, 400, "prompt[1]", "same kind"},
		{"prompt floats", textPath, `{"model":"m","prompt":[1.5]}`, 400, "prompt[0]", "token id"},
		{"prompt objects", textPath, `{"model":"m","prompt":[{}]}`, 400, "prompt", "must be"},
		{"prompt token outside", textPath, `{"model":"m","prompt":[5,70000]}`, 400, "prompt[1]", "vocabulary has 258"},
		{"prompt negative token", textPath, `{"model":"m","prompt":[[-1]]}`, 400, "prompt[0][0]", "vocabulary"},
		{"prompt huge token", textPath, `{"model":"m","prompt":[99999999999]}`, 400, "prompt[0]", "token id"},
		{"prompt too long", textPath, `{"model":"m","prompt":"` + long + `"}`, 400, "prompt", "maximum context length"},
		{"too many prompts", textPath, `{"model":"m","prompt":["a"` + strings.Repeat(`,"a"`, 200) + `]}`, 400, "prompt", "at most 128"},
		{"suffix", textPath, textWith(`"suffix":"x"`), 400, "suffix", "fill-in-the-middle"},
		{"best_of", textPath, textWith(`"best_of":3`), 400, "best_of", "equal to n"},
		{"echo with logprobs", textPath, textWith(`"echo":true,"logprobs":1`), 400, "echo", "logprobs"},
		{"logprobs large", textPath, textWith(`"logprobs":50`), 400, "logprobs", "between"},
		{"completions format", textPath, textWith(`"response_format":{"type":"json_object"}`), 400, "response_format", "for chats"},

		{"embeddings on a chat model", embedPath, `{"model":"m","input":"x"}`, 400, "model", "not loaded for embeddings"},
		{"no input", embedPath, `{"model":"m"}`, 400, "input", "must be a string"},
		{"encoding_format", embedPath, `{"model":"m","input":"x","encoding_format":"hex"}`, 400, "encoding_format", "base64"},
		{"rerank on a chat model", "/v1/rerank", `{"model":"m","query":"x","documents":["a"]}`, 400, "model", "not loaded for reranking"},
		{"rerank without query", "/v1/rerank", `{"model":"m","documents":["a"]}`, 400, "query", "must be a string"},
		{"rerank without documents", "/v1/rerank", `{"model":"m","query":"x"}`, 400, "documents", "must be an array"},
		{"rerank document", "/rerank", `{"model":"m","query":"x","documents":[1]}`, 400, "documents[0]", "must be a string"},
		{"tokenize", "/tokenize", `{"model":"m"}`, 400, "content", "must be a string"},
		{"detokenize", "/detokenize", `{"model":"m","tokens":[5000]}`, 400, "tokens[0]", "vocabulary"},
		{"stop nothing", "/api/stop", `{}`, 400, "model", "must name"},
		{"stop unknown", "/api/stop", `{"model":"zzz"}`, 404, "model", "zzz"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := f.post(tt.path, tt.body)
			if w.Code != tt.status {
				t.Fatalf("status %d, want %d: %s", w.Code, tt.status, w.Body)
			}
			e := decodeError(t, w.Body.String())
			if deref(e.Error.Param) != tt.param || !strings.Contains(e.Error.Message, tt.message) {
				t.Errorf("got param %q, message %q, want %q and %q", deref(e.Error.Param), e.Error.Message, tt.param, tt.message)
			}
		})
	}
	if w := f.post(chatPath, chatWith(`"max_tokens":4`)); w.Code != 200 {
		t.Errorf("the server does not answer any more: %d %s", w.Code, w.Body)
	}
	t.Logf("%d kinds of bad input", len(tests))
}

// TestLenient: what real clients send beside the specification is accepted, and what it says is honoured.
func TestLenient(t *testing.T) {
	tests := []struct {
		name, body string
		check      func(r engine.Request) bool
	}{
		{"unknown fields", chatWith(`"verbosity":"low","foo":{"bar":[1]},"store":true,"metadata":{"a":"b"},"user":"u"`), nil},
		{"nulls", chatWith(`"stop":null,"max_tokens":null,"temperature":null,"tools":null,"stream":null,"stream_options":null,"logit_bias":null,"seed":null,"n":null,"response_format":null,"tool_choice":null,"functions":null`),
			func(r engine.Request) bool { return r.MaxTokens == -1 && r.Sampling.Seed == nil && len(r.Stop) == 0 }},
		{"a repeated field", chatWith(`"max_tokens":3,"max_tokens":5`), func(r engine.Request) bool { return r.MaxTokens == 5 }},
		{"completion tokens win", chatWith(`"max_tokens":3,"max_completion_tokens":7`), func(r engine.Request) bool { return r.MaxTokens == 7 }},
		{"clamped to the context", chatWith(`"max_tokens":32000`), func(r engine.Request) bool { return r.MaxTokens == 4096 }},
		{"integers as floats", chatWith(`"max_tokens":16.0,"seed":7.0`), func(r engine.Request) bool { return r.MaxTokens == 16 && *r.Sampling.Seed == 7 }},
		{"random seed", chatWith(`"seed":-1`), func(r engine.Request) bool { return r.Sampling.Seed == nil }},
		{"no mass at all is one token", chatWith(`"top_p":0,"typical_p":0`), func(r engine.Request) bool {
			s := r.Sampling
			return s.TopP > 0 && s.TopP < 1e-30 && s.TypicalP > 0 && s.TypicalP < 1e-30
		}},
		{"greedy", chatWith(`"temperature":0`), func(r engine.Request) bool { return r.Sampling.Temperature == 0 }},
		{"defaults", chatWith(`"n":1`), func(r engine.Request) bool {
			return r.Sampling.Temperature == 0.8 && r.Sampling.TopK == 40 && r.Sampling.TopP == 0.95 && r.Sampling.MinP == 0.05 && r.CachePrompt
		}},
		{"samplers", chatWith(`"typical_p":0.9,"xtc_probability":0.5,"xtc_threshold":0.2,"dry_multiplier":0.8,"dry_base":2,"dry_allowed_length":3,"dry_penalty_last_n":128,"dry_sequence_breakers":["x"],"mirostat":2,"mirostat_tau":4,"mirostat_eta":0.2,"dynatemp_range":0.5,"dynatemp_exponent":2,"top_n_sigma":1.5,"repeat_penalty":1.1,"repeat_last_n":32,"min_keep":2`),
			func(r engine.Request) bool {
				s := r.Sampling
				return s.TypicalP == 0.9 && s.XTCProbability == 0.5 && s.XTCThreshold == 0.2 && s.DRY.Multiplier == 0.8 && s.DRY.Base == 2 &&
					s.DRY.AllowedLength == 3 && s.DRY.PenaltyLastN == 128 && len(s.DRY.SequenceBreakers) == 1 && s.Mirostat == 2 &&
					s.MirostatTau == 4 && s.MirostatEta == 0.2 && s.DynatempRange == 0.5 && s.DynatempExponent == 2 && s.TopNSigma == 1.5 &&
					s.RepeatPenalty == 1.1 && s.RepeatLastN == 32 && s.MinKeep == 2
			}},
		{"bias map and ban", chatWith(`"logit_bias":[[5,1.5],[6,false]]`), func(r engine.Request) bool {
			b := r.Sampling.LogitBias
			return len(b) == 2 && b[0] == engine.Bias{Token: 5, Value: 1.5} && b[1].Token == 6 && b[1].Value < -1e30
		}},
		{"grammar", chatWith(`"grammar":"root ::= \"yes\""`), func(r engine.Request) bool { return r.Sampling.Grammar == `root ::= "yes"` }},
		{"json_object", chatWith(`"response_format":{"type":"json_object"}`), func(r engine.Request) bool { return strings.HasPrefix(r.Sampling.Grammar, "root ::= object") }},
		{"priority name", chatWith(`"priority":"batch"`), func(r engine.Request) bool { return r.Priority == engine.PriorityBatch }},
		{"priority number", chatWith(`"priority":-5`), func(r engine.Request) bool { return r.Priority == engine.PriorityHigh }},
		{"no cache", chatWith(`"cache_prompt":false`), func(r engine.Request) bool { return !r.CachePrompt }},
		{"stop string", chatWith(`"stop":"END"`), func(r engine.Request) bool { return len(r.Stop) == 1 && r.Stop[0] == "END" }},
		{"no model", `{"messages":[{"role":"user","content":"hi"}]}`, nil},
		{"text parts", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`,
			func(r engine.Request) bool {
				return strings.Contains(r.Prompt.Segments[0].Text, "user\na\nb<|im_end|>")
			}},
		{"agent history", `{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":null,"type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"x","content":[{"type":"text","text":"42"}]},{"role":"assistant","content":""}]}`,
			func(r engine.Request) bool {
				return strings.HasSuffix(r.Prompt.Segments[0].Text, "tool\n42<|im_end|>\n<|im_start|>assistant\n")
			}},
		{"tools shown", chatWith(`"tools":[{"type":"function","function":{"name":"f"}},{"type":"web_search"}],"tool_choice":"none"`), nil},
		{"broken utf-8", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\xffb\\ud800c\"}]}",
			func(r engine.Request) bool { return strings.Contains(r.Prompt.Segments[0].Text, "a\ufffdb\ufffdc") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			w := f.post(chatPath, tt.body)
			if w.Code != 200 {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			if tt.check != nil && !tt.check(f.model.Last()) {
				t.Errorf("unexpected request %+v", f.model.Last())
			}
		})
	}
}

// TestContentEncoding: a coded body is refused as such, and not for what its bytes look like.
func TestContentEncoding(t *testing.T) {
	f := newFixture(t)
	w := f.do("POST", chatPath, "\x1f\x8b\x08", "Content-Encoding", "gzip")
	if e := decodeError(t, w.Body.String()); w.Code != 415 || !strings.Contains(e.Error.Message, "Content-Encoding") {
		t.Errorf("gzip: %d %s", w.Code, w.Body)
	}
	if w := f.do("POST", chatPath, chatWith(`"n":1`), "Content-Encoding", "identity"); w.Code != 200 {
		t.Errorf("identity: %d %s", w.Code, w.Body)
	}
}

func TestEngineErrors(t *testing.T) {
	tests := []struct {
		kind   engine.Kind
		status int
		code   string
		retry  bool
	}{
		{engine.KindInvalid, 400, "", false},
		{engine.KindContextLength, 400, "context_length_exceeded", false},
		{engine.KindNotFound, 404, "model_not_found", false},
		{engine.KindUnsupported, 400, "unsupported", false},
		{engine.KindOverloaded, 429, "rate_limit_exceeded", true},
		{engine.KindUnavailable, 503, "model_unavailable", true},
		{engine.KindInternal, 500, "internal_error", false},
	}
	for _, tt := range tests {
		for _, stream := range []string{"false", "true"} {
			t.Run(string(tt.kind)+" "+stream, func(t *testing.T) {
				f := newFixture(t)
				f.model.Script = func(engine.Request) enginetest.Play {
					return enginetest.Play{Err: &engine.Error{Kind: tt.kind, Message: "no luck", Field: "messages"}}
				}
				w := f.post(chatPath, chatWith(`"stream":`+stream))
				e := decodeError(t, w.Body.String())
				if w.Code != tt.status || deref(e.Error.Code) != tt.code || e.Error.Message != "no luck" {
					t.Errorf("got %d %s", w.Code, w.Body)
				}
				if got := w.Header().Get("Retry-After") != ""; got != tt.retry {
					t.Errorf("Retry-After is there: %v", got)
				}
			})
		}
	}
}

// TestUnknownErrorIsOpaque: what is not made for clients does not reach them.
func TestUnknownErrorIsOpaque(t *testing.T) {
	f := newFixture(t)
	f.model.Script = func(engine.Request) enginetest.Play {
		return enginetest.Play{Err: errors.New("secret path /var/lib")}
	}
	w := f.post(chatPath, chatWith(`"n":1`))
	if w.Code != 500 || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if !strings.Contains(f.log.String(), "secret path") {
		t.Errorf("the log does not say what happened: %s", f.log)
	}
}

func TestPanicIs500(t *testing.T) {
	f := newFixture(t)
	f.model.Script = func(engine.Request) enginetest.Play { panic("boom") }
	w := f.post(chatPath, chatWith(`"n":1`))
	if e := decodeError(t, w.Body.String()); w.Code != 500 || strings.Contains(e.Error.Message, "boom") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if !strings.Contains(f.log.String(), "boom") {
		t.Error("the log does not show the panic")
	}
}

func TestBodyLimit(t *testing.T) {
	f := newFixture(t)
	big := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", server.DefaultMaxBodyBytes) + `"}]}`
	w := f.post(chatPath, big)
	if e := decodeError(t, w.Body.String()); w.Code != 413 || deref(e.Error.Code) != "request_too_large" {
		t.Errorf("announced: %d %s", w.Code, w.Body)
	}
	// Without Content-Length the limit shows while reading.
	s := f.listen()
	resp, err := s.Client().Post(s.URL+chatPath, "application/json", struct{ *strings.Reader }{strings.NewReader(big)})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body := readAll(t, resp.Body); resp.StatusCode != 413 {
		t.Errorf("chunked: %d %s", resp.StatusCode, body)
	}
	just := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", server.DefaultMaxBodyBytes-200) + `"}]}`
	if w := f.post(chatPath, just); w.Code != 400 || !strings.Contains(w.Body.String(), "maximum context length") {
		t.Errorf("just below the limit: %d %.300s", w.Code, w.Body)
	}
}

func TestNoChatTemplate(t *testing.T) {
	f := newFixture(t)
	f.model.Details.ChatTemplate = ""
	if w := f.post(chatPath, chatWith(`"n":1`)); w.Code != 400 || !strings.Contains(w.Body.String(), "no chat template") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	f.model.Details.ChatTemplate = "{% broken"
	if w := f.post(chatPath, chatWith(`"n":1`)); w.Code != 400 || !strings.Contains(w.Body.String(), "does not compile") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	f.model.Details.ChatTemplate = `{{ raise_exception("not like this") }}`
	w := f.post(chatPath, chatWith(`"n":1`))
	if e := decodeError(t, w.Body.String()); w.Code != 400 || deref(e.Error.Param) != "messages" || !strings.Contains(e.Error.Message, "not like this") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	f.model.Details.ChatTemplate = `{% for i in range(100000000) %}x{% endfor %}`
	if w := f.post(chatPath, chatWith(`"n":1`)); w.Code != 400 || !strings.Contains(w.Body.String(), "budget") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestLoadingModel(t *testing.T) {
	f := newFixture(t, func(c *server.Config) { c.DefaultModel = "m" })
	f.models.SetLoaded(api.Status{Name: "m", State: api.StateLoading, Progress: 0.25})
	w := f.do("GET", "/ready", "")
	if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), `"progress":0.25`) || !strings.Contains(w.Body.String(), `"status":"loading"`) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	f.models.SetLoaded()
	if w := f.do("GET", "/ready", ""); w.Code != 503 || !strings.Contains(w.Body.String(), "unavailable") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if w := f.do("GET", "/health", ""); w.Code != 200 {
		t.Errorf("health: %d", w.Code)
	}
	// Without a model to start with, models are loaded on demand: there is nothing to wait for, and nothing that one
	// model's trouble says about the others.
	f = newFixture(t)
	for _, loaded := range [][]api.Status{nil, {{Name: "m", State: api.StateFailed, Err: "no"}}} {
		f.models.SetLoaded(loaded...)
		if w := f.do("GET", "/ready", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"status":"ready"`) {
			t.Errorf("on demand, with %v: %d %s", loaded, w.Code, w.Body)
		}
	}
}
