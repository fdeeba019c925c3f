package server_test

import (
	"strings"
	"testing"

	"hearth/engine"
	"hearth/engine/enginetest"
)

// BenchmarkStream measures the front end's cost of one streamed token, without a network.
func BenchmarkStream(b *testing.B) {
	f := newFixture(b)
	const tokens = 1000
	f.model.Script = func(engine.Request) enginetest.Play {
		steps := make([]enginetest.Step, tokens+1)
		for i := range tokens {
			steps[i].Event = engine.Event{Text: " word", Tokens: []engine.Token{7}}
		}
		steps[tokens].Event = engine.Event{Finish: engine.FinishStop, Usage: &engine.Usage{PromptTokens: 1, CompletionTokens: tokens}}
		return enginetest.Play{Steps: steps}
	}
	b.Run("handler", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if w := f.post(chatPath, chatWith(`"stream":true`)); w.Code != 200 {
				b.Fatal(w.Body)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/tokens, "ns/token")
	})
	b.Run("tcp", func(b *testing.B) {
		s := f.listen()
		for b.Loop() {
			resp, err := s.Client().Post(s.URL+chatPath, "application/json", strings.NewReader(chatWith(`"stream":true`)))
			if err != nil {
				b.Fatal(err)
			}
			_ = readAll(b, resp.Body)
			resp.Body.Close()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/tokens, "ns/token")
	})
}
