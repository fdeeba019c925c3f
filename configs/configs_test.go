package configs

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func env(t *testing.T, more ...string) Environ {
	t.Helper()
	home := filepath.Join("/tmp", "h") // short: socket paths have a limit
	return append(Environ{"HOME=" + home, "XDG_CONFIG_HOME=" + t.TempDir()}, more...)
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func load(t *testing.T, o Options) *Config {
	t.Helper()
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefaults(t *testing.T) {
	c := load(t, Options{Env: env(t), UID: 7})
	want := Dirs{"/tmp/h/.local/share/hearth/models", "/tmp/h/.cache/hearth", "/tmp/h/.local/state/hearth", "/tmp/hearth-7"}
	if c.Dirs != want {
		t.Errorf("dirs %+v", c.Dirs)
	}
	if !reflect.DeepEqual(c.Listen, []string{"127.0.0.1:9595", "[::1]:9595"}) || c.Server.MaxBody != 10<<20 ||
		c.Pool.KeepAlive != 5*time.Minute || c.Run.GPULayers != -1 || !c.Run.MMap || c.Run.Backend != "auto" {
		t.Errorf("%+v", c)
	}
	c = load(t, Options{Env: env(t, "XDG_DATA_HOME=/d", "XDG_RUNTIME_DIR=/run/user/7", "XDG_CACHE_HOME=relative")})
	if c.Dirs.Models != "/d/hearth/models" || c.Dirs.Runtime != "/run/user/7/hearth" || c.Dirs.Cache != "/tmp/h/.cache/hearth" {
		t.Errorf("dirs %+v", c.Dirs)
	}
}

func TestPrecedence(t *testing.T) {
	yaml := file(t, "c.yaml", "listen: [\"1.1.1.1:1\"]\nrun:\n  context: 100\n  threads: 3\n  chunk: 64\npool: {keep_alive: 1m}\ndirs: {models: ~/m}\n")
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	AddFlags(fs, "")
	if err := fs.Parse([]string{"--context", "300", "--listen", "3.3.3.3:3"}); err != nil {
		t.Fatal(err)
	}
	c := load(t, Options{Env: env(t, "HEARTH_CONTEXT=200", "HEARTH_THREADS=2", "HEARTH_HOST=2.2.2.2:2", "HEARTH_CHUNK="), Flags: fs, File: yaml})
	if c.Run.Context != 300 || c.Run.Threads != 2 || c.Run.Chunk != 64 || c.Listen[0] != "3.3.3.3:3" || c.Pool.KeepAlive != time.Minute || c.Dirs.Models != "/tmp/h/m" {
		t.Errorf("%+v", c)
	}
	from := map[string]string{}
	for _, v := range c.Values() {
		from[v.Key] = v.From
	}
	for key, want := range map[string]string{
		"run.context": "flag --context", "run.threads": "env HEARTH_THREADS", "run.chunk": yaml, "run.cells": "default", "listen": "flag --listen",
	} {
		if from[key] != want {
			t.Errorf("%s is from %q, want %q", key, from[key], want)
		}
	}
}

func TestFilesOfEveryKind(t *testing.T) {
	toml := file(t, "c.toml", "listen = [\"9.9.9.9:9\"]\n[run]\ncontext = 5\nitl_target = \"20ms\"\n[server]\nmax_body = \"1MB\"\n[[overrides]]\nmodel = \"Smol\"\nmmap = false\n")
	c := load(t, Options{Env: env(t), File: toml})
	if c.Listen[0] != "9.9.9.9:9" || c.Run.Context != 5 || c.Run.ITLTarget != 20*time.Millisecond || c.Server.MaxBody != 1e6 {
		t.Errorf("%+v", c)
	}
	if r, err := c.RunFor("smol"); err != nil || r.MMap || r.Context != 5 {
		t.Errorf("override: %+v, %v", r, err)
	}
	if r, _ := c.RunFor("other"); !r.MMap {
		t.Error("the override is for another model")
	}
	e := env(t)
	if err := os.MkdirAll(filepath.Join(e.Get("XDG_CONFIG_HOME"), "hearth"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(e.Get("XDG_CONFIG_HOME"), "hearth", "config.yaml")
	if err := os.WriteFile(p, []byte("run: {context: 77}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := load(t, Options{Env: e}); c.Run.Context != 77 {
		t.Error("the user's file was not found")
	}
}

func TestErrorsNameTheSetting(t *testing.T) {
	cases := []struct{ name, yaml, env, key string }{
		{"unknown key", "run: {contxt: 1}", "", "run.contxt"},
		{"unknown section", "runn: {context: 1}", "", "runn.context"},
		{"text for a number", "run: {context: many}", "", "run.context"},
		{"env text for a number", "", "HEARTH_CONTEXT=many", "run.context"},
		{"negative", "run: {context: -1}", "", "run.context"},
		{"too many", "run: {max_sequences: 256}", "", "run.max_sequences"},
		{"not in the list", "run: {backend: cuda}", "", "run.backend"},
		{"env not in the list", "", "HEARTH_KV_TYPE_K=q3", "run.kv_type_k"},
		{"no port", "listen: [\"127.0.0.1\"]", "", "listen"},
		{"bad port", "", "HEARTH_LISTEN=127.0.0.1:99999", "listen"},
		{"no unit", "pool: {keep_alive: 5}", "", "pool.keep_alive"},
		{"bad duration", "pool: {keep_alive: soon}", "", "pool.keep_alive"},
		{"bad size", "server: {max_body: big}", "", "server.max_body"},
		{"tiny size", "server: {max_body: 1}", "", "server.max_body"},
		{"bad origin", "server: {origins: [\"chat\"]}", "", "server.origins"},
		{"bad server", "client: {server: here}", "", "client.server"},
		{"bad bool", "run: {mmap: perhaps}", "", "run.mmap"},
		{"override without model", "overrides: [{context: 1}]", "", "overrides[0].model"},
		{"override of nothing", "overrides: [{model: a, contxt: 1}]", "", "overrides[0]"},
		{"overrides no list", "overrides: 3", "", "overrides"},
		{"long runtime", "dirs: {runtime: /" + strings.Repeat("d", 90) + "}", "", "dirs.runtime"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := Options{Env: env(t, c.env)}
			if c.yaml != "" {
				o.File = file(t, "c.yaml", c.yaml+"\n")
			}
			_, err := Load(o)
			fe, ok := errors.AsType[*FieldError](err)
			if !ok || fe.Key != c.key || fe.Reason == "" {
				t.Fatalf("got %v, want an error about %s", err, c.key)
			}
			if name, _, ok := strings.Cut(c.env, "="); ok && fe.From != "env "+name {
				t.Errorf("%q does not say that %s is to blame", err, name)
			}
		})
	}
	if _, err := Load(Options{Env: env(t), File: "/nowhere/c.yaml"}); err == nil {
		t.Error("a named file must exist")
	}
	if _, err := Load(Options{Env: env(t), File: file(t, "c.yaml", "run: [")}); err == nil {
		t.Error("broken YAML passes")
	}
	if _, err := Load(Options{}); err == nil || !strings.Contains(err.Error(), "dirs.models") {
		t.Errorf("no HOME: %v", err)
	}
}

func TestServerURL(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:9595": "http://127.0.0.1:9595", "0.0.0.0:1": "http://127.0.0.1:1", ":2": "http://127.0.0.1:2", "[::]:3": "http://[::1]:3",
		"box.lan:4": "http://box.lan:4",
	} {
		if got := load(t, Options{Env: env(t, "HEARTH_LISTEN="+listen)}).ServerURL(); got != want {
			t.Errorf("%s: %s, want %s", listen, got, want)
		}
	}
	if got := load(t, Options{Env: env(t, "HEARTH_SERVER=https://h.example:1/")}).ServerURL(); got != "https://h.example:1" {
		t.Errorf("client.server: %s", got)
	}
}

func TestSecretsAreHidden(t *testing.T) {
	c := load(t, Options{Env: env(t, "HF_TOKEN=hf_secret", "HEARTH_API_KEY=k1,k2")})
	if c.Hub.Token != "hf_secret" || len(c.Server.APIKeys) != 2 {
		t.Errorf("%+v", c)
	}
	for _, v := range c.Values() {
		if s, _ := v.Value.(string); strings.Contains(s, "secret") || v.Key == "server.api_keys" && len(v.Value.([]string)) != 1 {
			t.Errorf("%s shows %v", v.Key, v.Value)
		}
	}
}

// Every setting is documented, and no two share a name.
func TestFieldsAreComplete(t *testing.T) {
	seen := map[string]string{}
	for _, f := range Fields() {
		if f.Doc == "" || len(f.Env) == 0 {
			t.Errorf("%s has no documentation or variable", f.Key)
			continue
		}
		if !strings.HasPrefix(f.Env[0], "HEARTH_") {
			t.Errorf("%s has no variable of hearth's own, only %s", f.Key, f.Env)
		}
		for _, n := range append(append([]string{f.Key}, f.Env...), "--"+f.Flag) {
			if n == "--" {
				continue
			}
			if seen[n] != "" {
				t.Errorf("%s is used by %s and %s", n, seen[n], f.Key)
			}
			seen[n] = f.Key
		}
	}
}

func TestBytes(t *testing.T) {
	for in, want := range map[string]BytesOrAuto{"auto": -1, "Auto": -1, "2GiB": 2 << 30, "0": 0} {
		var b, again BytesOrAuto
		if err := b.UnmarshalText([]byte(in)); err != nil || b != want {
			t.Errorf("%q is %d, want %d, %v", in, b, want, err)
		}
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Errorf("%q is written as %q", in, b)
		}
	}
	for in, want := range map[string]Bytes{"10MiB": 10 << 20, "4 GB": 4e9, "1.5k": 1536, "7": 7, "0": 0} {
		var b Bytes
		if err := b.UnmarshalText([]byte(in)); err != nil || b != want {
			t.Errorf("%s: %d, %v", in, b, err)
		}
		var again Bytes
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Errorf("%s prints as %s", in, b)
		}
	}
	for _, in := range []string{"", "x", "-1", "1TB?", "1e99"} {
		if err := new(Bytes).UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q passes", in)
		}
	}
}

