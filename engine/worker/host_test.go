package worker

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"hearth/engine/batch"
)

// hostConfig is a pool that two conversations fill, and host memory for many.
func hostConfig() batch.Config {
	cfg := batch.Config{Cells: 512, Context: 256, Sequences: 8, Parking: 16, Chunk: 64, Outputs: 8}
	cfg.Host = batch.Host{Bytes: 100000, EntryBytes: 30, TokenBytes: 10, Save: 1, Load: 1}
	return cfg
}

// talk changes between conversations, two at a time, and checks every answer. It returns how many tokens were cached of the last
// round.
func talk(t *testing.T, r *rig, rounds int) (cached int64) {
	t.Helper()
	for round := range rounds {
		cached = 0
		for i := 0; i < 8; i += 2 {
			ids := [2]uint64{}
			for k := range ids {
				ids[k] = r.submit(request(prompt(150+10*round, 100*(i+k)), 20))
			}
			for k, id := range ids {
				o := r.result(id)
				if !slices.Equal(o.tokens[0], truth(prompt(150+10*round, 100*(i+k)), 20)) {
					t.Fatalf("round %d conversation %d: wrong answer, %v", round, i+k, o.failed)
				}
				cached += o.usage.CachedTokens
			}
		}
	}
	return cached
}

func TestConversationsComeBackFromHostMemory(t *testing.T) {
	m := newFakeModel(hostConfig())
	r := newRig(t, m)
	if cached := talk(t, r, 4); cached < 8*150 {
		t.Errorf("%d tokens were cached in the last round", cached)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.stats; s.HostLoads == 0 || s.HostSaves < s.HostLoads || s.HostBytes == 0 || s.HostBytes > s.HostLimit {
		t.Errorf("%+v", s)
	}
}

// TestFailedSaveIsForgotten has no memory for every third save: what is lost is computed again.
func TestFailedSaveIsForgotten(t *testing.T) {
	m := newFakeModel(hostConfig())
	var saves atomic.Int64
	m.saveFails = func() bool { return saves.Add(1)%3 == 0 }
	r := newRig(t, m)
	talk(t, r, 4)
	if saves.Load() < 6 {
		t.Errorf("%d saves", saves.Load())
	}
}

// TestFailedLoadEndsTheLoop: mirror and memory differ from then on.
func TestFailedLoadEndsTheLoop(t *testing.T) {
	m := newFakeModel(hostConfig())
	r := newRig(t, m)
	talk(t, r, 1)
	m.mu.Lock()
	m.decode = func([]batch.Row) { m.loadFails = true }
	m.mu.Unlock()
	for i := range 8 {
		r.submit(request(prompt(160, 100*i), 20))
	}
	err := <-r.ran
	r.ran <- err
	if !errors.Is(err, ErrBackend) {
		t.Fatal(err)
	}
}

func TestSelfTestOfHostMemory(t *testing.T) {
	for name, c := range map[string]struct {
		lost bool
		on   bool
	}{"works": {false, true}, "loads do nothing": {true, false}} {
		t.Run(name, func(t *testing.T) {
			m := newFakeModel(smallConfig())
			m.loadLost = c.lost
			cfg := m.cfg
			cfg.Host.Bytes = 1 << 20
			features, err := selfTest(m, &cfg)
			if err != nil {
				t.Fatal(err)
			}
			f := features[len(features)-1]
			if f.Name != featureHost || f.On != c.on || f.On != (f.Reason == "") || (cfg.Host.Bytes > 0) != c.on {
				t.Errorf("%+v, %+v", f, cfg.Host)
			}
			if c.on && (cfg.Host.TokenBytes != 10 || cfg.Host.EntryBytes != 30 || cfg.Host.Move <= 0 || cfg.Host.Save <= 0) {
				t.Errorf("%+v", cfg.Host)
			}
		})
	}
}
