package telemetry

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"hearth/backends"
	"hearth/backends/sysroot"
)

// ProcessMemory lists what a process holds on each GPU through its render nodes, descriptors of one client counted once.
// Own children are readable; other users' processes are not, and then the error says so.
func ProcessMemory(root sysroot.FS, pid int) ([]Client, error) {
	dir := fmt.Sprintf("proc/%d/fdinfo", pid)
	names, err := root.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var clients []Client
	for _, name := range names {
		b, err := root.ReadFile(path.Join(dir, name))
		if err != nil {
			continue // closed meanwhile
		}
		c, ok := ParseFDInfo(b)
		if !ok || slices.ContainsFunc(clients, func(o Client) bool { return o.PCI == c.PCI && o.ID == c.ID }) {
			continue
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// ComputeMemory returns the VRAM that a process holds through KFD (HIP), in bytes for each KFD gpu_id. HIP's memory does
// not show in the render nodes' descriptors on all kernels.
func ComputeMemory(root sysroot.FS, pid int) (map[uint64]uint64, error) {
	dir := fmt.Sprintf("sys/class/kfd/kfd/proc/%d", pid)
	names, err := root.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	used := map[uint64]uint64{}
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, "vram_")
		if !ok {
			continue
		}
		id, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			continue
		}
		if n, err := sysroot.ReadUint(root, path.Join(dir, name), 10); err == nil {
			used[id] = n
		}
	}
	return used, nil
}

// Sum adds up the clients of one GPU; unknown figures count as nothing, and the sum is unknown when all are.
func Sum(clients []Client, pci backends.PCI) (vram, evicted backends.Optional[uint64]) {
	add := func(to *backends.Optional[uint64], v backends.Optional[uint64]) {
		if n, ok := v.Get(); ok {
			*to = backends.Some(to.Or(0) + n)
		}
	}
	for _, c := range clients {
		if c.PCI == pci {
			add(&vram, c.VRAM)
			add(&evicted, c.EvictedVRAM)
		}
	}
	return vram, evicted
}
