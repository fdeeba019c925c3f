package kfd

import (
	"fmt"

	"hearth/backends"
)

// model is what hearth knows of a PCI device id without asking a driver. It is used where KFD does not list the GPU, and
// for a name where the distribution has no amdgpu.ids.
type model struct {
	name string
	gfx  string
	kind backends.Kind
	// revisions name the products that share a device id.
	revisions map[uint32]string
}

// modelOf looks a device id up. Ids and products are libdrm's and the kernel's.
func modelOf(device uint32) (model, bool) {
	const dis, apu = backends.KindDiscrete, backends.KindIntegrated
	switch device {
	case 0x67df:
		return model{"AMD Radeon RX 470/480/570/580", "gfx803", dis, map[uint32]string{
			0xc7: "AMD Radeon RX 480", 0xe7: "AMD Radeon RX 580", 0xef: "AMD Radeon RX 570", 0xcf: "AMD Radeon RX 470", 0xe1: "AMD Radeon RX 590"}}, true
	case 0x687f:
		return model{"AMD Radeon RX Vega 56/64", "gfx900", dis, nil}, true
	case 0x6860:
		return model{"AMD Instinct MI25", "gfx900", dis, nil}, true
	case 0x66a1:
		return model{"AMD Instinct MI50/MI60", "gfx906", dis, map[uint32]string{0x06: "AMD Radeon Pro VII"}}, true
	case 0x66a0:
		return model{"AMD Instinct MI60", "gfx906", dis, nil}, true
	case 0x66af:
		return model{"AMD Radeon VII", "gfx906", dis, nil}, true
	case 0x738c:
		return model{"AMD Instinct MI100", "gfx908", dis, nil}, true
	case 0x740f:
		return model{"AMD Instinct MI210", "gfx90a", dis, nil}, true
	case 0x7408:
		return model{"AMD Instinct MI250X", "gfx90a", dis, nil}, true
	case 0x740c:
		return model{"AMD Instinct MI250", "gfx90a", dis, nil}, true
	case 0x74a0:
		return model{"AMD Instinct MI300A", "gfx942", apu, nil}, true
	case 0x74a1:
		return model{"AMD Instinct MI300X", "gfx942", dis, nil}, true
	case 0x74a5:
		return model{"AMD Instinct MI325X", "gfx942", dis, nil}, true
	case 0x75a0:
		return model{"AMD Instinct MI350X", "gfx950", dis, nil}, true
	case 0x75a3:
		return model{"AMD Instinct MI355X", "gfx950", dis, nil}, true
	}
	if m, ok := radeonOf(device); ok {
		return m, true
	}
	return apuOf(device)
}

// radeonOf is modelOf for RDNA cards.
func radeonOf(device uint32) (model, bool) {
	const dis = backends.KindDiscrete
	switch device {
	case 0x731f:
		return model{"AMD Radeon RX 5700", "gfx1010", dis, map[uint32]string{
			0xc1: "AMD Radeon RX 5700 XT", 0xc4: "AMD Radeon RX 5700", 0xca: "AMD Radeon RX 5600 XT"}}, true
	case 0x7340:
		return model{"AMD Radeon RX 5500", "gfx1012", dis, map[uint32]string{0xc5: "AMD Radeon RX 5500 XT"}}, true
	case 0x73bf:
		return model{"AMD Radeon RX 6800/6900", "gfx1030", dis, map[uint32]string{
			0xc0: "AMD Radeon RX 6900 XT", 0xc1: "AMD Radeon RX 6800 XT", 0xc3: "AMD Radeon RX 6800"}}, true
	case 0x73a5:
		return model{"AMD Radeon RX 6950 XT", "gfx1030", dis, nil}, true
	case 0x73df:
		return model{"AMD Radeon RX 6700", "gfx1031", dis, map[uint32]string{
			0xc1: "AMD Radeon RX 6700 XT", 0xc5: "AMD Radeon RX 6700 XT", 0xc0: "AMD Radeon RX 6750 XT"}}, true
	case 0x73ff:
		return model{"AMD Radeon RX 6600", "gfx1032", dis, map[uint32]string{
			0xc1: "AMD Radeon RX 6600 XT", 0xc7: "AMD Radeon RX 6600"}}, true
	case 0x73ef:
		return model{"AMD Radeon RX 6650 XT", "gfx1032", dis, nil}, true
	case 0x743f:
		return model{"AMD Radeon RX 6400/6500 XT", "gfx1034", dis, map[uint32]string{
			0xc1: "AMD Radeon RX 6500 XT", 0xc7: "AMD Radeon RX 6400"}}, true
	case 0x744c:
		return model{"AMD Radeon RX 7900", "gfx1100", dis, map[uint32]string{
			0xc8: "AMD Radeon RX 7900 XTX", 0xcc: "AMD Radeon RX 7900 XT", 0xce: "AMD Radeon RX 7900 GRE", 0xcf: "AMD Radeon RX 7900M"}}, true
	case 0x7448:
		return model{"AMD Radeon Pro W7900", "gfx1100", dis, nil}, true
	case 0x745e:
		return model{"AMD Radeon Pro W7800", "gfx1100", dis, nil}, true
	case 0x747e:
		return model{"AMD Radeon RX 7700/7800", "gfx1101", dis, map[uint32]string{
			0xc8: "AMD Radeon RX 7800 XT", 0xff: "AMD Radeon RX 7700 XT"}}, true
	case 0x7470:
		return model{"AMD Radeon Pro W7700", "gfx1101", dis, nil}, true
	case 0x7480:
		return model{"AMD Radeon RX 7600", "gfx1102", dis, map[uint32]string{0xc0: "AMD Radeon RX 7600 XT", 0xcf: "AMD Radeon RX 7600"}}, true
	case 0x7550:
		return model{"AMD Radeon RX 9070", "gfx1201", dis, map[uint32]string{0xc0: "AMD Radeon RX 9070 XT", 0xc3: "AMD Radeon RX 9070"}}, true
	case 0x7551:
		return model{"AMD Radeon AI PRO R9700", "gfx1201", dis, nil}, true
	case 0x7590:
		return model{"AMD Radeon RX 9060", "gfx1200", dis, map[uint32]string{0xc0: "AMD Radeon RX 9060 XT"}}, true
	}
	return model{}, false
}

