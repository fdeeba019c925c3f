package worker

import (
	"testing"

	"hearth/engine"
	"hearth/engine/batch"
)

// TestUsageOfCancelledRequests: what is told of a request that ends before its first token is what was computed for it.
func TestUsageOfCancelledRequests(t *testing.T) {
	m := newFakeModel(smallConfig()) // chunks of 64
	began, goOn := make(chan struct{}), make(chan struct{})
	m.decode = func([]batch.Row) {
		began <- struct{}{}
		<-goOn
	}
	r := newRig(t, m)
	cancel := func(id uint64) { r.l.post(message{kind: msgCancel, session: r.s, wire: id}) }

	long := r.submit(request(prompt(200, 1), 8))
	<-began // its first chunk is being computed
	queued := r.submit(request(prompt(100, 2), 8))
	cancel(long)
	cancel(queued)
	goOn <- struct{}{}
	if u := r.result(long).usage; u == nil || u.PromptTokens != 64 || u.CompletionTokens != 0 {
		t.Errorf("cancelled within its prompt: %v", u)
	}
	if u := r.result(queued).usage; u == nil || u.PromptTokens != 0 || u.CompletionTokens != 0 {
		t.Errorf("cancelled in the queue: %v", u)
	}

	answering := r.submit(request(prompt(50, 3), -1))
	for range 3 {
		<-began
		goOn <- struct{}{}
	}
	<-began
	cancel(answering)
	goOn <- struct{}{}
	if u := r.result(answering).usage; u == nil || u.PromptTokens != 50 || u.CompletionTokens != 4 {
		t.Errorf("cancelled while it answered: %v", u)
	}
}

// TestCancelWhilePrepared: a request that is cancelled before the loop has it gets an answer, too.
func TestCancelWhilePrepared(t *testing.T) {
	m := newFakeModel(smallConfig())
	r := newRig(t, m)
	const id = 77
	r.l.post(message{kind: msgAnnounce, session: r.s, wire: id})
	r.l.post(message{kind: msgCancel, session: r.s, wire: id})
	j, err := prepare(m, request(prompt(10, 1), 8), r.l.context)
	if err != nil {
		t.Fatal(err)
	}
	j.id, j.wire, j.session = batch.JobID(r.l.ids.Add(1)), id, r.s
	r.l.post(message{kind: msgSubmit, session: r.s, wire: id, job: j})
	if o := r.result(id); o.failed.GetKind() != string(engine.KindCancelled) {
		t.Errorf("failed %v, usage %v", o.failed, o.usage)
	}
	r.drained()
}