func updating() bool { f := flag.Lookup("update"); return f != nil && f.Value.String() == "true" }

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite the example file and the schema")
	flag.Parse()
	os.Exit(m.Run())
}

func TestGeneratedFiles(t *testing.T) {
	schema, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"hearth.example.yaml": Example(), "hearth.schema.json": string(schema)} {
		if updating() {
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(name)
		if err != nil || string(got) != want {
			t.Errorf("%s is out of date (%v): go test ./configs -update", name, err)
		}
	}
}

// The example with its comments removed means the defaults.
func TestExampleIsTheDefaults(t *testing.T) {
	var text strings.Builder
	for _, l := range strings.Split(Example(), "\n") {
		if strings.HasPrefix(l, "# ") && !strings.HasPrefix(l, "#  ") {
			continue
		}
		text.WriteString(strings.TrimPrefix(l, "#") + "\n")
	}
	e := env(t)
	got := load(t, Options{Env: e, File: file(t, "c.yaml", text.String())})
	want := load(t, Options{Env: e})
	if len(got.Overrides) != 1 || got.Overrides[0].Model != "smollm2" {
		t.Errorf("overrides %+v", got.Overrides)
	}
	for i, v := range got.Values() {
		if w := want.Values()[i]; !reflect.DeepEqual(v.Value, w.Value) {
			t.Errorf("%s is %v, want %v", v.Key, v.Value, w.Value)
		}
	}
}
