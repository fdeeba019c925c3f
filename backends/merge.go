package backends

import (
	"cmp"
	"slices"
)

// Order sorts rows into list order and numbers them: discrete GPUs, then those of unknown kind, then integrated ones; by
// PCI address and partition within. The order does not depend on the order of discovery, so it survives reboots that
// swap KFD nodes.
func Order(rows []Device) []Device {
	slices.SortStableFunc(rows, func(a, b Device) int {
		return cmp.Or(cmp.Compare(kindRank(a.Kind), kindRank(b.Kind)), comparePCI(a.PCI, b.PCI), cmp.Compare(a.Partition, b.Partition))
	})
	for i := range rows {
		rows[i].Index = i
	}
	return rows
}

func kindRank(k Kind) int {
	switch k {
	case KindDiscrete:
		return 0
	case KindIntegrated:
		return 2
	}
	return 1
}

func comparePCI(a, b PCI) int {
	switch {
	case a == b:
		return 0
	case a == "": // rows without an address last
		return 1
	case b == "" || a.Less(b):
		return -1
	}
	return 1
}

// VulkanDevice is one physical device of a Vulkan driver, as a probe reports it.
type VulkanDevice struct {
	PCI      PCI              `json:"pci,omitempty"` // empty when the driver lacks VK_EXT_pci_bus_info
	VendorID Optional[uint32] `json:"vendor_id,omitzero"`
	DeviceID Optional[uint32] `json:"device_id,omitzero"`
	Face     VulkanFace       `json:"face"`
}

// MergeVulkan gives each row its Vulkan face, matched by PCI address alone. When two drivers offer one GPU (RADV beside
// AMDVLK) the first usable one is kept, as the drivers are given in the order of preference. A device that no row has
// becomes a row of its own; software renderers do too, blocked, so that a list shows why there is nothing better.
// The result is a new slice.
func MergeVulkan(rows []Device, devices []VulkanDevice) []Device {
	rows = slices.Clone(rows)
	for _, v := range devices {
		face := v.Face
		face.Blocked = slices.Clone(face.Blocked)
		if face.Type == "cpu" && !slices.ContainsFunc(face.Blocked, func(b Block) bool { return b.Code == BlockSoftwareVulkan }) {
			face.Blocked = append(face.Blocked, Block{BlockSoftwareVulkan, face.DeviceName + " runs on the CPU"})
		}
		matched := false
		for i := range rows {
			if v.PCI == "" || rows[i].PCI != v.PCI {
				continue
			}
			matched = true
			if !rows[i].Vulkan.Usable() {
				rows[i].Vulkan = &face
			}
			if rows[i].Kind == KindUnknown {
				rows[i].Kind = kindOfVulkan(face.Type)
			}
		}
		if !matched {
			rows = append(rows, Device{PCI: v.PCI, VendorID: v.VendorID, DeviceID: v.DeviceID, Name: face.DeviceName,
				Kind: kindOfVulkan(face.Type), Vulkan: &face})
		}
	}
	return Order(rows)
}

func kindOfVulkan(t string) Kind {
	switch t {
	case "discrete":
		return KindDiscrete
	case "integrated":
		return KindIntegrated
	}
	return KindUnknown
}
