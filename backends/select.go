package backends

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// SelectOptions says which device is wanted. The zero value lets hearth choose.
type SelectOptions struct {
	// Selector names a device in one of these forms; empty and "auto" choose.
	//
	//	1                      index in hearth's list
	//	0000:03:00.0, 03:00.0  PCI address
	//	GPU-a1ffc9d1799c317f   UUID, or the start of one
	//	gfx1100                gfx target
	//	ROCm0, Vulkan1         a backend's device name; that backend is then the only candidate
	//	7900 xtx               part of the marketing name, in any case
	//	cpu                    no GPU
	Selector string
	// Backend restricts the candidates to "hip", "vulkan" or "cpu"; empty and "auto" take all.
	Backend string
	// AllowIntegrated lets the automatic choice take an integrated GPU even when a discrete one can run. A selector that
	// names an integrated GPU needs no permission.
	AllowIntegrated bool
}

// Choice is a device and the backends that may run a model on it, first choice first. Measured speed may reorder them
// later (bench); the order here is HIP, Vulkan.
type Choice struct {
	// Device is the zero Device when Backends is CPU alone.
	Device   Device   `json:"device"`
	Backends []string `json:"backends"`
	// Why says in one sentence how the choice came about.
	Why string `json:"why"`
}

// Select picks a device that can run a model. It never returns one that cannot: what speaks against a device comes back
// as *UnusableError (the one that was named) or *NoDeviceError (none is left). A selector that fits several devices is
// an *AmbiguousError, one that fits none a *NotFoundError, one that cannot be read too.
func Select(devices []Device, opt SelectOptions) (Choice, error) {
	selector, backend := strings.TrimSpace(opt.Selector), strings.ToLower(opt.Backend)
	if backend == "auto" {
		backend = ""
	}
	if strings.EqualFold(selector, CPU) || (backend == CPU && automatic(selector)) {
		return Choice{Backends: []string{CPU}, Why: "the CPU was asked for"}, nil
	}
	if automatic(selector) {
		return choose(devices, backend, opt.AllowIntegrated)
	}
	found, named := match(devices, selector)
	switch {
	case len(found) == 0:
		return Choice{}, &NotFoundError{Selector: selector, Known: devices}
	case len(found) > 1:
		return Choice{}, &AmbiguousError{Selector: selector, Candidates: found}
	case named != "" && backend != "" && named != backend:
		return Choice{}, &UnusableError{Device: found[0], Backend: backend, Blocks: []Block{{BlockNoAgent,
			fmt.Sprintf("%s is a device of the %s backend", selector, named)}}}
	}
	d := found[0]
	usable, unusable := candidates(d, cmp.Or(named, backend))
	if unusable != nil {
		return Choice{}, unusable
	}
	return Choice{Device: d, Backends: usable, Why: fmt.Sprintf("%q names it", selector)}, nil
}

func automatic(selector string) bool { return selector == "" || strings.EqualFold(selector, "auto") }

// choose takes the best device that can run: discrete before unknown before integrated, then the larger VRAM, then list
// order. With a discrete GPU in the machine an integrated one is left out, even when the discrete one cannot run: its
// owner would rather hear why than wait for tokens from two compute units. AllowIntegrated lifts that, and memory decides.
func choose(devices []Device, backend string, allowIntegrated bool) (Choice, error) {
	type option struct {
		device   Device
		backends []string
	}
	var options []option
	none := &NoDeviceError{}
	// A discrete GPU without any face belongs to another system (passed through to a guest) or has no driver.
	hasDiscrete := slices.ContainsFunc(devices, func(d Device) bool {
		return d.Kind == KindDiscrete && (d.HIP != nil || d.Vulkan != nil)
	})
	for _, d := range devices {
		usable, unusable := candidates(d, backend)
		if unusable == nil && d.Kind == KindIntegrated && hasDiscrete && !allowIntegrated {
			unusable = &UnusableError{Device: d, Backend: backend, Blocks: []Block{{BlockIntegrated,
				"integrated GPUs are left out while a discrete one is there; name it, or allow them"}}}
		}
		if unusable != nil {
			none.Rejected = append(none.Rejected, unusable)
			continue
		}
		options = append(options, option{d, usable})
	}
	if len(options) == 0 {
		return Choice{}, none
	}
	best := slices.MinFunc(options, func(a, b option) int {
		kinds := cmp.Compare(kindRank(a.device.Kind), kindRank(b.device.Kind))
		if allowIntegrated {
			kinds = 0
		}
		return cmp.Or(kinds, cmp.Compare(size(b.device), size(a.device)), cmp.Compare(a.device.Index, b.device.Index))
	})
	why := "the only GPU that can run"
	if len(options) > 1 {
		why = fmt.Sprintf("best of %d GPUs that can run", len(options))
		if best.device.Kind == KindDiscrete {
			why += ": discrete before integrated, then by memory"
		}
	}
	return Choice{Device: best.device, Backends: best.backends, Why: why}, nil
}

