package supervisor

import (
	"fmt"
	"log/slog"
	"time"
)

// Config says how a Pool behaves. The zero value of each field is replaced by the default named beside it.
type Config struct {
	// RuntimeDir holds the workers' sockets, each in its own folder of mode 0700. "": the system's temporary folder.
	// A unix socket's path may have 107 bytes, 40 of which the pool needs.
	RuntimeDir string
	// Env is hearth's own environment; workers see only the harmless part of it.
	Env []string
	// MaxResident bounds loaded models; idle ones are unloaded to make room. 0: 3.
	MaxResident int
	// Capacity returns the bytes that models may take on a device, false when unknown. Models whose Plan states Needs
	// are unloaded, least recently used first, until a new one fits. nil: memory is not planned.
	Capacity func(device string) (uint64, bool)
	// KeepAlive is how long an unused model stays loaded. 0: 5 minutes; negative: until something else needs the room.
	KeepAlive time.Duration
	// AcquireTimeout bounds waiting for a model: for room, its load, or its restart. 0: 10 minutes (60 GB from a hard disk).
	AcquireTimeout time.Duration
	// RestartWait bounds how long a new request waits while the worker restarts. 0: 30 s.
	RestartWait time.Duration
	// StopGrace is how long a worker may take to leave after SIGTERM. 0: 5 s.
	StopGrace time.Duration
	// StartTimeout is how long a fresh process may take to open its socket. 0: 30 s.
	StartTimeout time.Duration
	// LoadStall is how long a load may go without progress. 0: 10 minutes (a first Vulkan pipeline takes 10 s here, but a
	// network file system may hang for long).
	LoadStall time.Duration
	// HealthEvery is the pause between health checks. 0: 2 s.
	HealthEvery time.Duration
	// Watchdog is the least age of a step that counts as hung; it must also be 10 times what was predicted. 0: 30 s.
	Watchdog time.Duration
	// FaultsBeforeFallback is how many crashes of the backend's doing move a model to its next plan. 0: 2.
	FaultsBeforeFallback int
	// MaxCrashes is how many crashes in a row (without HealthyAfter between them) make a model fail. 0: 6.
	MaxCrashes int
	// HealthyAfter is the age at which a worker's crash no longer counts as one in a row. 0: 1 minute.
	HealthyAfter time.Duration
	// FailedFor is how long a model that crashed MaxCrashes times is refused. 0: 30 s.
	FailedFor time.Duration
	// Logger receives the pool's events and the workers' stderr (at debug). nil: discarded.
	Logger *slog.Logger
}

// Validate names the first bad field.
func (c *Config) Validate() error {
	switch {
	case c.MaxResident < 0:
		return fmt.Errorf("max resident models must not be negative, is %d", c.MaxResident)
	case c.AcquireTimeout < 0 || c.RestartWait < 0 || c.StopGrace < 0 || c.StartTimeout < 0 || c.LoadStall < 0 ||
		c.HealthEvery < 0 || c.Watchdog < 0 || c.HealthyAfter < 0 || c.FailedFor < 0:
		return fmt.Errorf("the supervisor's times must not be negative")
	case c.FaultsBeforeFallback < 0 || c.MaxCrashes < 0:
		return fmt.Errorf("the supervisor's crash limits must not be negative")
	}
	return nil
}

func (c *Config) withDefaults() Config {
	d := *c
	or := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	or(&d.KeepAlive, 5*time.Minute)
	or(&d.AcquireTimeout, 10*time.Minute)
	or(&d.RestartWait, 30*time.Second)
	or(&d.StopGrace, 5*time.Second)
	or(&d.StartTimeout, 30*time.Second)
	or(&d.LoadStall, 10*time.Minute)
	or(&d.HealthEvery, 2*time.Second)
	or(&d.Watchdog, 30*time.Second)
	or(&d.HealthyAfter, time.Minute)
	or(&d.FailedFor, 30*time.Second)
	if d.MaxResident == 0 {
		d.MaxResident = 3
	}
	if d.FaultsBeforeFallback == 0 {
		d.FaultsBeforeFallback = 2
	}
	if d.MaxCrashes == 0 {
		d.MaxCrashes = 6
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return d
}

// backoff is the pause before restart number n after n crashes in a row: none for the first, so that a stream barely
// pauses, then 250 ms doubled up to 30 s.
func backoff(n int) time.Duration {
	if n <= 1 {
		return 0
	}
	d := 250 * time.Millisecond
	for range n - 2 {
		if d *= 2; d >= 30*time.Second {
			return 30 * time.Second
		}
	}
	return d
}
