package backends

// Names of the backends a model can run on, as engine.LoadSpec spells them.
const (
	HIP    = "hip"
	Vulkan = "vulkan"
	CPU    = "cpu"
)

// Kind says how a GPU is attached. It decides the default choice and how memory is counted.
type Kind string

// Kinds of GPU.
const (
	KindUnknown    Kind = ""
	KindDiscrete   Kind = "discrete"
	KindIntegrated Kind = "integrated" // shares memory with the CPU: APUs and the small GPU inside a desktop CPU
)

// Device is one physical GPU (or one partition of a partitioned accelerator). Rows come in the order of Index.
type Device struct {
	// Index is the row's place in hearth's own list, what `--device N` means: discrete before integrated, then by PCI address.
	Index int `json:"index"`
	// PCI is the key. Empty for a Vulkan device whose driver does not say.
	PCI PCI `json:"pci"`
	// Partition tells the compute partitions of one accelerator apart (MI300 in CPX or DPX mode); 0 elsewhere.
	Partition int              `json:"partition,omitempty"`
	VendorID  Optional[uint32] `json:"vendor_id,omitzero"` // 0x1002 for AMD
	DeviceID  Optional[uint32] `json:"device_id,omitzero"`
	Revision  Optional[uint32] `json:"revision,omitzero"`
	// Name is the marketing name, or "AMD GPU 1002:744c" when no table knows it.
	Name string `json:"name"`
	// GFX is the hardware's target ("gfx1100"), whatever an override makes ROCr believe. Empty: unknown.
	GFX  string `json:"gfx,omitempty"`
	Kind Kind   `json:"kind"`
	// UUID is "GPU-" and 16 hex digits of the serial, as ROCr and HIP spell it. Empty for GPUs without a serial.
	UUID   string `json:"uuid,omitempty"`
	Memory Memory `json:"memory"`
	// RenderNode is "/dev/dri/renderD128"; empty without one.
	RenderNode string `json:"render_node,omitempty"`
	// BandwidthGBs is the peak memory bandwidth in 10^9 bytes per second, from the memory bank's width and clock.
	BandwidthGBs Optional[float64] `json:"bandwidth_gbs,omitzero"`
	// ComputeUnits counts CUs; nil faces below mean that the backend does not see the GPU at all.
	ComputeUnits Optional[uint32] `json:"compute_units,omitzero"`
	HIP          *HIPFace         `json:"hip,omitempty"`
	Vulkan       *VulkanFace      `json:"vulkan,omitempty"`
	Problems     []Problem        `json:"problems,omitempty"`
}

// Memory is what the kernel says about a GPU's memory, in bytes.
type Memory struct {
	VRAMTotal    Optional[uint64] `json:"vram_total,omitzero"` // APU: the carve-out that the firmware set aside
	VRAMUsed     Optional[uint64] `json:"vram_used,omitzero"`
	VisibleTotal Optional[uint64] `json:"visible_total,omitzero"` // what the CPU can map; less than VRAMTotal without resizable BAR
	VisibleUsed  Optional[uint64] `json:"visible_used,omitzero"`
	GTTTotal     Optional[uint64] `json:"gtt_total,omitzero"` // system memory that the GPU may map
	GTTUsed      Optional[uint64] `json:"gtt_used,omitzero"`
	// Pool is the size of the memory banks that KFD gives to compute, the total that HIP reports. On APUs it is neither
	// the carve-out nor the GTT size on every kernel.
	Pool Optional[uint64] `json:"pool,omitzero"`
	// LargeBAR says whether all VRAM is visible to the CPU (resizable BAR on).
	LargeBAR Optional[bool] `json:"large_bar,omitzero"`
}

// Block is a reason why a backend must not be used on a device. Code is stable, Text is for people.
type Block struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// Codes of Block.
const (
	BlockNoAccess       = "no-access"         // a device node cannot be opened, see Text for the errno
	BlockNoAgent        = "no-agent"          // KFD or ROCr does not list the GPU
	BlockHidden         = "hidden-by-env"     // *_VISIBLE_DEVICES leaves it out
	BlockNoCode         = "no-code-object"    // the HIP plugin has no kernels for this gfx target
	BlockNoBLAS         = "no-blas-kernels"   // rocBLAS has no kernel files for this gfx target
	BlockProbe          = "probe-failed"      // the probe child died or gave a wrong answer
	BlockQuarantine     = "quarantined"       // the correctness gate failed before
	BlockIntegrated     = "integrated"        // left out of the automatic choice beside a discrete GPU
	BlockSoftwareVulkan = "software-renderer" // a CPU implementation of Vulkan
)

