package doctor

import (
	"context"
	"slices"

	"hearth/backends"
	"hearth/backends/kfd"
	"hearth/backends/ldpath"
	"hearth/backends/probe"
	"hearth/backends/vulkan"
)

// machine is one look at a machine and at what its plugins say.
type machine struct {
	System    kfd.System
	SystemErr error // the walk through sysfs was cut off
	Agents    kfd.Agents
	// Devices are the GPUs with all that is known about them; what speaks against a face is in its Blocked.
	Devices []backends.Device
	// Inventory are the Vulkan drivers of the host, Choice the one that workers are given; ChoiceErr says that the
	// setting vulkan_driver cannot be followed.
	Inventory vulkan.Inventory
	Choice    vulkan.Choice
	ChoiceErr error
	// Libs is the host's library search path.
	Libs ldpath.Path
	// Probes and ProbeErrs are by backend: what a plugin's child said, or why there was none. Absent: not tried.
	Probes    map[string]probe.Result
	ProbeErrs map[string]error
}

// look never fails: what cannot be read stays unknown, and a plugin that dies blocks the faces
// it would have served.
func look(ctx context.Context, env Env) *machine {
	s := &machine{Probes: map[string]probe.Result{}, ProbeErrs: map[string]error{}}
	s.System, s.SystemErr = kfd.Read(ctx, env.FS)
	s.Agents = s.System.Agents(env.Environ)
	s.Devices = s.System.Devices(env.Environ)
	s.Inventory = vulkan.Discover(env.FS, env.Environ)
	s.Libs = ldpath.New(env.FS, env.Environ)
	var mesa vulkan.BundleMesa
	if env.Bundle != nil {
		mesa = env.Bundle.Mesa
	}
	s.Choice, s.ChoiceErr = vulkan.Decide(env.VulkanDriver, s.Inventory, mesa, s.GFX())
	s.judgeCode(env.Bundle)
	s.probe(ctx, env)
	return s
}

// probe starts the plugins of the bundle when there is a GPU they could find.
func (s *machine) probe(ctx context.Context, env Env) {
	if env.Probe == nil || !s.HasGPU() {
		return
	}
	if env.Bundle.Has(backends.HIP) && s.Agents.Fatal == nil && s.hipCandidate() {
		r, err := env.Probe(ctx, backends.HIP, nil)
		s.record(backends.HIP, r, err)
	}
	if env.Bundle.Has(backends.Vulkan) && s.Choice.Driver != "" {
		found, err := vulkan.Enumerate(ctx, func(ctx context.Context, extra []string) (probe.Result, error) {
			return env.Probe(ctx, backends.Vulkan, append(slices.Clone(s.Choice.Env), extra...))
		})
		s.Devices = backends.MergeVulkan(s.Devices, found.List)
		s.record(backends.Vulkan, found.First, err)
	}
}

// hipCandidate says that some GPU has code in the plugin; starting it for others would only show them dying.
func (s *machine) hipCandidate() bool {
	return slices.ContainsFunc(s.Devices, func(d backends.Device) bool { return d.HIP.Usable() })
}

func (s *machine) record(backend string, r probe.Result, err error) {
	if err != nil {
		s.ProbeErrs[backend] = err
		return
	}
	s.Probes[backend] = r
	if r.OK() {
		return
	}
	block := backends.Block{Code: backends.BlockProbe, Text: r.Why()}
	for i := range s.Devices { // a plugin that dies takes all its devices along
		d := &s.Devices[i]
		if backend == backends.HIP && d.HIP != nil {
			face := *d.HIP
			face.Blocked = append(slices.Clone(face.Blocked), block)
			d.HIP = &face
		}
		if backend == backends.Vulkan && d.Vulkan != nil {
			face := *d.Vulkan
			face.Blocked = append(slices.Clone(face.Blocked), block)
			d.Vulkan = &face
		}
	}
}

// HasGPU says that an AMD GPU is known to the kernel, on the PCI bus or in KFD's list.
func (s *machine) HasGPU() bool { return len(s.System.Cards) > 0 || len(s.GPUNodes()) > 0 }

// GPUNodes are KFD's GPU nodes.
func (s *machine) GPUNodes() []kfd.Node {
	var out []kfd.Node
	for _, n := range s.System.Nodes {
		if n.IsGPU() {
			out = append(out, n)
		}
	}
	return out
}

// GFX lists the targets of the GPUs, without repetition, integrated ones only when there is nothing else.
func (s *machine) GFX() []string {
	var main, rest []string
	for _, d := range s.Devices {
		if d.GFX == "" {
			continue
		}
		if d.Kind == backends.KindIntegrated {
			rest = append(rest, d.GFX)
		} else {
			main = append(main, d.GFX)
		}
	}
	if len(main) == 0 {
		main = rest
	}
	slices.Sort(main)
	return slices.Compact(main)
}
