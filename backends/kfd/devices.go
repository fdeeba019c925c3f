package kfd

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"syscall"

	"hearth/backends"
)

// Devices merges KFD nodes and PCI cards into one row for each physical GPU, with HIP faces as environ makes them. Rows
// have no Vulkan faces yet (backends.MergeVulkan), and no verdict on code objects (backends/codeobject).
func (s System) Devices(environ backends.Environ) []backends.Device {
	agents := s.Agents(environ)
	rows := []backends.Device{}
	seen := map[backends.PCI]bool{}
	for _, n := range s.Nodes {
		if !n.IsGPU() {
			continue
		}
		addr := n.PCI()
		card := s.card(addr)
		row := s.row(addr, card, &n)
		row.HIP = s.hipFace(n, agents)
		if s.partitions(addr) > 1 {
			// The card's figures are the whole accelerator's; a partition's memory is what its banks say.
			row.Memory.VRAMTotal, row.Memory.VRAMUsed = row.Memory.Pool, backends.Optional[uint64]{}
			row.Memory.VisibleTotal, row.Memory.VisibleUsed = backends.Optional[uint64]{}, backends.Optional[uint64]{}
		}
		seen[addr] = true
		rows = append(rows, row)
	}
	for i := range s.Cards {
		if c := &s.Cards[i]; !seen[c.PCI] {
			rows = append(rows, s.row(c.PCI, c, nil))
		}
	}
	return backends.Order(rows)
}

// partitions counts the KFD nodes at one PCI address.
func (s System) partitions(addr backends.PCI) int {
	count := 0
	for _, n := range s.Nodes {
		if addr != "" && n.PCI() == addr {
			count++
		}
	}
	return count
}

func (s System) card(addr backends.PCI) *Card {
	i := slices.IndexFunc(s.Cards, func(c Card) bool { return c.PCI == addr && addr != "" })
	if i < 0 {
		return nil
	}
	return &s.Cards[i]
}

// row fills a device from its card and its node; either may be nil.
func (s System) row(addr backends.PCI, card *Card, n *Node) backends.Device {
	d := backends.Device{PCI: addr}
	product := ""
	if card != nil {
		d.VendorID, d.DeviceID, d.Revision = to32(card.VendorID), to32(card.DeviceID), to32(card.Revision)
		d.Memory = card.Memory
		d.Problems = append(d.Problems, card.Problems...)
		d.UUID = uuidOfHex(card.UniqueID)
		product = card.Product
		if len(card.Renders) > 0 && backends.ErrnoOf(card.Renders[0].Err) != syscall.ENOENT {
			d.RenderNode = card.Renders[0].Path
		}
	}
	if n != nil {
		d.VendorID = to32(cmp.Or(n.Prop("vendor_id"), card.vendor()))
		d.DeviceID = to32(cmp.Or(n.Prop("device_id"), card.device()))
		d.GFX, d.Partition = n.GFX(), n.Partition()
		d.ComputeUnits = n.ComputeUnits()
		d.UUID = cmp.Or(n.UUID(), d.UUID)
		d.RenderNode = cmp.Or(n.Render.Path, d.RenderNode)
		d.Problems = append(d.Problems, n.Problems...)
		d.BandwidthGBs = n.bandwidth()
		n.memory(&d.Memory)
	}
	if m, ok := modelOf(d.DeviceID.Or(0)); ok && d.GFX == "" {
		d.GFX = m.gfx
	}
	d.Name = s.nameOf(d.DeviceID, d.Revision, product)
	d.Kind = kindOf(d, card, n)
	if total, ok := d.Memory.VRAMTotal.Get(); ok && !d.Memory.LargeBAR.Known() && d.Kind == backends.KindDiscrete {
		if visible, ok := d.Memory.VisibleTotal.Get(); ok {
			d.Memory.LargeBAR = backends.Some(visible >= total)
		}
	}
	return d
}

// vendor and device are the ids of a card that may be nil.
func (c *Card) vendor() backends.Optional[uint64] {
	if c == nil {
		return backends.Optional[uint64]{}
	}
	return c.VendorID
}

func (c *Card) device() backends.Optional[uint64] {
	if c == nil {
		return backends.Optional[uint64]{}
	}
	return c.DeviceID
}

func to32(v backends.Optional[uint64]) backends.Optional[uint32] {
	if n, ok := v.Get(); ok && n <= 1<<32-1 {
		return backends.Some(uint32(n))
	}
	return backends.Optional[uint32]{}
}

