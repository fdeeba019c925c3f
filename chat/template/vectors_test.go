package template

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sort"
	"sync/atomic"
	"testing"

	"github.com/ardanlabs/jinja"
)

// sharedDir finds the test vectors, which are not part of the repository.
func sharedDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("HEARTH_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared")
	}
	dir = filepath.Join(dir, "vectors", "templates")
	if _, err := os.Stat(filepath.Join(dir, "expected.json")); err != nil {
		t.Skipf("no template vectors: %v", err)
	}
	return dir
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

// knownDifferent lists renders whose text differs from Jinja2's, with the reason. A new one fails the test, and so
// does one that has become right.
func knownDifferent() map[string]string { return map[string]string{} }

// TestVectors renders real models' templates as they are, without normalisation, and compares with what Python's Jinja2
// made of them. Where Python refuses, ours may print something: it is more lenient about None and lists.
func TestVectors(t *testing.T) {
	dir := sharedDir(t)
	var contexts map[string]map[string]json.RawMessage
	var expected map[string]map[string]struct{ Text, Error *string }
	readJSON(t, filepath.Join(dir, "contexts.json"), &contexts)
	readJSON(t, filepath.Join(dir, "expected.json"), &expected)

	exact, total, refused, refusals := 0, 0, 0, 0
	known := knownDifferent()
	for _, name := range sortedKeys(expected) {
		source, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := Compile(string(source), Budget{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, ctx := range sortedKeys(expected[name]) {
			want := expected[name][ctx]
			got, err := renderRaw(t, tmpl, contexts[ctx])
			if want.Error != nil {
				refusals++
				if err != nil {
					refused++
				}
				continue
			}
			total++
			key := name + "/" + ctx
			same := err == nil && got == *want.Text
			_, listed := known[key]
			switch {
			case same:
				exact++
				if listed {
					t.Errorf("%s is right now: take it off the list", key)
				}
			case !listed:
				t.Errorf("%s: err %v\n got: %q\nwant: %q", key, err, got, *want.Text)
			}
		}
	}
	t.Logf("%d of %d renders are byte-exact; of %d that Jinja2 refuses, %d are refused", exact, total, refusals, refused)
	if total < 150 {
		t.Errorf("only %d renders were compared", total)
	}
}

func renderRaw(t *testing.T, tmpl *Template, context map[string]json.RawMessage) (string, error) {
	t.Helper()
	vars := map[string]jinja.Value{}
	for k, raw := range context {
		v, err := parseJSON(raw)
		if err != nil {
			t.Fatal(err)
		}
		vars[k] = v
	}
	var stuck atomic.Int32
	return supervise(&run{budget: tmpl.budget, now: vectorTime()}, tmpl.code, vars, &stuck)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
