package backends_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/backends/kfd"
)

// machine reads a captured machine's rows and gives every GPU with a render node a RADV face, in the order of PCI
// addresses or, with reversed, the other way round (a boot display that the loader puts first).
func machine(t *testing.T, name string, reversed bool) []backends.Device {
	t.Helper()
	s, err := kfd.Read(context.Background(), fixtures.Open(t, name))
	if err != nil {
		t.Fatal(err)
	}
	rows := s.Devices(nil)
	var devices []backends.VulkanDevice
	for _, d := range rows {
		if d.RenderNode == "" {
			continue
		}
		devices = append(devices, backends.VulkanDevice{PCI: d.PCI, VendorID: d.VendorID, DeviceID: d.DeviceID,
			Face: backends.VulkanFace{DeviceName: d.Name + " (RADV)", Driver: "radv", Type: string(d.Kind)}})
	}
	slices.SortFunc(devices, func(a, b backends.VulkanDevice) int { return strings.Compare(string(a.PCI), string(b.PCI)) })
	if reversed {
		slices.Reverse(devices)
	}
	for i := range devices {
		devices[i].Face.RawIndex = backends.Some(i)
		devices[i].Face.Name = []string{"Vulkan0", "Vulkan1", "Vulkan2"}[i]
	}
	return backends.MergeVulkan(rows, devices)
}

// TestSelectTwoGPUs is the promise that a desktop's big card is found by any name and in any order of discovery.
func TestSelectTwoGPUs(t *testing.T) {
	t.Parallel()
	const xtx = "0000:03:00.0"
	for _, m := range []struct {
		name               string
		reversed           bool
		rocm, vulkan, igpu string // names of the XTX, and the integrated GPU's address
		rocr, raw          string
	}{
		{"xtx-igpu", false, "ROCm0", "Vulkan0", "0000:10:00.0", "0", "0"},
		{"xtx-igpu", true, "ROCm0", "Vulkan1", "0000:10:00.0", "0", "1"},
		{"igpu-xtx", false, "ROCm1", "Vulkan0", "0000:7a:00.0", "1", "0"},
		{"igpu-xtx", true, "ROCm1", "Vulkan1", "0000:7a:00.0", "1", "1"},
	} {
		rows := machine(t, m.name, m.reversed)
		both := []string{backends.HIP, backends.Vulkan}
		for _, c := range []struct {
			selector string
			backends []string
		}{
			{"", both}, {"auto", both}, {"0", both}, {xtx, both}, {"03:00.0", both}, {"0000:03:00.0", both},
			{"GPU-9e7f4de7ac7cf81b", both}, {"gpu-9E7F", both}, {"gfx1100", both}, {"GFX1100", both},
			{"7900", both}, {"xtx", both}, {"AMD Radeon RX 7900 XTX", both}, {" rx 7900 ", both},
			{m.rocm, []string{backends.HIP}}, {strings.ToLower(m.rocm), []string{backends.HIP}}, {strings.Replace(m.rocm, "ROCm", "HIP", 1), []string{backends.HIP}},
			{m.vulkan, []string{backends.Vulkan}}, {strings.ToLower(m.vulkan), []string{backends.Vulkan}},
		} {
			choice, err := backends.Select(rows, backends.SelectOptions{Selector: c.selector})
			if err != nil || choice.Device.PCI != xtx || !slices.Equal(choice.Backends, c.backends) || choice.Why == "" {
				t.Errorf("%s reversed=%v %q: %s %v, %v", m.name, m.reversed, c.selector, choice.Device.PCI, choice.Backends, err)
				continue
			}
			checkEnv(t, choice, m.rocr, m.raw)
		}
		// The integrated GPU is there for those who name it.
		for _, selector := range []string{"1", m.igpu, "gfx1036", "Radeon Graphics"} {
			choice, err := backends.Select(rows, backends.SelectOptions{Selector: selector})
			if err != nil || string(choice.Device.PCI) != m.igpu {
				t.Errorf("%s %q: %s, %v", m.name, selector, choice.Device.PCI, err)
			}
		}
		_, err := backends.Select(rows, backends.SelectOptions{Selector: "radeon"})
		if ambiguous, ok := errors.AsType[*backends.AmbiguousError](err); !ok || len(ambiguous.Candidates) != 2 {
			t.Errorf("%s radeon: %v, want both candidates", m.name, err)
		}
	}
}

func checkEnv(t *testing.T, choice backends.Choice, rocr, raw string) {
	t.Helper()
	base := backends.Environ{"PATH=/bin", "HIP_VISIBLE_DEVICES=7", "CUDA_VISIBLE_DEVICES=7", "ROCR_VISIBLE_DEVICES=7",
		"GPU_DEVICE_ORDINAL=7", "HSA_OVERRIDE_GFX_VERSION=9.0.0", "HSA_OVERRIDE_GFX_VERSION_2=9.0.0", "GGML_VK_VISIBLE_DEVICES=7", "DRI_PRIME=1"}
	for _, backend := range choice.Backends {
		env, err := backends.WorkerEnv(base, choice.Device, backend, "")
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{backends.HIP: "PATH=/bin GGML_NO_BACKTRACE=1 ROCR_VISIBLE_DEVICES=" + rocr + " GGML_VK_VISIBLE_DEVICES=",
			backends.Vulkan: "PATH=/bin GGML_NO_BACKTRACE=1 GGML_VK_VISIBLE_DEVICES=" + raw + " ROCR_VISIBLE_DEVICES="}[backend]
		if got := strings.Join(env, " "); got != want {
			t.Errorf("%s: %q, want %q", backend, got, want)
		}
	}
}

