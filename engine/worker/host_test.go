package worker

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
		lost, partsLost bool
		part            int64
		on              bool
	}{
		"works": {on: true}, "loads do nothing": {lost: true}, "parts do nothing": {partsLost: true, part: 1 << 20},
		"parts are not used": {partsLost: true, on: true}, "parts": {part: 1 << 20, on: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeModel(smallConfig())
			m.loadLost, m.partsLost = c.lost, c.partsLost
			cfg := m.cfg
			cfg.Host.Bytes, cfg.Host.PartBytes = 1<<20, c.part
			features, _, err := selfTest(m, &cfg)
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
			if (cfg.Host.Range > 0) != (c.on && c.part > 0) {
				t.Errorf("a run of cells takes %v", cfg.Host.Range)
			}
		})
	}
}

// On a device whose memory is another one, what moves take is measured: each, for each run of cells and for each token.
func TestMovesAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeModel(batch.Config{Cells: 8192, Context: 4096, Sequences: 8, Parking: 8, Chunk: 256, Outputs: 8})
		m.cfg.Host = batch.Host{Bytes: 1 << 20, PartBytes: 1 << 10}
		m.async, m.copies = true, true
		m.decode = func(rows []batch.Row) { <-time.After(time.Duration(len(rows)) * 100 * time.Microsecond) }
		st, err := prepareLayout(t.Context(), m, m.cfg, time.Now().Add(time.Minute), false, testLog(t), func(string, float64) {})
		if err != nil {
			t.Fatal(err)
		}
		near := func(got, want time.Duration) bool { return got > want*95/100 && got < want*105/100 }
		if h := st.cfg.Host; !near(h.Move, 2050*time.Microsecond) || !near(h.Range, 2*time.Millisecond) || !near(h.Save, 10*time.Microsecond) || !near(h.Load, 10*time.Microsecond) {
			t.Errorf("%+v", h)
		}
		if n := m.sim.Saved(); n > 0 {
			t.Errorf("%d tokens are left in host memory", n)
		}
	})
}