// HIPFace is the GPU as ROCr and HIP see it.
type HIPFace struct {
	// KFDNode is the number in sysfs; UserNode the compacted number that HSA_OVERRIDE_GFX_VERSION_<N> means.
	KFDNode  int           `json:"kfd_node"`
	UserNode Optional[int] `json:"user_node,omitzero"`
	// ROCrIndex is the position among GPU agents before any filter: what ROCR_VISIBLE_DEVICES counts.
	ROCrIndex Optional[int] `json:"rocr_index,omitzero"`
	// HIPIndex is the ordinal after the filters of the environment that was looked at, and Name the engine's device
	// name for it ("ROCm0"). Unknown and empty when the environment hides the GPU.
	HIPIndex Optional[int] `json:"hip_index,omitzero"`
	Name     string        `json:"name,omitempty"`
	// GFX is the target ROCr reports: Device.GFX, or what HSA_OVERRIDE_GFX_VERSION makes of it.
	GFX string `json:"gfx"`
	// Override is the override in force, "11.0.0"; empty without one.
	Override string `json:"override,omitempty"`
	// Support is what the HIP plugin's code objects say; its zero value means that nobody looked.
	Support Support `json:"support,omitzero"`
	Blocked []Block `json:"blocked,omitempty"`
}

// Usable says that nothing speaks against the face. A nil face is not usable.
func (f *HIPFace) Usable() bool { return f != nil && len(f.Blocked) == 0 }

// VulkanFace is the GPU as a Vulkan driver sees it.
type VulkanFace struct {
	// RawIndex is the place in vkEnumeratePhysicalDevices: what GGML_VK_VISIBLE_DEVICES counts.
	RawIndex Optional[int] `json:"raw_index,omitzero"`
	// Name is the engine's device name ("Vulkan0") in the environment of the probe.
	Name       string `json:"name,omitempty"`
	DeviceName string `json:"device_name,omitempty"` // "AMD Radeon RX 7900 XTX (RADV NAVI31)"
	Driver     string `json:"driver,omitempty"`      // "radv", "amdvlk", "amd-proprietary", "llvmpipe"
	DriverInfo string `json:"driver_info,omitempty"` // "Mesa 26.2.6"
	// Type is Vulkan's: "discrete", "integrated", "virtual", "cpu", "other".
	Type    string           `json:"type,omitempty"`
	Memory  Optional[uint64] `json:"memory,omitzero"` // bytes over all device-local heaps
	Blocked []Block          `json:"blocked,omitempty"`
}

// Usable says that nothing speaks against the face. A nil face is not usable.
func (f *VulkanFace) Usable() bool { return f != nil && len(f.Blocked) == 0 }

// SupportClass says how a HIP library covers a GPU.
type SupportClass string

// Support classes, best first. The empty class means that nobody looked.
const (
	SupportNative   SupportClass = "native"   // code for exactly this target
	SupportGeneric  SupportClass = "generic"  // code for the target's generic family, such as gfx11-generic
	SupportSPIRV    SupportClass = "spirv"    // portable code, compiled at load
	SupportOverride SupportClass = "override" // code for a target of the same instruction set, with HSA_OVERRIDE_GFX_VERSION
	SupportNone     SupportClass = "none"     // no code: the first kernel would fail
	SupportUnknown  SupportClass = "unknown"  // the library does not say (kernels kept elsewhere, unreadable)
)

// Support is an answer for one device and one library.
type Support struct {
	Class SupportClass `json:"class"`
	// Target is the entry that would be used, "gfx1100" or "gfx11-generic".
	Target string `json:"target,omitempty"`
	// Override is the value for HSA_OVERRIDE_GFX_VERSION, "10.3.0", with SupportOverride.
	Override string `json:"override,omitempty"`
	// Reason explains the class in one sentence.
	Reason string `json:"reason,omitempty"`
	// BLAS says whether rocBLAS has kernel files for the target; unknown when nobody looked.
	BLAS Optional[bool] `json:"blas,omitzero"`
}
