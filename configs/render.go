package configs

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Values lists all settings with their values and origins; secrets are hidden.
func (c *Config) Values() []Value {
	out := make([]Value, len(c.values))
	for i, v := range c.values {
		rv := reflect.ValueOf(c).Elem().FieldByIndex(v.Field.index)
		out[i] = v
		switch {
		case v.Field.Secret && rv.Kind() == reflect.Slice && rv.Len() > 0:
			out[i].Value = []string{"(hidden)"}
		case v.Field.Secret && rv.Kind() == reflect.String && rv.Len() > 0:
			out[i].Value = "(hidden)"
		case rv.Kind() == reflect.Slice:
			out[i].Value = append([]string{}, rv.Interface().([]string)...)
		default:
			out[i].Value = plain(rv)
		}
	}
	return out
}

// plain is a value as it would stand in the file.
func plain(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case Bytes:
		return x.String()
	case BytesOrAuto:
		return x.String()
	}
	return v.Interface()
}

// Example is a configuration file that holds every setting at its default, commented out.
func Example() string {
	var b strings.Builder
	b.WriteString("# hearth configuration. Every setting stands here with its default; remove the # to change one.\n" +
		"# A flag wins over an environment variable, which wins over this file.\n")
	section := ""
	for _, f := range Fields() {
		name := f.Key
		indent := ""
		if s, rest, nested := strings.Cut(f.Key, "."); nested {
			if s != section {
				fmt.Fprintf(&b, "\n#%s:\n", s)
				section = s
			}
			name, indent = rest, "  "
		} else {
			section = ""
			b.WriteByte('\n')
		}
		if indent == "" {
			fmt.Fprintf(&b, "# %s\n", f.help())
		} else {
			fmt.Fprintf(&b, "#%s# %s\n", indent, f.help())
		}
		fmt.Fprintf(&b, "#%s%s: %s\n", indent, name, f.yaml())
	}
	b.WriteString("\n# Settings of run for single models.\n#overrides:\n#  - model: smollm2\n#    context: 4096\n")
	return b.String()
}

// help is the documentation with what else the tags say.
func (f Field) help() string {
	s := f.Doc
	if f.Unit != "" {
		s += " [" + f.Unit + "]"
	}
	if len(f.Enum) > 0 {
		s += " (" + strings.Join(f.Enum, ", ") + ")"
	}
	if len(f.Env) > 0 {
		s += "; " + strings.Join(f.Env, " or ")
	}
	return s
}

// yaml spells the default; JSON strings and lists are YAML too.
func (f Field) yaml() string {
	switch {
	case f.Type.Kind() == reflect.Slice:
		b, _ := json.Marshal(append([]string{}, list(f.Default)...)) // strings always marshal
		return string(b)
	case f.Type.Kind() == reflect.String || f.Default == "":
		b, _ := json.Marshal(f.Default)
		return string(b)
	}
	return f.Default
}

// Schema is a JSON schema of the configuration file, for editors.
func Schema() ([]byte, error) {
	root := object()
	for _, f := range Fields() {
		at := root
		key := f.Key
		if s, rest, nested := strings.Cut(f.Key, "."); nested {
			props := root["properties"].(map[string]any)
			if props[s] == nil {
				props[s] = object()
			}
			at, key = props[s].(map[string]any), rest
		}
		at["properties"].(map[string]any)[key] = f.schema()
	}
	override := object()
	run := root["properties"].(map[string]any)["run"].(map[string]any)["properties"].(map[string]any)
	for k, v := range run {
		override["properties"].(map[string]any)[k] = v
	}
	override["properties"].(map[string]any)["model"] = map[string]any{"type": "string", "description": "name or alias of the model"}
	override["required"] = []string{"model"}
	root["properties"].(map[string]any)["overrides"] = map[string]any{
		"type": "array", "description": "settings of run for single models", "items": override,
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "hearth configuration"
	b, err := json.MarshalIndent(root, "", "  ")
	return append(b, '\n'), err
}

func object() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
}

func (f Field) schema() map[string]any {
	s := map[string]any{"description": f.help()}
	switch {
	case f.Type.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case f.Type == reflect.TypeFor[time.Duration]():
		s["type"], s["pattern"] = "string", `^-?([0-9.]+(ns|us|µs|ms|s|m|h))+$`
	case f.Type == reflect.TypeFor[Bytes](), f.Type == reflect.TypeFor[BytesOrAuto]():
		s["type"] = []string{"string", "integer"}
	case f.Type.Kind() == reflect.Int:
		s["type"] = "integer"
	case f.Type.Kind() == reflect.Slice:
		s["type"], s["items"] = "array", map[string]any{"type": "string"}
	default:
		s["type"] = "string"
	}
	if len(f.Enum) > 0 {
		s["enum"] = f.Enum
	}
	if f.Default != "" && f.Type.Kind() == reflect.String && !strings.HasPrefix(f.Default, "$") {
		s["default"] = f.Default
	}
	return s
}
