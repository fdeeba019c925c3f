package backends

import (
	"slices"
	"strconv"
	"strings"
)

// Environ is a process environment, "KEY=value" strings as os.Environ gives them.
type Environ []string

// Lookup returns the value of key, and whether it is set. Where a key stands twice the first counts, as in getenv(3).
func (e Environ) Lookup(key string) (string, bool) {
	for _, kv := range e {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v, true
		}
	}
	return "", false
}

// Variables that choose or disguise GPUs. A worker must see none of them but those that WorkerEnv sets, else two
// filters stack up (ROCR_VISIBLE_DEVICES=1 with HIP_VISIBLE_DEVICES=1 leaves nothing) or a device order changes.
const (
	envROCR     = "ROCR_VISIBLE_DEVICES"
	envHIP      = "HIP_VISIBLE_DEVICES"
	envCUDA     = "CUDA_VISIBLE_DEVICES"
	envVulkan   = "GGML_VK_VISIBLE_DEVICES"
	envOverride = "HSA_OVERRIDE_GFX_VERSION"
)

func filterVariables() []string {
	return []string{envROCR, envHIP, envCUDA, envVulkan, envOverride,
		"GPU_DEVICE_ORDINAL", "MESA_VK_DEVICE_SELECT", "MESA_VK_DEVICE_SELECT_FORCE_DEFAULT_DEVICE", "DRI_PRIME"}
}

// Unfiltered returns environ without the variables that choose, reorder or disguise GPUs. Probes that enumerate devices
// run in it, so that the raw indices they find are the ones a worker counts.
func Unfiltered(environ Environ) Environ {
	drop := filterVariables()
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		key, _, _ := strings.Cut(kv, "=")
		return slices.Contains(drop, key) || strings.HasPrefix(key, envOverride+"_")
	})
}

// WorkerEnv is the environment of a worker that must see exactly d through backend. It starts from base, drops every
// variable that filters GPUs, and sets the one that counts. override, when not empty, is a value for
// HSA_OVERRIDE_GFX_VERSION ("11.0.0") and is set for d's node alone, so that no other GPU is disguised with it.
// A device without the index that the backend counts by is an *UnusableError.
func WorkerEnv(base Environ, d Device, backend, override string) (Environ, error) {
	env := append(Unfiltered(base), "GGML_NO_BACKTRACE=1")
	switch backend {
	case HIP:
		if d.HIP == nil || !d.HIP.ROCrIndex.Known() {
			return nil, &UnusableError{Device: d, Backend: HIP, Blocks: []Block{{BlockNoAgent, "ROCr does not list this GPU"}}}
		}
		env = append(env, envROCR+"="+strconv.Itoa(d.HIP.ROCrIndex.Or(0)))
		if override != "" {
			node, ok := d.HIP.UserNode.Get()
			if !ok {
				return nil, &UnusableError{Device: d, Backend: HIP, Blocks: []Block{{BlockNoAgent, "the node number for an override is unknown"}}}
			}
			env = append(env, envOverride+"_"+strconv.Itoa(node)+"="+override)
		}
		// A Vulkan plugin in the same process would list the GPU twice.
		return append(env, envVulkan+"="), nil
	case Vulkan:
		if d.Vulkan == nil || !d.Vulkan.RawIndex.Known() {
			return nil, &UnusableError{Device: d, Backend: Vulkan, Blocks: []Block{{BlockNoAgent, "no Vulkan driver lists this GPU"}}}
		}
		// An empty list hides every GPU from ROCr, and from HIP with it.
		return append(env, envVulkan+"="+strconv.Itoa(d.Vulkan.RawIndex.Or(0)), envROCR+"="), nil
	}
	return append(env, envROCR+"=", envVulkan+"="), nil
}
