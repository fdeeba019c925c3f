package worker

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"hearth/engine"
)

// run pushes the pieces and returns what came out at each step, the flush last.
func run(stop []string, pieces ...string) (out []string, hit string) {
	var t textStream
	t.init(stop)
	for _, p := range pieces {
		b, stopped := t.push(nil, []byte(p))
		out = append(out, string(b))
		if stopped {
			return out, t.hit
		}
	}
	return append(out, string(t.flush(nil))), ""
}

func TestTextStream(t *testing.T) {
	tests := []struct {
		name   string
		stop   []string
		pieces []string
		want   string // steps joined with |
		hit    string
	}{
		{"plain", nil, []string{"a", "bc", ""}, "a|bc||", ""},
		{"split character", nil, []string{"\xe2\x82", "\xac!"}, "|€!|", ""},
		{"four bytes one by one", nil, []string{"\xf0", "\x9f", "\x98", "\x80"}, "|||😀|", ""},
		{"never finished", nil, []string{"a\xe2\x82"}, "a|\uFFFD\uFFFD", ""},
		{"invalid byte", nil, []string{"a\xffb"}, "a\uFFFDb|", ""},
		{"lone continuation", nil, []string{"\x80\x80\x80\x80x"}, "\uFFFD\uFFFD\uFFFD\uFFFDx|", ""},
		{"stop inside a piece", []string{"END"}, []string{"aENDb"}, "a", "END"},
		{"stop over pieces", []string{"END"}, []string{"xE", "N", "D"}, "x||", "END"},
		{"false start", []string{"END"}, []string{"xE", "Nx"}, "x|ENx|", ""},
		{"false start repeats", []string{"aab"}, []string{"aa", "a", "b"}, "|a|", "aab"},
		{"first to begin wins", []string{"bc", "abcd"}, []string{"xabcd"}, "x", "abcd"},
		{"shorter complete first", []string{"abcd", "bc"}, []string{"xab", "c"}, "x|a", "bc"},
		{"held until the end", []string{"END"}, []string{"xEN"}, "x|EN", ""},
		{"stop inside a character", []string{"€"}, []string{"\xe2", "\x82", "\xac"}, "||", "€"},
		{"newline", []string{"\n\n"}, []string{"a\n", "b\n", "\nc"}, "a|\nb|", "\n\n"},
		{"twice the same prefix", []string{"</s>"}, []string{"<", "<", "/s", ">"}, "|<||", "</s>"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, hit := run(tt.stop, tt.pieces...)
			if got := strings.Join(out, "|"); got != tt.want || hit != tt.hit {
				t.Errorf("got %q hit %q, want %q hit %q", got, hit, tt.want, tt.hit)
			}
		})
	}
}

// However a text is cut into pieces, the output is the text up to the first stop string, in valid UTF-8 at every step.
func TestTextStreamRandomCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{"a", "b", "ab", "€", "😀", "<", "/", "\n"}
	for range 3000 {
		var b strings.Builder
		for range rng.IntN(30) {
			b.WriteString(alphabet[rng.IntN(len(alphabet))])
		}
		text := b.String()
		var stop []string
		for range rng.IntN(3) {
			stop = append(stop, alphabet[rng.IntN(len(alphabet))]+alphabet[rng.IntN(len(alphabet))])
		}
		want, wantHit := text, false
		// The stream must stop at the stop string that is complete first; on a tie the one that begins first.
		end := len(text) + 1
		for _, s := range stop {
			if at := strings.Index(text, s); at >= 0 && (at+len(s) < end || at+len(s) == end && at < len(want)) {
				want, wantHit, end = text[:at], true, at+len(s)
			}
		}
		var pieces []string
		for i := 0; i < len(text); i++ {
			pieces = append(pieces, text[i:i+1]) // a byte at a time, so that nothing is complete twice in one piece
		}
		out, hit := run(stop, pieces...)
		for _, o := range out {
			if !utf8.ValidString(o) {
				t.Fatalf("text %q: step %q is not valid", text, o)
			}
		}
		if got := strings.Join(out, ""); got != want || (hit != "") != wantHit {
			t.Fatalf("text %q stop %q: got %q hit %q, want %q", text, stop, got, hit, want)
		}
	}
}

func BenchmarkTextStream(b *testing.B) {
	var t textStream
	t.init([]string{"</s>", "User:"})
	var dst []byte
	piece := []byte(" word")
	b.ReportAllocs()
	for b.Loop() {
		dst, _ = t.push(dst[:0], piece)
	}
}

func TestTurnEnds(t *testing.T) {
	m := newFakeModel(smallConfig())
	for _, tc := range []struct{ prompt, want []int }{
		{[]int{20, 21}, nil},
		{[]int{20, fakeEOS, 21}, []int{2}},
		{[]int{fakeBOS, 20, fakeEOS, 21, fakeEOS, 22, fakeEOS, 23}, []int{3, 7}},
	} {
		var prompt []engine.Token
		for _, n := range tc.prompt {
			prompt = append(prompt, engine.Token(n))
		}
		if got := turnEnds(m, prompt); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.prompt, got, tc.want)
		}
	}
}
