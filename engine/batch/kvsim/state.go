package kvsim

import (
	"fmt"
	"slices"

	"hearth/engine/batch"
)

// Save is llama_state_seq_get_data into a host slot. States of windows and of recurrent models are not simulated.
func (s *Sim) Save(id, slot int32) error {
	switch {
	case id < 0 || int(id) >= s.cfg.Sequences:
		return fmt.Errorf("kvsim: the state of id %d would not come back", id)
	case s.cfg.Recurrent || s.cfg.Window > 0:
		return fmt.Errorf("kvsim: no saved states of this kind of memory")
	case s.End(id) == 0:
		return fmt.Errorf("kvsim: nothing to save of id %d", id)
	}
	var out []cell
	for _, c := range s.pools(id)[0].cells {
		if slices.Contains(c.owners, id) {
			out = append(out, cell{pos: c.pos, token: c.token})
		}
	}
	s.saved[slot] = out
	return nil
}

// Load is llama_state_seq_set_data of cells from..to-1 of a slot's state: it clears the id and finds cells as for one evaluation.
func (s *Sim) Load(slot, id, from, to int32) error {
	state := s.saved[slot]
	if from < 0 || from >= to || int(to) > len(state) || id < 0 || int(id) >= s.cfg.Sequences {
		return fmt.Errorf("kvsim: cannot load %d..%d of slot %d into id %d", from, to, slot, id)
	}
	state = state[from:to]
	if err := s.Remove(id, 0, -1); err != nil {
		return err
	}
	rows := make([]batch.Row, len(state))
	for i, c := range state {
		rows[i] = batch.Row{Pos: c.pos, Token: c.token, Seq: id}
	}
	if !s.pools(id)[0].place(rows) {
		return fmt.Errorf("kvsim: no room for the %d cells of slot %d", len(state), slot)
	}
	return nil
}

// apart says that two ids have no position below p1 both; p1 < 0: at all.
func (s *Sim) apart(a, b, p1 int32) bool {
	has := map[int32]bool{}
	for _, c := range s.pools(a)[0].cells {
		if slices.Contains(c.owners, a) && (p1 < 0 || c.pos < p1) {
			has[c.pos] = true
		}
	}
	for _, c := range s.pools(b)[0].cells {
		if slices.Contains(c.owners, b) && has[c.pos] {
			return false
		}
	}
	return true
}

// Runs is in how many runs of consecutive cells an id is.
func (s *Sim) Runs(id int32) (n int) {
	last := -2
	for i, c := range s.pools(id)[0].cells {
		if slices.Contains(c.owners, id) {
			if i != last+1 {
				n++
			}
			last = i
		}
	}
	return n
}

// TakeSaved takes another memory's host slots over.
func (s *Sim) TakeSaved(from *Sim) { s.saved = from.saved }

// Saved counts the tokens in host slots.
func (s *Sim) Saved() (n int) {
	for _, state := range s.saved {
		n += len(state)
	}
	return n
}
