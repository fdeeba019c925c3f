package kfd

import (
	"encoding/json"

	"hearth/backends"
)

// System is what the kernel says about this machine's GPUs at one moment.
type System struct {
	// Generation is KFD's generation_id; unknown without KFD.
	Generation backends.Optional[uint64] `json:"generation,omitzero"`
	// Nodes are all KFD nodes in numeric order, CPUs too.
	Nodes []Node `json:"nodes,omitempty"`
	// Cards are the AMD display and accelerator functions on the PCI bus, by PCI address, with or without a driver.
	Cards  []Card `json:"cards,omitempty"`
	Driver Driver `json:"driver"`
	// KFD says whether /dev/kfd can be opened.
	KFD Access `json:"kfd"`
	// WSL says that this is a WSL guest: /dev/dxg is there, and KFD will not be.
	WSL bool `json:"wsl,omitempty"`
	// MemTotal and MemAvailable are the system's memory in bytes; TTMLimit what GPUs may map of it (ttm.pages_limit).
	MemTotal     backends.Optional[uint64] `json:"mem_total,omitzero"`
	MemAvailable backends.Optional[uint64] `json:"mem_available,omitzero"`
	TTMLimit     backends.Optional[uint64] `json:"ttm_limit,omitzero"`
	Problems     []backends.Problem        `json:"problems,omitempty"`

	// ids is the distribution's table of marketing names, nil when there is none.
	ids idTable
}

// Driver is the state of the amdgpu kernel module.
type Driver struct {
	// Loaded says that /sys/module/amdgpu exists, built in or as a module.
	Loaded bool `json:"loaded"`
	// Version is that of an out-of-tree (DKMS) module; in-tree modules have none.
	Version string `json:"version,omitempty"`
	// KFDMajor is the character device number from /proc/devices; unknown when the kernel has no KFD.
	KFDMajor backends.Optional[uint64] `json:"kfd_major,omitzero"`
	// Kernel is the kernel's release, such as "6.12.48+deb13-amd64".
	Kernel string `json:"kernel,omitempty"`
}

// Access is the result of opening a device node for reading and writing. Err nil means that it worked.
type Access struct {
	Path string
	Err  error
}

// OK says that the node can be used.
func (a Access) OK() bool { return a.Path != "" && a.Err == nil }

// MarshalJSON writes {"path", "ok", "error", "errno"}.
func (a Access) MarshalJSON() ([]byte, error) {
	out := struct {
		Path  string `json:"path"`
		OK    bool   `json:"ok"`
		Error string `json:"error,omitempty"`
		Errno string `json:"errno,omitempty"`
	}{Path: a.Path, OK: a.OK(), Errno: backends.ErrnoName(backends.ErrnoOf(a.Err))}
	if a.Err != nil {
		out.Error = a.Err.Error()
	}
	return json.Marshal(out)
}

// Node is one KFD topology node.
type Node struct {
	// Number is the folder's name in sysfs.
	Number int `json:"number"`
	// GPUID is 0 for CPUs; unknown when the file cannot be read, as for a GPU that a container's cgroup masks.
	GPUID backends.Optional[uint64] `json:"gpu_id,omitzero"`
	// Name is the driver's name for the chip, often "ip discovery"; never a marketing name.
	Name string `json:"name,omitempty"`
	// Props holds every key of the `properties` file, those this version does not know too.
	Props map[string]uint64 `json:"-"`
	Banks []Bank            `json:"banks,omitempty"`
	Links []Link            `json:"links,omitempty"`
	// Render is the DRM render node and whether it can be opened; Path is empty on CPUs.
	Render   Access             `json:"render,omitzero"`
	Problems []backends.Problem `json:"problems,omitempty"`
}

// Prop returns a key of the properties file; unknown when the kernel does not export it.
func (n Node) Prop(key string) backends.Optional[uint64] {
	if v, ok := n.Props[key]; ok {
		return backends.Some(v)
	}
	return backends.Optional[uint64]{}
}

// IsGPU says that the node has compute units. An APU on old kernels is CPU and GPU at once.
func (n Node) IsGPU() bool { return n.Prop("simd_count").Or(0) > 0 }

// GFX is the hardware's target from gfx_target_version, "gfx1100". Kernels before that key have the PCI id looked up, as
// ROCr does. Empty for CPUs and unknown GPUs.
func (n Node) GFX() string {
	if version := n.Prop("gfx_target_version").Or(0); version > 0 || !n.IsGPU() {
		return backends.GFXName(version)
	}
	m, _ := modelOf(uint32(min(n.Prop("device_id").Or(0), 1<<32-1)))
	return m.gfx
}

// PCI is the address from domain and location_id; empty when the kernel does not export location_id.
func (n Node) PCI() backends.PCI {
	loc, ok := n.Prop("location_id").Get()
	if !ok || !n.IsGPU() {
		return ""
	}
	return backends.PCIOf(uint32(n.Prop("domain").Or(0)), uint32(loc))
}