// apuOf is modelOf for graphics inside a CPU.
func apuOf(device uint32) (model, bool) {
	const apu = backends.KindIntegrated
	switch device {
	case 0x15d8, 0x15dd:
		return model{"AMD Radeon Vega Graphics", "gfx902", apu, nil}, true
	case 0x1636, 0x1638, 0x164c, 0x15e7:
		return model{"AMD Radeon Graphics", "gfx90c", apu, nil}, true
	case 0x13fe:
		return model{"AMD BC-250", "gfx1013", apu, nil}, true
	case 0x163f, 0x1435:
		return model{"AMD Custom GPU 0405", "gfx1033", apu, nil}, true
	case 0x1681:
		return model{"AMD Radeon 680M", "gfx1035", apu, nil}, true
	case 0x164e, 0x13c0:
		return model{"AMD Radeon Graphics", "gfx1036", apu, nil}, true
	case 0x15bf, 0x1900:
		return model{"AMD Radeon 780M Graphics", "gfx1103", apu, nil}, true
	case 0x15c8, 0x1901:
		return model{"AMD Radeon 740M Graphics", "gfx1103", apu, nil}, true
	case 0x150e:
		return model{"AMD Radeon 890M Graphics", "gfx1150", apu, nil}, true
	case 0x1586:
		return model{"AMD Radeon 8060S Graphics", "gfx1151", apu, map[uint32]string{
			0xc2: "AMD Radeon 8050S Graphics", 0xd2: "AMD Radeon 8050S Graphics", 0xd5: "AMD Radeon 8040S Graphics"}}, true
	case 0x1114, 0x1902:
		return model{"AMD Radeon 860M Graphics", "gfx1152", apu, nil}, true
	}
	return model{}, false
}

// nameOf is the marketing name: the distribution's table, then what the card says of itself, then our own table.
func (s System) nameOf(device, revision backends.Optional[uint32], product string) string {
	dev, ok := device.Get()
	if !ok {
		return "AMD GPU"
	}
	rev, hasRev := revision.Get()
	if name, ok := s.ids[[2]uint32{dev, rev}]; ok && hasRev {
		return name
	}
	if product != "" {
		return product
	}
	m, ok := modelOf(dev)
	if !ok {
		return fmt.Sprintf("AMD GPU 1002:%04x", dev)
	}
	if name, ok := m.revisions[rev]; ok && hasRev {
		return name
	}
	return m.name
}

// integratedGFX lists targets that exist in APUs only.
func integratedGFX(gfx string) bool {
	switch gfx {
	case "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153":
		return true
	}
	return false
}

// memoryRate is how many bits a pin moves in one cycle of mem_clk_max, by generation: GDDR5 4, GDDR6 16, HBM2 2, HBM3 4,
// LPDDR5X 8, DDR5 2. 0: several memory types are in use, so the bank's clock says nothing.
func memoryRate(gfx string) uint64 {
	switch gfx {
	case "gfx803", "gfx942", "gfx950":
		return 4
	case "gfx900", "gfx906", "gfx908", "gfx90a", "gfx1036":
		return 2
	case "gfx1010", "gfx1011", "gfx1012", "gfx1030", "gfx1031", "gfx1032", "gfx1034", "gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201":
		return 16
	case "gfx1151":
		return 8
	}
	return 0
}
