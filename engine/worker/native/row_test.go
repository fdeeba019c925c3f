package native

import (
	"testing"

	"hearth/engine"
)

// TestMinKeepReachesTheSampler: the kernel's filters keep one token, so that more are the chain's.
func TestMinKeepReachesTheSampler(t *testing.T) {
	if c := chain(&engine.Sampling{Temperature: 1, TopP: 0.1, MinKeep: 3}); c == nil || c.MinKeep != 3 {
		t.Errorf("chain %+v", c)
	}
	if c := chain(&engine.Sampling{Temperature: 1, TopP: 0.1, MinKeep: 1}); c != nil {
		t.Errorf("keeping one token needs no chain, got %+v", c)
	}
}
