package kfd

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"hearth/backends"
	"hearth/backends/sysroot"
)

const (
	pciDir    = "sys/bus/pci/devices"
	drmDir    = "sys/class/drm"
	vendorAMD = 0x1002
)

// cards lists AMD's display (class 03) and accelerator (class 12) functions by PCI address. Containers may show DRM
// nodes without the PCI bus, so both are walked.
func (r *reader) cards(problems *[]backends.Problem) []Card {
	byPCI := map[backends.PCI]*Card{}
	names, err := r.root.ReadDir(pciDir)
	note(problems, pciDir, err)
	for _, name := range names {
		addr, err := backends.ParsePCI(name)
		if err != nil || r.ctx.Err() != nil {
			continue
		}
		if dir := path.Join(pciDir, name); r.isAMDGPU(dir) {
			c := r.card(dir, addr)
			byPCI[addr] = &c
		}
	}
	names, err = r.root.ReadDir(drmDir)
	note(problems, drmDir, err)
	slices.SortFunc(names, func(a, b string) int { // renderD9 before renderD128, card2 before card10
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		if r.ctx.Err() != nil {
			break
		}
		r.drmNode(name, byPCI)
	}
	cards := make([]Card, 0, len(byPCI))
	for _, c := range byPCI {
		cards = append(cards, *c)
	}
	slices.SortFunc(cards, func(a, b Card) int {
		if a.PCI.Less(b.PCI) {
			return -1
		}
		return 1
	})
	return cards
}

// drmNode adds one entry of /sys/class/drm ("renderD128", "card1"; connectors such as "card1-DP-1" are skipped) to the
// card behind it, which is created when the PCI bus is not shown.
func (r *reader) drmNode(name string, byPCI map[backends.PCI]*Card) {
	render := strings.HasPrefix(name, "renderD")
	digits := strings.TrimPrefix(strings.TrimPrefix(name, "renderD"), "card")
	if _, err := strconv.ParseUint(digits, 10, 31); err != nil {
		return
	}
	dir := path.Join(drmDir, name, "device")
	addr, err := backends.ParsePCI(sysroot.Base(r.root, dir))
	if err != nil {
		return // a platform device (virtual display), or a container that cuts the link
	}
	c := byPCI[addr]
	if c == nil {
		if !r.isAMDGPU(dir) {
			return
		}
		made := r.card(dir, addr)
		c = &made
		byPCI[addr] = c
	}
	if render {
		c.Renders = append(c.Renders, r.access("dev/dri/"+name))
	} else if c.CardNode == "" {
		c.CardNode = name
	}
}

// isAMDGPU says whether a PCI function is a GPU of AMD's.
func (r *reader) isAMDGPU(dir string) bool {
	vendor, err := sysroot.ReadUint(r.root, path.Join(dir, "vendor"), 0)
	if err != nil || vendor != vendorAMD {
		return false
	}
	class, err := sysroot.ReadUint(r.root, path.Join(dir, "class"), 0)
	return err == nil && (class>>16 == 0x03 || class>>16 == 0x12)
}

func (r *reader) card(dir string, addr backends.PCI) Card {
	c := Card{PCI: addr, Path: dir, Driver: sysroot.Base(r.root, path.Join(dir, "driver"))}
	c.Class = r.uint(&c.Problems, path.Join(dir, "class"), 0)
	c.VendorID = r.uint(&c.Problems, path.Join(dir, "vendor"), 0)
	c.DeviceID = r.uint(&c.Problems, path.Join(dir, "device"), 0)
	c.Revision = r.uint(&c.Problems, path.Join(dir, "revision"), 0)
	if c.Driver == "amdgpu" {
		r.amdgpu(dir, &c)
	}
	c.Runtime = r.text(&c.Problems, path.Join(dir, "power/runtime_status"))
	if s := r.text(&c.Problems, path.Join(dir, "numa_node")); s != "" {
		if n, err := strconv.ParseInt(s, 10, 32); err == nil {
			c.NUMANode = backends.Some(n)
		}
	}
	c.PCIe = PCIeLink{
		Speed: r.text(&c.Problems, path.Join(dir, "current_link_speed")), Width: r.uint(&c.Problems, path.Join(dir, "current_link_width"), 10),
		MaxSpeed: r.text(&c.Problems, path.Join(dir, "max_link_speed")), MaxWidth: r.uint(&c.Problems, path.Join(dir, "max_link_width"), 10),
	}
	r.slot(dir, &c)
	return c
}

// amdgpu reads what the amdgpu driver adds to a card's folder.
func (r *reader) amdgpu(dir string, c *Card) {
	read := func(file string) backends.Optional[uint64] { return r.uint(&c.Problems, path.Join(dir, file), 10) }
	c.Memory = backends.Memory{
		VRAMTotal: read("mem_info_vram_total"), VRAMUsed: read("mem_info_vram_used"),
		VisibleTotal: read("mem_info_vis_vram_total"), VisibleUsed: read("mem_info_vis_vram_used"),
		GTTTotal: read("mem_info_gtt_total"), GTTUsed: read("mem_info_gtt_used"),
	}
	c.UniqueID = r.text(&c.Problems, path.Join(dir, "unique_id"))
	c.Product = r.text(&c.Problems, path.Join(dir, "product_name"))
	c.VBIOS = r.text(&c.Problems, path.Join(dir, "vbios_version"))
	c.VRAMVendor = r.text(&c.Problems, path.Join(dir, "mem_info_vram_vendor"))
	_, err := r.root.Stat(path.Join(dir, "board_info"))
	c.BoardInfo = err == nil
}

// slot reads the link of the topmost bridge above a card: its root port.
func (r *reader) slot(dir string, c *Card) {
	target, err := r.root.ReadLink(dir)
	if err != nil {
		return
	}
	// .../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0
	parts := strings.Split(path.Join(path.Dir(dir), target), "/")
	i := slices.IndexFunc(parts, func(s string) bool { return strings.HasPrefix(s, "pci") })
	if i < 0 || i+2 >= len(parts) {
		return // sits on the root complex itself, as integrated GPUs may
	}
	port := path.Join(pciDir, parts[i+1])
	c.PCIe.SlotSpeed = r.text(&c.Problems, path.Join(port, "current_link_speed"))
	c.PCIe.SlotWidth = r.uint(&c.Problems, path.Join(port, "current_link_width"), 10)
}

// uint reads a number; a file that is missing is unknown, one that fails or holds "N/A" is unknown and a problem.
func (r *reader) uint(problems *[]backends.Problem, name string, base int) backends.Optional[uint64] {
	v, err := sysroot.ReadUint(r.root, name, base)
	if err != nil {
		note(problems, name, err)
		return backends.Optional[uint64]{}
	}
	return backends.Some(v)
}

func (r *reader) text(problems *[]backends.Problem, name string) string {
	s, err := sysroot.ReadString(r.root, name)
	if err != nil {
		note(problems, name, err)
		return ""
	}
	const most = 256
	if len(s) > most {
		note(problems, name, fmt.Errorf("%d characters long, cut", len(s)))
		s = s[:most]
	}
	return s
}
