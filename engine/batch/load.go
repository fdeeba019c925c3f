package batch

// sketch is the load of this step as the takes set so far make it.
func (s *Scheduler) sketch() load {
	s.split.begin()
	if !s.split.equal {
		d, rows := int32(0), int32(0)
		for _, r := range s.runs {
			if r == nil || r.take == 0 {
				continue
			}
			rows += r.take + r.fill
			if r.state == stateDecode {
				d++
			}
		}
		if s.loads = s.loads[:0]; rows > 0 {
			s.loads = append(s.loads, evaluation{rows: rows, decodes: d, kv: int32(s.span())})
		}
		return s.loads
	}
	last := int32(-1)
	for id, r := range s.runs {
		if r == nil || r.take == 0 {
			continue
		}
		if gap := int32(id) - last - 1; last >= 0 && s.cfg.Layout == LayoutStreams && len(s.decodes) > 0 && gap <= maxGap && !s.cfg.NoPad {
			for i := last + 1; i < int32(id); i++ {
				s.split.add(i, 1) // as padStreams will
			}
		}
		s.split.add(int32(id), r.take+r.fill)
		last = int32(id)
	}
	s.split.count()
	return s.loadOf()
}

// addPiece adds a piece's rows to its evaluation in s.loads, which the first piece of each begins, and returns that.
func (s *Scheduler) addPiece(p piece) *evaluation {
	if int(p.eval) == len(s.loads) {
		s.loads = append(s.loads, evaluation{})
	}
	e := &s.loads[len(s.loads)-1]
	e.rows += p.n
	return e
}

// loadOf prices the pieces that the splitter made.
func (s *Scheduler) loadOf() load {
	s.loads = s.loads[:0]
	for _, p := range s.split.pieces {
		e := s.addPiece(p)
		r := s.runs[p.seq]
		fills := r != nil && r.state == statePrefill && r.take > 0
		if !fills {
			e.decodes += p.n
		}
		switch {
		case s.mem.base != nil:
			e.kv = int32(s.mem.base.Span())
		case fills && e.decodes == 0:
			e.kv = max(e.kv, r.have+(r.take+r.fill)/2)
		default:
			e.kv = max(e.kv, s.mem.lens[p.seq]+1)
		}
	}
	for i := range s.loads {
		if e := &s.loads[i]; e.decodes > 0 { // attention reads whole blocks of cells
			e.kv = max(256, (e.kv+255)/256*256)
		}
	}
	return s.loads
}

// loadOfShape is what a warm-up's shape costs by, with span cells in use.
func (s *Scheduler) loadOfShape(sh Shape, span int) load {
	s.split.begin()
	for i := range sh.Decode {
		s.split.add(int32(i), 1)
	}
	left, prompts := sh.Prefill, max(1, sh.Prompts)
	for p := range prompts {
		if n := left / (prompts - p); n > 0 {
			s.split.add(int32(sh.Decode+p), int32(n))
			left -= n
		}
	}
	s.split.count()
	s.loads = s.loads[:0]
	depth := max(0, span-sh.Prefill)
	for _, p := range s.split.pieces {
		e := s.addPiece(p)
		if int(p.seq) < sh.Decode {
			e.decodes += p.n
		}
		e.kv = int32(span)
		if s.split.equal && e.decodes == 0 {
			e.kv = int32(depth) + p.n/2
		}
	}
	for i := range s.loads {
		if e := &s.loads[i]; e.decodes > 0 {
			e.kv = max(e.kv, 256)
		}
	}
	return s.loads
}
