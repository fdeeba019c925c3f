package backends

import "fmt"

// BudgetInput is what is known when memory for a model is planned. All sizes are bytes.
type BudgetInput struct {
	Kind   Kind
	Memory Memory
	// BackendFree is what the backend says is free on the device (hipMemGetInfo, VK_EXT_memory_budget).
	BackendFree Optional[uint64]
	// MemAvailable is /proc/meminfo's figure. It bounds what an integrated GPU may map.
	MemAvailable Optional[uint64]
	// Reserve is system memory to leave alone on an integrated GPU; 0 means DefaultReserve.
	Reserve uint64
	// ComputeBuffer is what the backend will allocate for its graph, beside weights and KV cache.
	ComputeBuffer uint64
}

// DefaultReserve is left to the rest of the system when weights lie in its memory: 2 GiB.
const DefaultReserve = 2 << 30

// Budget is how much weights and KV cache may take on a device.
type Budget struct {
	// Bytes is unknown when nothing that would bound it is known.
	Bytes Optional[uint64] `json:"bytes,omitzero"`
	// Limit names the bound that decided: "backend free", "vram free", "gtt and carve-out free".
	Limit string `json:"limit,omitempty"`
	// Why spells the arithmetic.
	Why string `json:"why"`
}

// BudgetFor plans a device's memory.
//
// Discrete: the smaller of what the backend and the kernel call free, less 5 percent for fragmentation and other
// clients, less the compute buffer. GTT is never added: a driver that spills VRAM to system memory keeps running at a
// tenth of the speed.
//
// Integrated: free carve-out plus free GTT, where the GTT part is bounded by the system memory that is available less a
// reserve, and the whole by what the backend offers (older kernels let HIP use the carve-out only).
func BudgetFor(in BudgetInput) Budget {
	var limit string
	var bytes Optional[uint64]
	switch in.Kind {
	case KindIntegrated:
		bytes, limit = in.integrated()
	default:
		// An unknown kind is counted as discrete: that never plans with system memory.
		bytes, limit = in.discrete()
	}
	n, ok := bytes.Get()
	if !ok {
		return Budget{Why: "neither the kernel nor the backend says how much memory is free"}
	}
	const headroomPercent = 5
	left := n
	if in.Kind != KindIntegrated {
		left = n - n/100*headroomPercent
	}
	left = less(left, in.ComputeBuffer)
	why := fmt.Sprintf("%s %d MiB", limit, n>>20)
	if in.Kind != KindIntegrated {
		why += fmt.Sprintf(" less %d%%", headroomPercent)
	}
	if in.ComputeBuffer > 0 {
		why += fmt.Sprintf(" less a compute buffer of %d MiB", in.ComputeBuffer>>20)
	}
	return Budget{Bytes: Some(left), Limit: limit, Why: why}
}

func (in BudgetInput) discrete() (Optional[uint64], string) {
	vram := free(in.Memory.VRAMTotal, in.Memory.VRAMUsed)
	if least := MinKnown(in.BackendFree, vram); least == in.BackendFree {
		return least, "backend free"
	}
	return vram, "vram free"
}

func (in BudgetInput) integrated() (Optional[uint64], string) {
	carve, hasCarve := free(in.Memory.VRAMTotal, in.Memory.VRAMUsed).Get()
	gtt := free(in.Memory.GTTTotal, in.Memory.GTTUsed)
	limit := "gtt and carve-out free"
	if avail, ok := in.MemAvailable.Get(); ok {
		reserve := in.Reserve
		if reserve == 0 {
			reserve = DefaultReserve
		}
		rest := Some(less(avail, reserve))
		if least := MinKnown(gtt, rest); least != gtt {
			gtt, limit = rest, "system memory available"
		}
	}
	var sum Optional[uint64]
	if mapped, ok := gtt.Get(); ok || hasCarve {
		sum = Some(mapped + carve)
	}
	if least := MinKnown(in.BackendFree, sum); least == in.BackendFree {
		return least, "backend free"
	}
	return sum, limit
}

// free is total less used; unknown when the total is. An unknown use counts as none.
func free(total, used Optional[uint64]) Optional[uint64] {
	t, ok := total.Get()
	if !ok {
		return total
	}
	return Some(less(t, used.Or(0)))
}

func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
