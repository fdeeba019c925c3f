package native

import (
	"errors"
	"fmt"

	"hearth/engine"
	"hearth/engine/batch"
	"hearth/engine/llama"
	"hearth/engine/worker"
)

// Remove implements worker.Memory.
func (m *model) Remove(seq, p0, p1 int32) error { return m.ctx.SeqRm(seq, p0, p1) }

// Copy implements worker.Memory.
func (m *model) Copy(src, dst, p0, p1 int32) error { return m.ctx.SeqCp(src, dst, p0, p1) }

// Clear implements worker.Memory.
func (m *model) Clear() error {
	if !m.ctx.HasMemory() {
		return nil
	}
	return m.ctx.Clear(false)
}

// PosMin implements worker.Memory.
func (m *model) PosMin(seq int32) int32 { return m.ctx.PosMin(seq) }

// PosMax implements worker.Memory.
func (m *model) PosMax(seq int32) int32 { return m.ctx.PosMax(seq) }

// code maps a decode's error to llama_decode's number.
func code(err error) (batch.Code, error) {
	switch {
	case err == nil:
		return batch.CodeOK, nil
	case errors.Is(err, llama.ErrNoKVSlot):
		return batch.CodeNoSlot, err
	case errors.Is(err, llama.ErrAborted):
		return batch.CodeAborted, err
	case errors.Is(err, llama.ErrInvalidBatch), errors.Is(err, llama.ErrRange), errors.Is(err, llama.ErrPosition), errors.Is(err, llama.ErrBatchFull):
		return batch.CodeInvalid, err
	default:
		return batch.CodeFatal, err
	}
}

// Decode implements worker.Decoder.
func (m *model) Decode(rows []batch.Row) (batch.Code, error) {
	m.b.Reset()
	for i := range rows {
		r := &rows[i]
		if _, err := m.b.Add(r.Token, r.Pos, r.Seq, r.Output >= 0); err != nil {
			return code(err)
		}
	}
	if m.async {
		return code(m.ctx.Decode(m.b))
	}
	var err error
	m.rows, err = m.ctx.Step(m.b)
	return code(err)
}

// Sync implements worker.Decoder.
func (m *model) Sync() (batch.Code, error) {
	if !m.async { // Step did it in the same crossing
		return batch.CodeOK, nil
	}
	var err error
	m.rows, err = m.ctx.Sync()
	return code(err)
}

// Async implements worker.Decoder.
func (m *model) Async() bool { return m.async }

// Logits implements worker.Decoder.
func (m *model) Logits(k int) []float32 { return m.rows.Logits(k) }

// GraphsReused implements worker.Decoder.
func (m *model) GraphsReused() uint64 {
	p, err := m.ctx.Perf(false)
	if err != nil {
		return 0
	}
	return uint64(p.GraphsReused)
}

// Sample implements worker.Decoder.
func (m *model) Sample(picks []worker.Pick) error {
	m.jobs, m.picked = m.jobs[:0], m.picked[:0]
	for _, p := range picks {
		r, ok := p.Row.(*row)
		if !ok {
			return fmt.Errorf("a row of another model: %T", p.Row)
		}
		r.err = nil
		m.jobs = append(m.jobs, llama.Job{Row: r.r, Index: p.Output})
		m.picked = append(m.picked, r)
	}
	if err := m.s.Sample(m.rows, m.jobs); err != nil && !errors.Is(err, llama.ErrNoCandidate) {
		return err
	}
	for i, r := range m.picked {
		r.settle(m, m.jobs[i])
	}
	return nil
}

// EmbedLimits implements worker.Embedder.
func (m *model) EmbedLimits() (tokens, texts int) { return m.ctx.NBatch(), m.ctx.NSeqMax() }

// Embed implements worker.Embedder.
func (m *model) Embed(texts [][]engine.Token, each func(int, []float32)) error {
	if err := m.Clear(); err != nil {
		return err
	}
	m.b.Reset()
	for s, toks := range texts {
		for i, t := range toks {
			if _, err := m.b.Add(t, llama.Pos(i), llama.SeqID(s), true); err != nil {
				return err
			}
		}
	}
	if err := m.ctx.Decode(m.b); err != nil {
		return err
	}
	if _, err := m.ctx.Sync(); err != nil {
		return err
	}
	for s := range texts {
		v, err := m.ctx.EmbeddingSeq(llama.SeqID(s))
		if err != nil {
			return err
		}
		if m.info.Rerank {
			v = v[:1] // the score of "relevant"
		}
		each(s, v)
	}
	return nil
}
