package load

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Workload names a kind of traffic.
type Workload string

// Workloads. Each is generated from Spec.Seed alone, so that two servers see the same requests.
const (
	// Chat: every client sends unrelated prompts of PromptWords words.
	Chat Workload = "chat"
	// SharedPrefix: one system prompt of PrefixWords words for everybody, unrelated user prompts of PromptWords.
	SharedPrefix Workload = "shared-prefix"
	// Branching: groups of Branches clients send, at the same time, one trunk of PrefixWords words with different ends.
	Branching Workload = "branching"
	// Turns: each client holds conversations of Turns turns and sends the whole history each time.
	Turns Workload = "turns"
	// Cancel: like Chat, but a random part of the requests is cut off before or during the answer.
	Cancel Workload = "cancel"
	// Mixed: Clients decoders run all the time while prompts of InjectWords words come in one after another.
	Mixed Workload = "mixed"
)

// Workloads lists every workload, for help texts and flag checks.
func Workloads() []Workload {
	return []Workload{Chat, SharedPrefix, Branching, Turns, Cancel, Mixed}
}

// Spec describes a run. Sizes are words of three letters; how many tokens that is, the server's usage tells.
type Spec struct {
	Workload Workload
	// Clients is the concurrency of a closed loop. With Rate > 0 the loop is open: requests start at Poisson times of
	// Rate per second whatever the server does, and Clients only names how many different API keys are used.
	Clients int
	Rate    float64
	// Requests is the total number to send.
	Requests    int
	PromptWords int
	PrefixWords int
	MaxTokens   int
	Branches    int
	Turns       int
	// Conversations is how many a client of Turns holds in turns; 0: 1.
	Conversations int
	// CancelShare is the part of requests that Cancel cuts off, 0..1.
	CancelShare float64
	// InjectWords and Injections are Mixed's long prompts; Injections of them are sent one after another.
	InjectWords, Injections int
	Seed                    uint64
	// Tenants > 0 gives client i the API key "tenant-<i mod Tenants>".
	Tenants int
}

// Validate names the first bad field.
func (s *Spec) Validate() error {
	if s.Clients < 1 || s.Clients > 4096 {
		return fmt.Errorf("clients must be between 1 and 4096, is %d", s.Clients)
	}
	if s.Requests < 1 && s.Workload != Mixed {
		return fmt.Errorf("requests must be at least 1, is %d", s.Requests)
	}
	if s.MaxTokens < 1 {
		return fmt.Errorf("max tokens must be at least 1, is %d", s.MaxTokens)
	}
	if s.CancelShare < 0 || s.CancelShare > 1 {
		return fmt.Errorf("cancel share must be between 0 and 1, is %g", s.CancelShare)
	}
	if s.Workload == Branching && s.Branches < 2 {
		return fmt.Errorf("branches must be at least 2, is %d", s.Branches)
	}
	for _, w := range Workloads() {
		if s.Workload == w {
			return nil
		}
	}
	return fmt.Errorf("unknown workload %q, known are %v", s.Workload, Workloads())
}

// Words returns n seeded words of three letters, separated by spaces. Each is one token of the synthetic model's
// vocabulary, and one to three of a real one.
func Words(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 0x68656172))
	var b strings.Builder
	b.Grow(4 * n)
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		x := r.IntN(26 * 26 * 26)
		b.WriteByte(byte('a' + x/676))
		b.WriteByte(byte('a' + x/26%26))
		b.WriteByte(byte('a' + x%26))
	}
	return b.String()
}

// item makes request number i of the workload. The same spec and i give the same item.
func (s *Spec) item(i int) Item {
	r := rand.New(rand.NewPCG(s.Seed, uint64(i)))
	it := Item{Class: string(s.Workload), MaxTokens: s.MaxTokens, CancelAfter: -1, Seed: uint64(i)}
	user := Message{Role: "user", Content: Words(s.Seed<<20+uint64(i)+1, s.PromptWords)}
	switch s.Workload {
	case SharedPrefix:
		it.Messages = []Message{{Role: "system", Content: Words(s.Seed<<20, s.PrefixWords)}, user}
	case Branching:
		group := uint64(i / s.Branches)
		it.Messages = []Message{{Role: "system", Content: Words(s.Seed<<20+1<<40+group, s.PrefixWords)}, user}
	default:
		it.Messages = []Message{user}
	}
	if s.Workload == Cancel && r.Float64() < s.CancelShare {
		// a third of the cuts come before the first token, the rest somewhere in the answer
		if it.CancelAfter = r.IntN(s.MaxTokens*3/2+1) - s.MaxTokens/2; it.CancelAfter <= 0 {
			it.CancelAfter = 0
			it.CancelDelay = time.Duration(1+r.IntN(200)) * time.Millisecond
		}
	}
	return it
}

// injection makes Mixed's long prompt number i.
func (s *Spec) injection(i int) Item {
	return Item{Class: "injected", MaxTokens: 1, CancelAfter: -1, Seed: uint64(i),
		Messages: []Message{{Role: "user", Content: Words(s.Seed<<20+1<<41+uint64(i), s.InjectWords)}}}
}

func (s *Spec) key(client int) string {
	if s.Tenants <= 0 {
		return ""
	}
	return fmt.Sprintf("tenant-%d", client%s.Tenants)
}
