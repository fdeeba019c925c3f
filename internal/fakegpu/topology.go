package fakegpu

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hearth/backends"
	"hearth/backends/sysroot"
)

// kfdTree is where a captured machine has KFD's topology.
const kfdTree = "sys/devices/virtual/kfd/kfd/topology/"

// ErrNoTopology says that an archive has no KFD topology with a GPU.
var ErrNoTopology = errors.New("the archive has no KFD topology with a GPU")

// Topology is a captured machine's KFD topology, made fit for ROCr's model mode.
type Topology struct {
	files map[string]string // below topology/
	// GPUs are the gfx targets of the GPU nodes, in order.
	GPUs []string
}

// NewTopology takes the topology out of a captured machine and changes what the model mode wants otherwise:
//
//   - a GPU's gpu_id must be its node number plus one;
//   - capability bit 29 (debug firmware) must be clear, and the doorbell type (bits 12, 13) must be 2;
//   - family_id keeps ROCr from asking libdrm, for which there is no device;
//   - each node has the caches, links and banks that its counts promise: one bank from the capture, three made-up caches
//     and no links, as none of the figures in them matters here.
func NewTopology(machine sysroot.Archive) (Topology, error) {
	t := Topology{files: map[string]string{
		"generation_id": "1\n", "system_properties": "platform_oem 0\nplatform_id 0\nplatform_rev 0\n",
	}}
	captured := map[string]string{}
	for _, f := range machine.Files {
		if name, ok := strings.CutPrefix(f.Name, kfdTree); ok {
			captured[name] = string(f.Data)
		}
	}
	for n := 0; ; n++ {
		dir := fmt.Sprintf("nodes/%d/", n)
		props, ok := captured[dir+"properties"]
		if !ok {
			break
		}
		if err := t.node(n, dir, props, captured); err != nil {
			return t, err
		}
	}
	if len(t.GPUs) == 0 {
		return t, ErrNoTopology
	}
	return t, nil
}

func (t *Topology) node(n int, dir, text string, captured map[string]string) error {
	keys, values, err := parse(text)
	if err != nil {
		return fmt.Errorf("%sproperties: %w", dir, err)
	}
	set := func(key string, v uint64) {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
		values[key] = v
	}
	gpu := values["simd_count"] > 0
	set("io_links_count", 0)
	set("p2p_links_count", 0)
	set("mem_banks_count", 1)
	set("caches_count", 0)
	id := uint64(0)
	if gpu {
		gfx := backends.GFXName(values["gfx_target_version"])
		t.GPUs = append(t.GPUs, gfx)
		id = uint64(n) + 1
		const doorbell, debugFirmware = uint64(3 << 12), uint64(1 << 29)
		set("capability", values["capability"]&^(doorbell|debugFirmware)|2<<12)
		set("family_id", family(gfx))
		set("caches_count", 3)
		for i, kib := range []int{32, 6144, 98304} { // L1, L2 and L3
			t.files[fmt.Sprintf("%scaches/%d/properties", dir, i)] = fmt.Sprintf("processor_id_low %d\nlevel %d\nsize %d\ncache_line_size 128\n"+
				"cache_lines_per_tag 1\nassociation 16\nlatency 0\ntype 9\nsibling_map 1%s\n", values["simd_id_base"], i+1, kib, strings.Repeat(",0", 63))
		}
	}
	bank, ok := captured[dir+"mem_banks/0/properties"]
	if !ok {
		bank = "heap_type 0\nsize_in_bytes 17179869184\nflags 0\nwidth 64\nmem_clk_max 3200\n"
	}
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s %d\n", k, values[k])
	}
	t.files[dir+"gpu_id"] = strconv.FormatUint(id, 10) + "\n"
	t.files[dir+"name"] = captured[dir+"name"]
	t.files[dir+"properties"] = b.String()
	t.files[dir+"mem_banks/0/properties"] = bank
	return nil
}

// parse reads "key number" lines and keeps their order.
func parse(text string) (keys []string, values map[string]uint64, err error) {
	values = map[string]uint64{}
	for line := range strings.Lines(text) {
		key, number, ok := strings.Cut(strings.TrimSpace(line), " ")
		v, perr := strconv.ParseUint(number, 10, 64)
		if !ok || perr != nil {
			return nil, nil, fmt.Errorf("%q is not a key and a number", strings.TrimSpace(line))
		}
		keys, values[key] = append(keys, key), v
	}
	return keys, values, nil
}

// family is the amdgpu family id of a target (AMDGPU_FAMILY_* in amdgpu_drm.h).
func family(gfx string) uint64 {
	for _, f := range []struct {
		prefix string
		id     uint64
	}{{"gfx115", 150}, {"gfx11", 145}, {"gfx12", 152}, {"gfx103", 143}, {"gfx10", 143}, {"gfx90c", 142}, {"gfx9", 141}} {
		if strings.HasPrefix(gfx, f.prefix) {
			return f.id
		}
	}
	return 141
}

// Write lays the topology out in dir, which HSA_MODEL_TOPOLOGY is then set to.
func (t Topology) Write(dir string) error {
	for name, text := range t.files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(path.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}
