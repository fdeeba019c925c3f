package batch

// Padding rows cost little and save a lot: the backend reuses a graph only for a shape that it has seen, and streams
// are one evaluation only for consecutive ids.

const (
	// maxGap is the most idle ids that are padded to join two groups of streams. On the GPU of the facts (section 8) eight
	// more decode rows cost about 4 ms and another evaluation of an 8B model 4.8 ms.
	maxGap = 8
	// maxWaste bounds the padding rows of a step, as one in so many.
	maxWaste = 4
)

// pad appends padding rows to a step with decode rows.
func (s *Scheduler) pad() {
	if s.cfg.Layout == LayoutStreams {
		s.padStreams()
		return
	}
	st := &s.step
	want := padsFor(&s.cfg, st.Decodes)
	if st.Prefills > 0 || want == 0 || !s.mem.fits(len(st.Rows)+want) {
		return
	}
	for pass := range 2 {
		for id := 0; id < s.cfg.Sequences && st.Pads < want; id++ {
			empty := s.mem.lens[id] == 0 && s.runs[id] == nil
			if empty != (pass == 0) || (s.runs[id] != nil && s.runs[id].take > 0) || s.isFork(id) {
				continue
			}
			if !empty && (s.cfg.NoTrim || len(s.mem.win) > 0) {
				continue
			}
			s.padID(id)
		}
	}
	if st.Pads < want { // a shape between two buckets helps nobody
		s.unpad()
	}
}

// padsFor is how many rows a decode-only step lacks to the next bucket; 0 when that wastes too much or does not fit.
func padsFor(c *Config, rows int) int {
	b := buckets[bucketOf(rows)]
	if c.NoPad || c.Recurrent || b <= rows || (b-rows)*maxWaste > b || b > min(c.Outputs, c.Chunk, c.Sequences) {
		return 0
	}
	return b - rows
}

func (s *Scheduler) isFork(id int) bool {
	for _, r := range s.forks {
		if int(r.id) == id {
			return true
		}
	}
	return false
}

// padID appends a padding row for an id and its removal behind the step.
func (s *Scheduler) padID(id int) {
	st := &s.step
	n := s.mem.lens[id]
	st.Rows = append(st.Rows, Row{Token: st.Rows[0].Token, Pos: n, Seq: int32(id), Output: int32(st.Outputs), Kind: RowPad})
	st.Outputs++
	st.Pads++
	st.After = append(st.After, Op{Kind: OpRemove, Seq: int32(id), P0: n, P1: -1})
}

// unpad takes the padding rows of a unified step back: they are the last rows and operations.
func (s *Scheduler) unpad() {
	st := &s.step
	st.Rows = st.Rows[:len(st.Rows)-st.Pads]
	st.After = st.After[:len(st.After)-st.Pads]
	st.Outputs -= st.Pads
	st.Pads = 0
}

// padStreams closes gaps between the ids of a step, so that its decode rows are one evaluation, and goes on to the
// next bucket when the step is decode-only.
func (s *Scheduler) padStreams() {
	st := &s.step
	longest := int32(0)
	for i := range st.Rows {
		longest = max(longest, st.Rows[i].Pos+1)
	}
	limit := (longest + 255) / 256 * 256
	rows := len(st.Rows)
	last := st.Rows[0].Seq
	for i := 1; i < rows; i++ {
		id := st.Rows[i].Seq
		if s.canPad(last+1, id, limit) {
			for gap := last + 1; gap < id; gap++ {
				s.padID(int(gap))
			}
		}
		last = id
	}
	if want := padsFor(&s.cfg, st.Decodes+st.Pads); want > 0 && st.Prefills == 0 && s.canPad(last+1, last+1+int32(want), limit) {
		for id := last + 1; id <= last+int32(want); id++ {
			s.padID(int(id))
		}
	}
	s.sortRows(rows)
}

// canPad reports whether ids from..to-1 may all have a padding row: there are some but not many, their sequences can be cut
// back and do not make every row's attention longer than limit, and the step has room for them.
func (s *Scheduler) canPad(from, to, limit int32) bool {
	n := int(to - from)
	if n <= 0 || n > maxGap || int(to) > s.cfg.Sequences ||
		len(s.step.Rows)+n > s.cfg.Chunk || s.step.Outputs+n > s.cfg.Outputs {
		return false
	}
	for id := from; id < to; id++ {
		length := s.mem.lens[id]
		if length+1 > limit || (length > 0 && s.cfg.NoTrim) || s.isFork(int(id)) {
			return false
		}
	}
	return true
}

// sortRows moves the padding rows behind the first n rows to their place in the order of ids, and corrects the samples
// and outputs that refer to rows.
func (s *Scheduler) sortRows(n int) {
	st := &s.step
	if n == len(st.Rows) {
		return
	}
	s.scratch = append(s.scratch[:0], st.Rows...)
	real, pads := s.scratch[:n], s.scratch[n:]
	sample, out := 0, int32(0)
	k := 0
	for len(real) > 0 || len(pads) > 0 {
		old := int32(n - len(real))
		if len(real) == 0 || (len(pads) > 0 && pads[0].Seq < real[0].Seq) {
			st.Rows[k], pads = pads[0], pads[1:]
		} else {
			st.Rows[k], real = real[0], real[1:]
			for ; sample < len(st.Samples) && st.Samples[sample].Row == old; sample++ {
				st.Samples[sample].Row, st.Samples[sample].Output = int32(k), out
			}
		}
		if st.Rows[k].Output >= 0 {
			st.Rows[k].Output = out
			out++
		}
		k++
	}
}
