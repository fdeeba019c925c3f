package template

import (
	"runtime"
	"strings"
	"testing"
)

// allocated is how many bytes f allocates. It stands for time: what copies a growing text over and over allocates it.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A request of some megabytes may spell a special token, or begin a message, a hundred thousand times. With a cost that
// grows with the square of that, one request keeps a core busy for minutes; 20,000 of them would show it as gigabytes.
func TestCostIsLinear(t *testing.T) {
	const n, limit = 20_000, 256 << 20
	tmpl := compile(t, `{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}`, Budget{})
	many := func(role string) []Message {
		out := make([]Message, n)
		for i := range out {
			out[i] = Message{Role: role, Content: "abc"}
		}
		return out
	}
	tests := []struct {
		name string
		f    func()
	}{
		{"typed tokens side by side", func() {
			text := strings.Repeat("<|im_start|>", n)
			got, err := tmpl.Segments(Input{Messages: []Message{{Role: "user", Content: text}}})
			if err != nil || len(got) != 2 || got[1].Text != text || got[1].Trusted {
				t.Errorf("%d segments, %v", len(got), err)
			}
		}},
		{"typed tokens between words", func() {
			text := strings.Repeat("a<|im_start|>", n)
			got, err := tmpl.Render(Input{Messages: []Message{{Role: "user", Content: text}}})
			if err != nil || got != "user: "+text {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}},
		{"system messages", func() {
			if got := mergeSystem(many("system"), Caps{}); len(got) != 1 || len(got[0].Content) != 5*n-2 {
				t.Errorf("%d messages", len(got))
			}
		}},
		{"system messages for a template without the role", func() {
			if got := foldSystem(many("system")); len(got) != 1 || len(got[0].Content) != 5*n-2 {
				t.Errorf("%d messages", len(got))
			}
		}},
		{"repeats", func() {
			if got := mergeRepeats(many("user")); len(got) != 1 || len(got[0].Content) != 5*n-2 {
				t.Errorf("%d messages", len(got))
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if b := allocated(tt.f); b > limit {
				t.Errorf("%d MB were allocated for %d pieces", b>>20, n)
			}
		})
	}
	// Every character that could be a mark, at the end of a long text.
	var all strings.Builder
	for r := '\ue100'; r < '\uf8ff'; r++ {
		all.WriteRune(r)
	}
	if _, ok := newMarks([]Message{{Content: all.String()}}); ok {
		t.Error("marks were found where every character is used")
	}
	free := strings.NewReplacer("\ue200", "", "\ue205", "", "\uf0ff", "").Replace(all.String())
	if m, ok := newMarks([]Message{{Content: free}}); !ok || m != (marks{"\ue200", "\ue205", "\uf0ff"}) {
		t.Errorf("marks %q, %v", m, ok)
	}
}

func TestMergeRepeatsEndsAtToolCalls(t *testing.T) {
	call := []ToolCall{{Name: "f"}}
	got := mergeRepeats([]Message{
		{Role: "assistant", Content: "a", Reasoning: "r"}, {Role: "assistant", Content: "b", ToolCalls: call},
		{Role: "assistant", Content: "c"}, {Role: "tool", Content: "d"}, {Role: "tool", Content: "e"}, {Role: "user", Content: ""}, {Role: "user", Content: "f"},
	})
	var text []string
	for _, m := range got {
		text = append(text, m.Role+"="+m.Content)
	}
	if s := strings.Join(text, " "); s != "assistant=a\n\nb assistant=c tool=d tool=e user=f" {
		t.Errorf("got %q", s)
	}
	if got[0].Reasoning != "r" || len(got[0].ToolCalls) != 1 {
		t.Errorf("got %+v", got[0])
	}
}