// size is the memory a device is ranked by: VRAM, or for an integrated GPU the carve-out and what it may map.
func size(d Device) uint64 {
	if d.Kind == KindIntegrated {
		return d.Memory.VRAMTotal.Or(0) + d.Memory.GTTTotal.Or(0)
	}
	return cmp.Or(d.Memory.VRAMTotal.Or(0), d.Memory.Pool.Or(0))
}

// candidates lists the backends that can run on d, or says why there is none. backend restricts them when not empty.
func candidates(d Device, backend string) ([]string, *UnusableError) {
	var usable []string
	no := &UnusableError{Device: d, Backend: backend}
	if backend == "" || backend == HIP {
		if d.HIP.Usable() {
			usable = append(usable, HIP)
		} else if d.HIP != nil {
			no.Blocks = append(no.Blocks, prefixed("HIP", d.HIP.Blocked)...)
		} else {
			no.Blocks = append(no.Blocks, Block{BlockNoAgent, "HIP: KFD does not list this GPU"})
		}
	}
	if backend == "" || backend == Vulkan {
		if d.Vulkan.Usable() {
			usable = append(usable, Vulkan)
		} else if d.Vulkan != nil {
			no.Blocks = append(no.Blocks, prefixed("Vulkan", d.Vulkan.Blocked)...)
		} else {
			no.Blocks = append(no.Blocks, Block{BlockNoAgent, "Vulkan: no driver lists this GPU"})
		}
	}
	if len(usable) > 0 {
		return usable, nil
	}
	return nil, no
}

func prefixed(who string, blocks []Block) []Block {
	out := make([]Block, len(blocks))
	for i, b := range blocks {
		out[i] = Block{b.Code, who + ": " + b.Text}
	}
	return out
}

// match finds the devices that a selector fits. named is the backend when the selector is a backend's device name.
func match(devices []Device, selector string) (found []Device, named string) {
	filter := func(keep func(Device) bool) []Device {
		var out []Device
		for _, d := range devices {
			if keep(d) {
				out = append(out, d)
			}
		}
		return out
	}
	lower := strings.ToLower(selector)
	if n, err := strconv.Atoi(selector); err == nil {
		// A number that is no index ("7900") may still be part of a name.
		if byIndex := filter(func(d Device) bool { return d.Index == n }); len(byIndex) > 0 {
			return byIndex, ""
		}
	}
	if addr, err := ParsePCI(selector); err == nil {
		return filter(func(d Device) bool { return d.PCI == addr }), ""
	}
	if uuid, ok := strings.CutPrefix(lower, "gpu-"); ok && uuid != "" {
		return filter(func(d Device) bool { return strings.HasPrefix(strings.ToLower(d.UUID), lower) }), ""
	}
	if strings.HasPrefix(lower, "gfx") {
		return filter(func(d Device) bool { return d.GFX == lower }), ""
	}
	if backend := namesBackend(lower); backend != "" {
		return filter(func(d Device) bool {
			if backend == HIP {
				return d.HIP != nil && strings.ToLower(d.HIP.Name) == strings.Replace(lower, "hip", "rocm", 1)
			}
			return d.Vulkan != nil && strings.ToLower(d.Vulkan.Name) == lower
		}), backend
	}
	return filter(func(d Device) bool {
		return lower != "" && (strings.Contains(strings.ToLower(d.Name), lower) ||
			d.Vulkan != nil && strings.Contains(strings.ToLower(d.Vulkan.DeviceName), lower))
	}), ""
}

// namesBackend says which backend a lower-case device name such as "rocm0" belongs to, "" for none.
func namesBackend(name string) string {
	// Compiled here, as packages hold no mutable variables; selection is not a hot path.
	m := regexp.MustCompile(`^(rocm|hip|vulkan)\d+$`).FindStringSubmatch(name)
	switch {
	case m == nil:
		return ""
	case m[1] == "vulkan":
		return Vulkan
	}
	return HIP
}
