package telemetry

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/sysroot"
)

// Config of a Sampler.
type Config struct {
	// Root is read with a deadline on each file (Limits). Required.
	Root sysroot.FS
	// Limits bound the reads; zero values are sysroot's defaults.
	Limits sysroot.Limits
	// Interval between samples in Run; 0: DefaultInterval.
	Interval time.Duration
	// Budget is how long one sample of all cards may take; a card that needs longer gives what it has. 0: DefaultBudget.
	Budget time.Duration
	// Logger hears of spills and of cards that stop answering, once for each change. Required.
	Logger *slog.Logger
}

// Defaults of Config.
const (
	DefaultInterval = 2 * time.Second
	DefaultBudget   = time.Second
)

const (
	// spillThreshold is how far GTT use must rise above its lowest before it counts as a spill: drivers keep some tens of
	// MiB there anyway, and staging buffers for a model's load come and go.
	spillThreshold = 256 << 20
	// fullPercent is the VRAM use from which a rise of GTT is taken for a spill.
	fullPercent = 95
)

// Sampler reads cards, keeps the newest readings and watches for VRAM that spills to system memory.
type Sampler struct {
	cfg   Config
	root  sysroot.FS
	cards []target

	sampling sync.Mutex // one sample at a time
	mu       sync.Mutex // guards the fields below
	latest   []Reading
	lowGTT   map[backends.PCI]uint64
	alarm    map[backends.PCI]bool
}

type target struct {
	card kfd.Card
	name string
	kind backends.Kind
}

// New makes a Sampler for the cards in a machine that a driver is bound to. rows give names and kinds.
func New(cfg Config, cards []kfd.Card, rows []backends.Device) *Sampler {
	s := &Sampler{cfg: cfg, root: sysroot.Bounded(cfg.Root, cfg.Limits), lowGTT: map[backends.PCI]uint64{}, alarm: map[backends.PCI]bool{}}
	s.cfg.Interval = cmp.Or(cfg.Interval, DefaultInterval)
	s.cfg.Budget = cmp.Or(cfg.Budget, DefaultBudget)
	for _, c := range cards {
		if c.Driver != "amdgpu" {
			continue
		}
		t := target{card: c, name: string(c.PCI)}
		if i := slices.IndexFunc(rows, func(d backends.Device) bool { return d.PCI == c.PCI }); i >= 0 {
			t.name, t.kind = rows[i].Name, rows[i].Kind
		}
		s.cards = append(s.cards, t)
	}
	return s
}

// Run samples until ctx ends.
func (s *Sampler) Run(ctx context.Context) {
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	for {
		s.Sample(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Latest returns the newest readings, in the order of the cards, none before the first sample.
func (s *Sampler) Latest() []Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.latest)
}

// Sample reads all cards now, side by side, and returns within the budget and one read's timeout.
func (s *Sampler) Sample(ctx context.Context) []Reading {
	s.sampling.Lock()
	defer s.sampling.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Budget)
	defer cancel()
	readings := make([]Reading, len(s.cards))
	var wg sync.WaitGroup
	for i, t := range s.cards {
		wg.Go(func() { readings[i] = read(ctx, s.root, t.card, t.name) })
	}
	wg.Wait()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range readings {
		readings[i].At = now
		s.watch(&readings[i], s.cards[i].kind)
	}
	s.latest = readings
	return slices.Clone(readings)
}

// watch compares GTT use with the lowest seen and raises the alarm when a full card maps much more.
func (s *Sampler) watch(r *Reading, kind backends.Kind) {
	used, ok1 := r.Memory.GTTUsed.Get()
	vram, ok2 := r.Memory.VRAMUsed.Get()
	total, ok3 := r.Memory.VRAMTotal.Get()
	if kind != backends.KindDiscrete || !ok1 || !ok2 || !ok3 || total == 0 {
		return
	}
	low, seen := s.lowGTT[r.PCI]
	if !seen || used < low {
		low = used
		s.lowGTT[r.PCI] = low
	}
	r.Spilled = backends.Some[uint64](0)
	spills := used-low >= spillThreshold && vram >= total/100*fullPercent
	if spills {
		r.Spilled = backends.Some(used - low)
	}
	if spills == s.alarm[r.PCI] {
		return
	}
	s.alarm[r.PCI] = spills
	if spills {
		s.cfg.Logger.Warn("VRAM is full and spills to system memory, expect a tenth of the speed",
			"device", r.PCI, "name", r.Name, "spilled_bytes", used-low, "vram_used_bytes", vram, "vram_total_bytes", total)
	} else {
		s.cfg.Logger.Info("VRAM no longer spills to system memory", "device", r.PCI, "name", r.Name)
	}
}