func TestSelectRefuses(t *testing.T) {
	t.Parallel()
	blocked := func(code string) []backends.Block { return []backends.Block{{Code: code, Text: "because of " + code}} }
	rows := backends.Order([]backends.Device{
		{PCI: "0000:03:00.0", Name: "RX 9070", GFX: "gfx1201", Kind: backends.KindDiscrete, HIP: &backends.HIPFace{Name: "ROCm0", Blocked: blocked(backends.BlockNoCode)}},
		{PCI: "0000:0b:00.0", Name: "Radeon Graphics", GFX: "gfx1036", Kind: backends.KindIntegrated, HIP: &backends.HIPFace{Name: "ROCm1"}},
	})
	unusable := func(err error) string {
		if e, ok := errors.AsType[*backends.UnusableError](err); ok {
			return "unusable " + e.Device.GFX + " " + e.Blocks[0].Code
		}
		if e, ok := errors.AsType[*backends.NoDeviceError](err); ok {
			return "none of " + string(rune('0'+len(e.Rejected)))
		}
		if _, ok := errors.AsType[*backends.NotFoundError](err); ok {
			return "not found"
		}
		return "no error"
	}
	for _, c := range []struct {
		opt  backends.SelectOptions
		want string
		gfx  string
	}{
		// The discrete card cannot run: that is an error to read, not a reason to crawl along on the integrated one.
		{backends.SelectOptions{}, "none of 2", ""},
		{backends.SelectOptions{AllowIntegrated: true}, "no error", "gfx1036"},
		{backends.SelectOptions{Selector: "gfx1201"}, "unusable gfx1201 no-code-object", ""},
		{backends.SelectOptions{Selector: "0", Backend: backends.Vulkan}, "unusable gfx1201 no-agent", ""},
		{backends.SelectOptions{Selector: "ROCm1", Backend: backends.Vulkan}, "unusable gfx1036 no-agent", ""},
		{backends.SelectOptions{Selector: "1"}, "no error", "gfx1036"},
		{backends.SelectOptions{Selector: "2"}, "not found", ""},
		{backends.SelectOptions{Selector: "Vulkan0"}, "not found", ""},
		{backends.SelectOptions{Selector: "0000:04:00.0"}, "not found", ""},
		{backends.SelectOptions{Selector: "GPU-1234"}, "not found", ""},
		{backends.SelectOptions{Selector: "GPU-"}, "not found", ""},
		{backends.SelectOptions{Selector: "cpu"}, "no error", ""},
		{backends.SelectOptions{Backend: backends.CPU}, "no error", ""},
	} {
		choice, err := backends.Select(rows, c.opt)
		if unusable(err) != c.want || choice.Device.GFX != c.gfx {
			t.Errorf("%+v: %q %s (%v), want %q %s", c.opt, unusable(err), choice.Device.GFX, err, c.want, c.gfx)
		}
		if err != nil && strings.Contains(err.Error(), "%!") {
			t.Errorf("%+v: %v", c.opt, err)
		}
	}
	if _, err := backends.Select(nil, backends.SelectOptions{}); err == nil || err.Error() != "no GPU found" {
		t.Errorf("empty machine: %v", err)
	}
}

// Whole machines, chosen without a word from the user.
func TestSelectMachines(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"xtx": "0000:03:00.0 hip vulkan", "strix-halo": "0000:c2:00.0 hip vulkan", "no-kfd": "0000:03:00.0 vulkan",
		"gfx803-no-atomics": "0000:01:00.0 vulkan", "vfio-igpu": "0000:10:00.0 hip vulkan", "mi50-renoir": "0000:03:00.0 vulkan",
		"masked-container": "0000:43:00.0 hip vulkan", "empty-vm": "no GPU found", "wsl": "no GPU found",
	} {
		choice, err := backends.Select(machine(t, name, false), backends.SelectOptions{})
		got := string(choice.Device.PCI) + " " + strings.Join(choice.Backends, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestMergeVulkan(t *testing.T) {
	t.Parallel()
	rows := []backends.Device{{PCI: "0000:03:00.0", Name: "card", Kind: backends.KindUnknown}}
	face := func(driver, kind string) backends.VulkanFace {
		return backends.VulkanFace{Driver: driver, DeviceName: driver, Type: kind}
	}
	got := backends.MergeVulkan(rows, []backends.VulkanDevice{
		{PCI: "0000:03:00.0", Face: face("radv", "discrete")}, {PCI: "0000:03:00.0", Face: face("amdvlk", "discrete")},
		{Face: face("llvmpipe", "cpu")}, {PCI: "0000:08:00.0", Face: face("nvidia", "discrete")}})
	if len(got) != 3 || got[0].Vulkan.Driver != "radv" || got[0].Kind != backends.KindDiscrete || got[1].PCI != "0000:08:00.0" {
		t.Fatalf("%+v", got)
	}
	if software := got[2]; software.Vulkan.Usable() || software.Vulkan.Blocked[0].Code != backends.BlockSoftwareVulkan {
		t.Errorf("llvmpipe is offered: %+v", software.Vulkan)
	}
	if rows[0].Vulkan != nil {
		t.Error("MergeVulkan changed its argument")
	}
}