// Partition numbers the compute partitions of one accelerator (MI300 in CPX or DPX mode) from 0. The kernel puts it
// into the top four bits of location_id.
func (n Node) Partition() int { return int(n.Prop("location_id").Or(0) >> 28 & 0xf) }

// UUID is ROCr's name for the GPU, "GPU-" and 16 hex digits; empty when unique_id is 0 or missing. (ROCr then says
// "GPU-XX", which names nothing.)
func (n Node) UUID() string { return uuidOf(n.Prop("unique_id").Or(0)) }

// ComputeUnits is simd_count over simd_per_cu.
func (n Node) ComputeUnits() backends.Optional[uint32] {
	if per := n.Prop("simd_per_cu").Or(0); per > 0 {
		return backends.Some(uint32(n.Prop("simd_count").Or(0) / per))
	}
	return backends.Optional[uint32]{}
}

// Bank is one memory bank of a node.
type Bank struct {
	// HeapType is 0 system, 1 VRAM all visible to the CPU, 2 VRAM not all visible, 3 GDS, 4 LDS, 5 scratch.
	HeapType    uint64 `json:"heap_type"`
	SizeBytes   uint64 `json:"size_bytes"`
	WidthBits   uint64 `json:"width_bits,omitempty"`
	ClockMaxMHz uint64 `json:"clock_max_mhz,omitempty"`
}

// Values of Bank.HeapType.
const (
	HeapSystem    = 0
	HeapFBPublic  = 1
	HeapFBPrivate = 2
)

// Link is a connection from this node to another.
type Link struct {
	To int `json:"to"`
	// Type is 2 for PCIe, 11 for XGMI; Kind spells it.
	Type         uint64 `json:"type"`
	Weight       uint64 `json:"weight"`
	MaxMBs       uint64 `json:"max_mbs,omitempty"` // MB/s
	NoAtomics    bool   `json:"no_atomics,omitempty"`
	NoP2P        bool   `json:"no_p2p,omitempty"`
	PeerToPeer   bool   `json:"peer_to_peer,omitempty"` // from p2p_links: a direct GPU to GPU path
	NonCoherent  bool   `json:"non_coherent,omitempty"`
	MaxLatencyNs uint64 `json:"max_latency_ns,omitempty"`
}

// Kind spells the link's type.
func (l Link) Kind() string {
	switch l.Type {
	case 1:
		return "HyperTransport"
	case 2:
		return "PCIe"
	case 5:
		return "QPI"
	case 11:
		return "XGMI"
	}
	return "unknown"
}

// Card is an AMD display or accelerator function on the PCI bus, as sysfs shows it.
type Card struct {
	PCI      backends.PCI              `json:"pci"`
	Class    backends.Optional[uint64] `json:"class,omitzero"` // 0x030000 VGA, 0x038000 display, 0x120000 accelerator
	VendorID backends.Optional[uint64] `json:"vendor_id,omitzero"`
	DeviceID backends.Optional[uint64] `json:"device_id,omitzero"`
	Revision backends.Optional[uint64] `json:"revision,omitzero"`
	// Driver is the bound kernel driver, "amdgpu", "vfio-pci"; empty when none is bound.
	Driver string `json:"driver,omitempty"`
	// Path is the card's folder below the root, "sys/bus/pci/devices/0000:03:00.0"; telemetry reads there.
	Path string `json:"path"`
	// Renders are the DRM render nodes, one for each partition, and whether each can be opened.
	Renders []Access `json:"renders,omitempty"`
	// CardNode is "card1".
	CardNode string          `json:"card_node,omitempty"`
	Memory   backends.Memory `json:"memory"`
	UniqueID string          `json:"unique_id,omitempty"` // 16 hex digits
	Product  string          `json:"product,omitempty"`   // product_name, server cards only
	VBIOS    string          `json:"vbios,omitempty"`
	// VRAMVendor is the maker of the memory chips; APUs have none. BoardInfo says that the board_info file exists.
	VRAMVendor string `json:"vram_vendor,omitempty"`
	BoardInfo  bool   `json:"board_info,omitempty"`
	// Runtime is power/runtime_status: "active", or "suspended" for a GPU that a read of its sensors would wake.
	Runtime  string                   `json:"runtime,omitempty"`
	NUMANode backends.Optional[int64] `json:"numa_node,omitzero"`
	PCIe     PCIeLink                 `json:"pcie,omitzero"`
	Problems []backends.Problem       `json:"problems,omitempty"`
}

// PCIeLink is the width in lanes and the speed as the kernel spells it ("16.0 GT/s PCIe").
type PCIeLink struct {
	Speed    string                    `json:"speed,omitempty"`
	Width    backends.Optional[uint64] `json:"width,omitzero"`
	MaxSpeed string                    `json:"max_speed,omitempty"`
	MaxWidth backends.Optional[uint64] `json:"max_width,omitzero"`
	// SlotWidth and SlotSpeed are those of the root port above the card: a card's own upstream switch may report x16
	// while the slot has four lanes.
	SlotSpeed string                    `json:"slot_speed,omitempty"`
	SlotWidth backends.Optional[uint64] `json:"slot_width,omitzero"`
}
