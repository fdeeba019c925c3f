package survey

import (
	"context"
	"fmt"

	"hearth/backends"
	"hearth/backends/probe"
)

// Candidate is one way to run a model that was seen to work, or the CPU.
type Candidate struct {
	Backend string `json:"backend"` // "hip", "vulkan", "cpu"
	// Device is what the backend calls the GPU in Env, where it is the only one: "ROCm0" or "Vulkan0"; empty for the CPU.
	Device string `json:"device,omitempty"`
	// WantPCI is the address a started worker must report.
	WantPCI backends.PCI `json:"want_pci,omitempty"`
	// Env is the worker's whole environment but for what the engine bundle adds.
	Env backends.Environ `json:"-"`
	// Free and Total are the backend's own figures for the device's memory, in bytes.
	Free  backends.Optional[uint64] `json:"free,omitzero"`
	Total backends.Optional[uint64] `json:"total,omitzero"`
}

// Rejected is a backend that was passed over, and why.
type Rejected struct {
	Backend string `json:"backend"`
	Reason  string `json:"reason"`
	// Result is the child that showed it, nil when none ran.
	Result *probe.Result `json:"result,omitempty"`
}

// Confirm tries each backend of a choice on its device, in order: a child loads the plugin in a worker's environment,
// must sit on the wanted GPU, and must compute matrix products rightly. What fails is logged and returned. With
// allowCPU the CPU stands last; without it the list may be empty. override is a value for HSA_OVERRIDE_GFX_VERSION that
// the user asked for, else empty. The error is ctx's alone.
func (s *Surveyor) Confirm(ctx context.Context, choice backends.Choice, override string, allowCPU bool) ([]Candidate, []Rejected, error) {
	var good []Candidate
	var bad []Rejected
	for _, backend := range choice.Backends {
		if backend == backends.CPU {
			allowCPU = true
			continue
		}
		c, rejected := s.try(ctx, choice.Device, backend, override)
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		if rejected != nil {
			bad = append(bad, *rejected)
			s.cfg.Logger.Warn("backend passed over", "backend", backend, "device", choice.Device.PCI, "name", choice.Device.Name, "reason", rejected.Reason)
			continue
		}
		good = append(good, c)
	}
	if allowCPU {
		env, err := backends.WorkerEnv(s.cfg.Environ, backends.Device{}, backends.CPU, "")
		if err != nil {
			return nil, nil, err
		}
		good = append(good, Candidate{Backend: backends.CPU, Env: env})
		if len(bad) > 0 && len(good) == 1 {
			s.cfg.Logger.Warn("no GPU backend works, models run on the CPU", "device", choice.Device.PCI, "name", choice.Device.Name)
		}
	}
	return good, bad, nil
}

// try probes one backend on one device.
func (s *Surveyor) try(ctx context.Context, d backends.Device, backend, override string) (Candidate, *Rejected) {
	reject := func(result *probe.Result, format string, args ...any) (Candidate, *Rejected) {
		return Candidate{}, &Rejected{Backend: backend, Reason: fmt.Sprintf(format, args...), Result: result}
	}
	plugin, name := s.cfg.HIPPlugin, "ROCm0"
	if backend == backends.Vulkan {
		plugin, name, override = s.cfg.VulkanPlugin, "Vulkan0", ""
	}
	if plugin == "" || s.cfg.Command == nil {
		return reject(nil, "the engine bundle has no plugin for it")
	}
	env, err := backends.WorkerEnv(s.cfg.Environ, d, backend, override)
	if err != nil {
		return reject(nil, "%v", err)
	}
	args := []string{"--plugin", plugin, "--device", name}
	if s.cfg.Unproven {
		s.cfg.Logger.Warn("backend is taken without a check of what it computes", "backend", backend, "device", d.PCI, "name", d.Name)
	} else {
		args = append(args, "--gemm")
	}
	r, err := s.child(ctx, env, args...)
	switch {
	case err != nil:
		return reject(nil, "%v", err)
	case !r.OK():
		return reject(&r, "%s", r.Why())
	case len(r.Devices) == 0:
		return reject(&r, "the backend lists no device in a worker's environment")
	case len(r.Devices) > 1:
		return reject(&r, "the backend lists %d devices in an environment for one", len(r.Devices))
	}
	found := r.Devices[0]
	if d.PCI != "" && found.PCIID != "" && found.PCIID != string(d.PCI) {
		return reject(&r, "the backend sits on %s instead of %s", found.PCIID, d.PCI)
	}
	if len(r.Gemms) == 0 && !s.cfg.Unproven {
		return reject(&r, "the backend computed nothing")
	}
	c := Candidate{Backend: backend, Device: found.Name, WantPCI: d.PCI, Env: append(env, s.cfg.VulkanEnv...)}
	if found.PCIID == "" {
		c.WantPCI = "" // the driver does not say where it sits, so a worker cannot be held to it
	}
	if found.MemoryTotal > 0 {
		c.Free, c.Total = backends.Some(found.MemoryFree), backends.Some(found.MemoryTotal)
	}
	return c, nil
}
