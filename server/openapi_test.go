package server_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// openAPI compiles schemas of OpenAI's own specification. It is not part of the repository.
func openAPI(t *testing.T) func(name string) *jsonschema.Schema {
	t.Helper()
	dir := os.Getenv("HEARTH_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared")
	}
	file, err := os.Open(filepath.Join(dir, "vectors", "openai", "openapi.json"))
	if err != nil {
		t.Skipf("no specification: %v", err)
	}
	defer file.Close()
	doc, err := jsonschema.UnmarshalJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	allowNull(doc)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	return func(name string) *jsonschema.Schema {
		t.Helper()
		s, err := c.Compile("openapi.json#/components/schemas/" + name)
		if err != nil {
			t.Fatalf("schema %s: %v", name, err)
		}
		return s
	}
}

// allowNull turns "nullable": true, which JSON Schema does not know, into what it means.
func allowNull(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			allowNull(item)
		}
	case map[string]any:
		for _, item := range v {
			allowNull(item)
		}
		if v["nullable"] == true {
			inner := map[string]any{}
			for key, value := range v {
				if key != "nullable" {
					inner[key] = value
				}
				delete(v, key)
			}
			v["anyOf"] = []any{inner, map[string]any{"type": "null"}}
		}
	}
}

// TestOpenAPI validates replies with the schemas of OpenAI's specification.
func TestOpenAPI(t *testing.T) {
	schema := openAPI(t)
	check := func(name, body string) {
		t.Helper()
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema(name).Validate(v); err != nil {
			t.Errorf("%s: %v\n%s", name, err, body)
		}
	}
	f := newFixture(t)
	check("CreateChatCompletionResponse", f.post(chatPath, chatWith(`"n":2`)).Body.String())
	check("CreateChatCompletionResponse", f.post(chatPath, chatWith(`"logprobs":true,"top_logprobs":2`)).Body.String())
	check("CreateCompletionResponse", f.post(textPath, textWith(`"logprobs":2`)).Body.String())
	check("ListModelsResponse", f.do("GET", "/v1/models", "").Body.String())
	check("Model", f.do("GET", "/v1/models/m", "").Body.String())
	check("ErrorResponse", f.post(chatPath, `{}`).Body.String())
	for _, options := range []string{`"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, `"stream":true,"logprobs":true,"top_logprobs":1`} {
		all := events(t, f.post(chatPath, chatWith(options)).Body.String())
		for _, data := range all[:len(all)-1] {
			check("CreateChatCompletionStreamResponse", data)
		}
		all = events(t, f.post(textPath, textWith(`"stream":true`)).Body.String())
		for _, data := range all[:len(all)-1] {
			// The specification has no schema for chunks of completions; theirs differ by a finish_reason that is null.
			check("CreateCompletionResponse", strings.Replace(data, `"finish_reason":null`, `"finish_reason":"stop"`, 1))
		}
	}
	e := embedding(newFixture(t))
	check("CreateEmbeddingResponse", e.post(embedPath, `{"model":"m","input":"x"}`).Body.String())

	// The check must be able to fail.
	broken := map[string]any{}
	if err := json.Unmarshal(f.post(chatPath, chatWith(`"n":1`)).Body.Bytes(), &broken); err != nil {
		t.Fatal(err)
	}
	delete(broken, "choices")
	if schema("CreateChatCompletionResponse").Validate(broken) == nil {
		t.Error("a reply without choices is valid")
	}
}
