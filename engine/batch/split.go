package batch

// piece is n rows of one sequence, from row on, in one graph evaluation.
type piece struct {
	seq, row, n int32
	eval        int32
}

// splitter tells how llama.cpp cuts a batch into graph evaluations.
type splitter struct {
	equal      bool // llama_batch_allocr::split_equal instead of split_simple
	sequential bool // only consecutive ascending ids share an evaluation
	chunk      int32
	left       []piece // rows not cut yet, by sequence
	pieces     []piece
}

// newSplitter follows llama.cpp 0.7.0: a unified attention cache takes the batch as it is; streams and recurrent states
// want equal token counts, and streams also consecutive ids.
func newSplitter(c *Config) splitter {
	return splitter{
		equal: c.Layout == LayoutStreams || c.Recurrent, sequential: c.Layout == LayoutStreams,
		chunk: int32(c.Chunk),
	}
}

// rows cuts a batch, in which the rows of every sequence are neighbours, and returns the number of evaluations. The
// pieces are in s.pieces until the next call.
func (s *splitter) rows(rows []Row) int {
	s.begin()
	for i := range rows {
		s.add(rows[i].Seq, 1)
	}
	return s.count()
}

// begin, add and count do the same for a batch that is only sketched.
func (s *splitter) begin() { s.left, s.pieces = s.left[:0], s.pieces[:0] }

func (s *splitter) add(seq, n int32) {
	k := len(s.left) - 1
	if k >= 0 && s.left[k].seq == seq {
		s.left[k].n += n
		return
	}
	row := int32(0)
	if k >= 0 {
		row = s.left[k].row + s.left[k].n
	}
	s.left = append(s.left, piece{seq: seq, row: row, n: n})
}

func (s *splitter) count() int {
	if !s.equal {
		s.pieces = append(s.pieces, s.left...)
		return min(1, len(s.left))
	}
	evals := int32(0)
	for len(s.left) > 0 {
		s.cut(evals)
		evals++
	}
	return int(evals)
}

// cut moves one evaluation from left to pieces.
func (s *splitter) cut(eval int32) {
	first := len(s.pieces)
	last, n := int32(-1), s.chunk
	for i := range s.left {
		p := s.left[i]
		if len(s.pieces) > first && s.sequential && p.seq != last+1 {
			continue
		}
		if int32(len(s.pieces)-first) == s.chunk {
			break
		}
		last, n = p.seq, min(n, p.n)
		p.eval = eval
		s.pieces = append(s.pieces, p)
	}
	n = max(1, min(n, s.chunk/int32(len(s.pieces)-first)))
	k, next := 0, first
	for _, p := range s.left {
		if next < len(s.pieces) && s.pieces[next].seq == p.seq {
			s.pieces[next].n = n
			next++
			p.row, p.n = p.row+n, p.n-n
		}
		if p.n > 0 {
			s.left[k] = p
			k++
		}
	}
	s.left = s.left[:k]
}
