package native

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"hearth/engine"
	"hearth/engine/llama"
)

// sizes are the context's dimensions, chosen from the load order, the model and the device.
type sizes struct {
	context   int // tokens of one sequence
	cells     int // tokens of the pool
	sequences int
	chunk     int
	threads   int
	unified   bool
	window    int    // tokens; 0: layers with a sliding window keep all cells, too
	why       string // of window, for people; empty where there is nothing to choose
}

// cacheShare: of the memory beside the weights one part in so many is left to compute buffers.
const cacheShare = 5

// memory is what choose may count on, in bytes; 0: unknown.
type memory struct {
	device uint64 // free on the device after the weights
	spare  uint64 // free beside the weights where the KV cache lies: the device's, or the system's on a CPU
}

// setSequences changes the number of sequences, and in streams the cells, of which each sequence has a whole context.
func (z *sizes) setSequences(n int) {
	z.sequences = n
	if !z.unified {
		z.cells = z.context * n
	}
}

// choose fills in what the order leaves open. window is the sliding window of layers that need not keep more, in tokens (0: none
// do), kv what a cell takes.
func choose(s *engine.LoadSpec, info *llama.ModelInfo, window int, kv kvCost, mem memory, cores int) sizes {
	var z sizes
	z.context = s.Context
	if z.context == 0 {
		z.context = engine.DefaultContext
		if info.CtxTrain > 0 {
			z.context = min(z.context, info.CtxTrain)
		}
	}
	z.context = llama.PadCells(z.context)
	z.sequences = cmp.Or(s.MaxSequences, engine.DefaultMaxSequences)
	z.unified = s.KVLayout != "streams"
	z.chunk = max(cmp.Or(s.Chunk, engine.DefaultChunk), z.sequences) // a step must hold one row of every sequence
	switch {
	case !z.unified:
		z.cells = z.context * z.sequences
	case s.Cells > 0:
		z.cells = max(llama.PadCells(s.Cells), z.context)
	default:
		z.cells = z.context // one context's worth is what a single user needs and what other servers allocate
	}
	z.chooseWindows(s, info, window, kv, mem.spare)
	switch {
	case !z.unified:
		one := z
		one.sequences, one.cells = 1, z.context
		if most := mem.device / cacheShare * (cacheShare - 1) / max(1, kv.bytes(&one)); mem.device > 0 && uint64(z.sequences) > most {
			z.setSequences(max(1, int(most))) // the caller says so
		}
	case s.Cells == 0 && s.Backend != "cpu" && mem.device > 0:
		// On a GPU with room, four contexts let several long conversations stay cached beside the one that runs.
		for _, f := range []int{4, 2} {
			more := z
			if more.cells = f * z.context; kv.bytes(&more) < mem.device/2 {
				z = more
				break
			}
		}
	}
	z.chunk = max(min(z.chunk, z.cells), z.sequences)
	z.threads = s.Threads
	if z.threads == 0 {
		z.threads = cores
		if s.Backend != "cpu" && (s.GPULayers < 0 || s.GPULayers > info.Layers) {
			z.threads = 1
		}
	}
	return z
}

// kvBytes is the memory of one cell, from the model's metadata.
func kvBytes(info *llama.ModelInfo, meta map[string]string, typeK, typeV string) kvCost {
	arch := meta["general.architecture"]
	num := func(key string, def int) int {
		if n, err := strconv.Atoi(meta[arch+"."+key]); err == nil && n > 0 {
			return n
		}
		return def
	}
	heads := max(1, info.Heads)
	k := num("attention.key_length", info.Embd/heads)
	v := num("attention.value_length", info.Embd/heads)
	per := func(n int, kvType string) float64 {
		bits := map[string]float64{"": 16, "f16": 16, "bf16": 16, "f32": 32, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "iq4_nl": 4.5}
		return float64(n) * bits[kvType] / 8
	}
	layer := float64(max(1, info.HeadsKV)) * (per(k, typeK) + per(v, typeV))
	return kvCost{all: uint64(float64(info.Layers) * layer), windowed: uint64(float64(windowLayers(info, meta)) * layer)}
}

// physicalCores counts the distinct (package, core) pairs of the CPUs below root ("/sys"); without them it is the
// number of CPUs that this process may use.
func physicalCores(root string) int {
	logical := runtime.NumCPU()
	dirs, err := filepath.Glob(filepath.Join(root, "devices/system/cpu/cpu[0-9]*/topology"))
	if err != nil || len(dirs) == 0 {
		return logical
	}
	seen := make(map[string]bool)
	for _, d := range dirs {
		core, err1 := os.ReadFile(filepath.Join(d, "core_id"))
		pkg, err2 := os.ReadFile(filepath.Join(d, "physical_package_id"))
		if err1 != nil || err2 != nil {
			return logical
		}
		seen[strings.TrimSpace(string(pkg))+":"+strings.TrimSpace(string(core))] = true
	}
	return min(len(seen), logical)
}
