package batch

import "hearth/engine/prefix"

// Prefixes that were evicted before anybody came back for them teach that nobody does. Ghosts correct that: of each the
// length and the hash are kept for a while, and a request that would have used it counts as a reuse. Without them a
// machine that once learned to keep nothing would never see a reason to keep anything.

// ghosts is how many evicted prefixes are remembered.
const ghosts = 64

type ghost struct {
	n    int32 // tokens
	hash prefix.Hash
}

// haunt remembers a cached prefix that is about to be cut or dropped: up to the middle of what only it holds, so that a common
// beginning does not pass for it.
func (s *Scheduler) haunt(id int) {
	n, alone := s.lengthOf(id)
	n -= alone / 2
	if int(n) < s.cfg.MinShare || !s.tree.Holds(id) || s.tree.Key(id).Private != 0 {
		return
	}
	s.ghosts[s.ghostAt] = ghost{n, s.tree.Hash(id, n)}
	s.ghostAt = (s.ghostAt + 1) % ghosts
}

// meetGhosts counts the evicted prefixes that a run which begins with only the first found tokens of its prompt would have used.
func (s *Scheduler) meetGhosts(r *run, found int32) {
	longest := int32(0)
	for i := range s.ghosts {
		if g := s.ghosts[i]; g.n > found && int(g.n) <= len(r.job.Prompt) {
			longest = max(longest, g.n)
		}
	}
	if longest == 0 || r.job.key.Private != 0 {
		return
	}
	h := prefix.NewHash(r.job.key)
	for k, t := range r.job.Prompt[:longest] {
		h = h.Add(t)
		for i := range s.ghosts {
			if g := &s.ghosts[i]; g.n == int32(k+1) && g.n > found && g.hash == h {
				s.learnReuse(1)
				*g = ghost{}
			}
		}
	}
}
