package supervisor

import (
	"crypto/sha256"
	"sync"

	"google.golang.org/protobuf/proto"

	"hearth/engine"
	"hearth/engine/enginepb"
)

// maxPoison bounds remembered requests; the oldest is forgotten first.
const maxPoison = 1024

// digest identifies a request by what it asks for, not by its id, tenant or random seed.
type digest [sha256.Size]byte

func digestOf(r *engine.Request, seedGiven bool) digest {
	pb := enginepb.FromRequest(r)
	pb.Id, pb.Tenant, pb.Resume = "", "", nil
	if !seedGiven {
		pb.Sampling.Seed = nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(pb)
	if err != nil { // only invalid UTF-8 does this; such a request is its own class
		return sha256.Sum256([]byte(r.ID))
	}
	return sha256.Sum256(b)
}

// poison remembers requests that were there when a worker crashed twice. Safe for concurrent use.
type poison struct {
	mu    sync.Mutex
	set   map[digest]struct{}
	order []digest
}

func (p *poison) add(d digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil {
		p.set = make(map[digest]struct{})
	}
	if _, have := p.set[d]; have {
		return
	}
	if len(p.order) == maxPoison {
		delete(p.set, p.order[0])
		p.order = append(p.order[:0], p.order[1:]...)
	}
	p.set[d] = struct{}{}
	p.order = append(p.order, d)
}

func (p *poison) has(d digest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, have := p.set[d]
	return have
}

// empty spares the hash of every request while nothing is poisoned, which is nearly always.
func (p *poison) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.order) == 0
}

// errPoisoned is what a request gets that was admitted during two crashes, and every later one like it.
func errPoisoned() *engine.Error {
	return &engine.Error{
		Kind:    engine.KindInternal,
		Message: "the engine crashed twice while this request ran, so it is not tried again",
		Hint:    "change the request, or restart the server to try once more",
	}
}
