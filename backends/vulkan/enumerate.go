package vulkan

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"hearth/backends"
	"hearth/backends/probe"
)

// Prober runs the Vulkan plugin in a child with the given additions to its environment ("KEY=value") and reports it.
type Prober func(ctx context.Context, env []string) (probe.Result, error)

// maxRaw bounds the walk over raw indices: GPUs, their second drivers and software renderers of one machine.
const maxRaw = 16

// Devices is what Enumerate found.
type Devices struct {
	List []backends.VulkanDevice
	// First is the probe without a filter; its findings say why a list is empty.
	First probe.Result
}

// Enumerate lists the devices that the engine's Vulkan plugin sees and finds the raw index of each, the number that
// GGML_VK_VISIBLE_DEVICES counts. The plugin's own list is no help for that: it leaves out software renderers and
// second drivers of one GPU. So the plugin is started once without a filter and then once for each raw index, until
// every device of the first list is placed. The key is the PCI address; devices without one are matched by name.
func Enumerate(ctx context.Context, run Prober) (Devices, error) {
	first, err := run(ctx, nil)
	if err != nil {
		return Devices{First: first}, err
	}
	out := Devices{First: first}
	var pending []probe.Device
	for _, d := range first.Devices {
		if strings.HasPrefix(d.Name, "Vulkan") {
			pending = append(pending, d)
		}
	}
	raw := make([]int, len(pending))
	for i := range raw {
		raw[i] = -1
	}
	for index, left := 0, len(pending); index < maxRaw && left > 0; index++ {
		r, err := run(ctx, []string{"GGML_VK_VISIBLE_DEVICES=" + strconv.Itoa(index)})
		if err != nil {
			return out, err
		}
		if len(r.Devices) == 0 { // beyond the last one
			break
		}
		for i, d := range pending {
			if raw[i] < 0 && same(d, r.Devices[0]) {
				raw[i], left = index, left-1
				break
			}
		}
	}
	for i, d := range pending {
		out.List = append(out.List, faceOf(d, raw[i]))
	}
	// backends.MergeVulkan keeps the first usable driver of a GPU.
	slices.SortStableFunc(out.List, func(a, b backends.VulkanDevice) int { return preference(a.Face.Driver) - preference(b.Face.Driver) })
	return out, nil
}

// preference orders drivers: AMDVLK is no longer developed and slower (AMDVLK #420), so RADV goes first.
func preference(driver string) int {
	switch driver {
	case RADV:
		return 0
	case AMDProprietary:
		return 2
	case AMDVLK:
		return 3
	case LLVMPipe:
		return 4
	}
	return 1
}

// same says whether two probes saw one device. Two drivers of one GPU share the address and differ in driver.
func same(a, b probe.Device) bool {
	if a.PCIID != "" || b.PCIID != "" {
		return a.PCIID == b.PCIID && a.Driver == b.Driver
	}
	return a.Description == b.Description && a.Driver == b.Driver
}

func faceOf(d probe.Device, raw int) backends.VulkanDevice {
	face := backends.VulkanFace{Name: d.Name, DeviceName: d.Description, Driver: driverName(d), Type: typeName(d)}
	if raw >= 0 {
		face.RawIndex = backends.Some(raw)
	}
	if d.MemoryTotal > 0 {
		face.Memory = backends.Some(d.MemoryTotal)
	}
	if face.Driver == LLVMPipe || face.Type == "cpu" {
		face.Blocked = append(face.Blocked, backends.Block{Code: backends.BlockSoftwareVulkan, Text: "a software renderer: the CPU backend is faster"})
	}
	v := backends.VulkanDevice{Face: face}
	if pci, err := backends.ParsePCI(d.PCIID); err == nil {
		v.PCI = pci
	}
	return v
}

// driverName maps Vulkan's driverName to the names of this package.
func driverName(d probe.Device) string {
	switch s := strings.ToLower(d.Driver); {
	case strings.Contains(s, "radv"):
		return RADV
	case strings.Contains(s, "llvmpipe"), strings.Contains(strings.ToLower(d.Description), "llvmpipe"):
		return LLVMPipe
	case strings.Contains(s, "open-source"):
		return AMDVLK
	case strings.Contains(s, "amd proprietary"):
		return AMDProprietary
	case s == "":
		return ""
	}
	return Other
}

func typeName(d probe.Device) string {
	switch d.Type {
	case "igpu":
		return "integrated"
	case "gpu":
		if d.UMA {
			return "integrated"
		}
		return "discrete"
	case "cpu":
		return "cpu"
	}
	return "other"
}
