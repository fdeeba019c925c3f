package worker

import (
	"fmt"
	"io"
	"log/slog"
	"testing"

	"hearth/engine"
	"hearth/engine/batch"
)

// nullModel computes nothing: what remains of a step is the worker's own cost.
type nullModel struct{ fakeModel }

func (m *nullModel) Remove(_, _, _ int32) error             { return nil }
func (m *nullModel) Copy(_, _, _, _ int32) error            { return nil }
func (m *nullModel) Decode([]batch.Row) (batch.Code, error) { return batch.CodeOK, nil }
func (m *nullModel) NewRow(RowParams) (Row, error)          { return &nullRow{}, nil }
func (m *nullModel) Piece(engine.Token) []byte              { return []byte(" word") }
func (m *nullModel) Sample(picks []Pick) error              { return nil }

type nullRow struct{ fakeRow }

func (r *nullRow) Err() error          { return nil }
func (r *nullRow) Token() engine.Token { return 77 }
func (r *nullRow) Close()              {}

// BenchmarkStep is the cost of a decode step in the worker, everything but llama.cpp and the wire: plan, samples into
// events, text, commit, hand-over.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("sequences=%d", n), func(b *testing.B) {
			m := &nullModel{fakeModel{cfg: batch.Config{Cells: 1 << 22, Context: 1 << 20, Sequences: 64, Parking: 16, Chunk: 512, Outputs: 64}}}
			l, err := newLoop(m, m.cfg, io.Discard, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			s := newSession()
			for i := range n {
				j, err := prepare(m, request(prompt(20, i), -1), l.context)
				if err != nil {
					b.Fatal(err)
				}
				wire := uint64(i)
				j.id, j.wire, j.session = batch.JobID(i+1), wire, s
				l.handle(&message{kind: msgAnnounce, session: s, wire: wire})
				l.handle(&message{kind: msgSubmit, session: s, wire: wire, job: j})
			}
			step := func() {
				if idle, err := l.oneStep(); err != nil || idle {
					b.Fatal(idle, err)
				}
				l.flush()
				if f := s.take(); f != nil {
					s.recycle(f)
				}
			}
			for range 100 {
				step()
			}
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}