// uuidOfHex spells sysfs' unique_id (hex, without 0x) as ROCr spells KFD's.
func uuidOfHex(s string) string {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return ""
	}
	return uuidOf(v)
}

// memory adds what the node's banks say. Without amdgpu's own files a discrete GPU's VRAM is the sum of its banks; an
// integrated one's is not, since kernels count system memory into the bank.
func (n Node) memory(m *backends.Memory) {
	var pool uint64
	private, banks := false, 0
	for _, b := range n.Banks {
		if b.HeapType == HeapFBPublic || b.HeapType == HeapFBPrivate {
			pool += b.SizeBytes
			private = private || b.HeapType == HeapFBPrivate
			banks++
		}
	}
	if banks == 0 {
		return
	}
	m.Pool = backends.Some(pool)
	m.LargeBAR = backends.Some(!private)
	if !m.VRAMTotal.Known() && !integratedGFX(n.GFX()) {
		m.VRAMTotal = m.Pool
	}
}

// bandwidth is the peak of the widest VRAM bank in 10^9 bytes per second.
func (n Node) bandwidth() backends.Optional[float64] {
	rate := memoryRate(n.GFX())
	var best uint64
	for _, b := range n.Banks {
		if (b.HeapType == HeapFBPublic || b.HeapType == HeapFBPrivate) && b.WidthBits < 1<<20 && b.ClockMaxMHz < 1<<20 {
			best = max(best, b.WidthBits/8*b.ClockMaxMHz*rate)
		}
	}
	if best == 0 {
		return backends.Optional[float64]{}
	}
	return backends.Some(float64(best) / 1000)
}

// kindOf decides between discrete and integrated, by the surest sign first. libdrm would ask the driver; that needs the
// render node open and an ioctl.
func kindOf(d backends.Device, card *Card, n *Node) backends.Kind {
	if m, ok := modelOf(d.DeviceID.Or(0)); ok {
		return m.kind
	}
	if integratedGFX(d.GFX) || n != nil && n.Prop("cpu_cores_count").Or(0) > 0 {
		return backends.KindIntegrated
	}
	if card == nil {
		return backends.KindUnknown
	}
	if card.VRAMVendor != "" || card.BoardInfo {
		return backends.KindDiscrete
	}
	const gib = 1 << 30
	vram, ok1 := d.Memory.VRAMTotal.Get()
	gtt, ok2 := d.Memory.GTTTotal.Get()
	switch {
	case !ok1 || !ok2:
		return backends.KindUnknown
	case vram <= 4*gib && gtt >= 8*gib && gtt >= 4*vram: // a BIOS carve-out
		return backends.KindIntegrated
	}
	return backends.KindUnknown
}

// hipFace says what ROCr makes of a node, and why HIP cannot use it if so.
func (s System) hipFace(n Node, agents Agents) *backends.HIPFace {
	f := &backends.HIPFace{KFDNode: n.Number, GFX: n.GFX()}
	block := func(code, format string, args ...any) {
		f.Blocked = append(f.Blocked, backends.Block{Code: code, Text: fmt.Sprintf(format, args...)})
	}
	if !s.KFD.OK() {
		block(backends.BlockNoAccess, "%s: %v%s", s.KFD.Path, s.KFD.Err, errnoSuffix(s.KFD.Err))
	}
	if n.Render.Err != nil {
		block(backends.BlockNoAccess, "%s: %v%s", n.Render.Path, n.Render.Err, errnoSuffix(n.Render.Err))
	}
	if agents.Fatal != nil {
		if len(f.Blocked) == 0 {
			block(backends.BlockNoAgent, "ROCr lists no GPU at all: %v", agents.Fatal)
		}
		return f
	}
	i := slices.IndexFunc(agents.List, func(a Agent) bool { return a.Node == n.Number })
	if i < 0 {
		if len(f.Blocked) == 0 {
			block(backends.BlockNoAgent, "ROCr skips KFD node %d: its gpu_id or render node is masked", n.Number)
		}
		return f
	}
	a := agents.List[i]
	f.UserNode, f.ROCrIndex, f.HIPIndex = backends.Some(a.UserNode), a.Index, a.HIP
	f.GFX, f.Override = a.GFX, a.Override
	if a.Hidden != "" {
		block(backends.BlockHidden, "hidden: %s", a.Hidden)
	}
	if ordinal, ok := a.HIP.Get(); ok {
		f.Name = "ROCm" + strconv.Itoa(ordinal)
	}
	return f
}

func errnoSuffix(err error) string {
	if name := backends.ErrnoName(backends.ErrnoOf(err)); name != "" {
		return " (" + name + ")"
	}
	return ""
}
