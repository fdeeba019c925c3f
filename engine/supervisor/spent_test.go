package supervisor

import (
	"testing"
	"testing/synctest"
	"time"

	"hearth/engine"
	"hearth/engine/enginepb"
)

// TestSpent: whoever made a request learns once what it cost, also when nobody reads its stream any more.
func TestSpent(t *testing.T) {
	inBubble(t, Config{KeepAlive: -1}, anyModel{}, func(t *testing.T, p *Pool, l *memory) {
		m, release := use(t, p, "a")
		defer release()
		var told []engine.Usage
		start := func() (engine.Stream, *memWorker) {
			told = nil
			s, err := m.Generate(t.Context(), engine.Request{
				Prompt: engine.TextPrompt("x"), MaxTokens: 9, Spent: func(u engine.Usage) { told = append(told, u) },
			})
			if err != nil {
				t.Fatal(err)
			}
			return s, l.worker()
		}
		check := func(what string, want ...engine.Usage) {
			t.Helper()
			if len(told) != len(want) || len(want) == 1 && told[0] != want[0] {
				t.Errorf("%s: told %v, want %v", what, told, want)
			}
		}
		token := engine.Event{Tokens: []engine.Token{5}, Text: "x"}
		whole := engine.Usage{PromptTokens: 7, CompletionTokens: 2}
		last := engine.Event{Tokens: []engine.Token{5}, Finish: engine.FinishStop, Usage: &whole}

		s, w := start()
		w.say(token)
		w.say(last)
		check("finished, unread", whole)
		s.Close()
		w.say(last)
		check("finished", whole)

		s, w = start()
		w.say(token)
		s.Close()
		check("closed, the worker still has it")
		if st := p.Status()[0]; st.Requests != 0 {
			t.Errorf("%d requests", st.Requests)
		}
		w.say(token)
		w.say(engine.Event{Finish: engine.FinishCancelled, Usage: &engine.Usage{PromptTokens: 7, CompletionTokens: 3}})
		check("closed", engine.Usage{PromptTokens: 7, CompletionTokens: 3})
		w.say(engine.Event{Finish: engine.FinishCancelled, Usage: &whole})
		check("told once", engine.Usage{PromptTokens: 7, CompletionTokens: 3})

		s, w = start()
		s.Close()
		w.on.frame(&enginepb.WorkerFrame{Failures: []*enginepb.Failure{{Id: w.ids[len(w.ids)-1], Error: enginepb.FromError(errClosed())}}})
		w.say(engine.Event{Finish: engine.FinishCancelled, Usage: &whole})
		check("closed while it was prepared")

		s, w = start()
		w.say(token)
		s.Close()
		w.die(exit{code: 1})
		synctest.Wait()
		check("closed before the worker died", engine.Usage{CompletionTokens: 1})

		s, w = start()
		w.say(token)
		l.mu.Lock()
		l.load = time.Hour
		l.mu.Unlock()
		w.die(exit{code: 1})
		synctest.Wait()
		check("the worker died, the next one is to continue")
		s.Close()
		check("closed without a worker", engine.Usage{CompletionTokens: 1})
	})
}
