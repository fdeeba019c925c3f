package batch

import "slices"

// build writes rows, samples and padding.
func (s *Scheduler) build() {
	if s.cfg.Layout == LayoutStreams {
		for _, r := range s.runs {
			if r != nil && r.take > 0 {
				s.addRows(r)
			}
		}
	} else {
		for _, r := range s.decodes {
			s.addRows(r)
		}
		for _, r := range s.prefills {
			s.addRows(r)
		}
	}
	st := &s.step
	if len(st.Rows) == 0 {
		return
	}
	if !s.cfg.NoPad && !s.cfg.Recurrent && st.Decodes > 0 {
		s.pad()
	}
	st.Evaluations = s.split.rows(st.Rows)
	s.lastPrefill = st.Prefills > 0 && st.Decodes == 0
	s.load = append(s.load[:0], s.loadOf()...)
	t, _ := s.cost.predict(s.load)
	if t > 0 && st.Prefills == 0 && s.afterPrompt {
		t += s.turnTime()
	}
	st.Predicted = toDuration(t)
}

// addRows appends a run's rows, and what is sampled from the last of them.
func (s *Scheduler) addRows(r *run) {
	st := &s.step
	kind := RowPrefill
	if r.state == stateDecode {
		kind = RowDecode
		st.Decodes++
	} else {
		st.Prefills += int(r.take)
	}
	for i := range r.take {
		p := r.have + i
		st.Rows = append(st.Rows, Row{Token: r.token(p), Pos: p, Seq: r.id, Output: -1, Kind: kind})
	}
	row := int32(len(st.Rows) - 1)
	if r.fill > 0 {
		end := r.have + r.take
		for i := range r.fill {
			st.Rows = append(st.Rows, Row{Token: r.token(end - 1), Pos: end + i, Seq: r.id, Output: -1, Kind: RowPad})
		}
		st.Pads += int(r.fill)
		st.After = append(st.After, Op{Kind: OpRemove, Seq: r.id, P0: end, P1: -1})
	}
	if r.have+r.take < r.len() || r.job.MaxTokens == 0 {
		return
	}
	st.Rows[row].Output = int32(st.Outputs)
	st.Outputs++
	s.addSample(r, row)
	if kind == RowPrefill && len(r.job.runs) > 1 && len(r.gen) == 0 {
		s.forkSiblings(r, row)
	}
}

func (s *Scheduler) addSample(r *run, row int32) {
	s.step.Samples = append(s.step.Samples, Sample{
		Job: r.job.ID, Choice: r.choice, Row: row, Output: s.step.Rows[row].Output, Index: int32(len(r.gen)),
	})
	s.sampled = append(s.sampled, r)
}

// forkSiblings starts other choices of the job from the row behind the prompt: they sample from the same logits and
// share the prompt's cells. Those that find no id, no cells or no time to copy them in stay in the queue and find the prompt cached later.
func (s *Scheduler) forkSiblings(lead *run, row int32) {
	if s.cfg.NoCopy {
		return
	}
	committed := s.committed()
	for i := range lead.job.runs {
		r := &lead.job.runs[i]
		if r.state != stateWaiting || len(r.gen) > 0 || s.running >= s.cfg.MaxRunning {
			continue
		}
		committed += s.reserve(r)
		if s.mem.base != nil && committed > s.cfg.Cells {
			return
		}
		if s.copiesEnough(len(s.forks)) {
			return
		}
		id := s.freeID(int(lead.id))
		if id < 0 {
			return
		}
		s.waiting = remove(s.waiting, r)
		s.occupy(r, id, 0)
		r.state, r.target, r.cached = statePrefill, r.len(), r.len()-1
		s.forks = append(s.forks, r)
		s.step.After = s.copyOps(s.step.After, int(lead.id), id, r.target)
		s.addSample(r, row)
		s.step.Events = append(s.step.Events, Event{Kind: EventAdmitted, Job: r.job.ID, Choice: r.choice, Cached: r.cached, Total: r.target})
	}
}

// remove deletes a run from a list and keeps its order.
func remove(list []*run, r *run) []*run {
	if i := slices.Index(list, r); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
