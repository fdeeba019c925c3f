package vulkan

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"hearth/backends"
	"hearth/backends/probe"
)

// machine fakes the plugin: raw lists all devices in loader order, and a run without a filter leaves software out.
func machine(raw []probe.Device) Prober {
	return func(_ context.Context, env []string) (probe.Result, error) {
		var list []probe.Device
		if len(env) == 1 {
			i, err := strconv.Atoi(strings.TrimPrefix(env[0], "GGML_VK_VISIBLE_DEVICES="))
			if err != nil {
				return probe.Result{}, err
			}
			if i < len(raw) {
				list = raw[i : i+1]
			}
		} else {
			for _, d := range raw {
				if d.Type != "cpu" {
					list = append(list, d)
				}
			}
		}
		r := probe.Result{Stage: probe.StageDone}
		for i, d := range list {
			d.Index, d.Name = i, "Vulkan"+strconv.Itoa(i)
			r.Devices = append(r.Devices, d)
		}
		return r, nil
	}
}

func TestEnumerateFindsRawIndices(t *testing.T) {
	lvp := probe.Device{Description: "llvmpipe (LLVM 21.1.8, 256 bits)", Type: "cpu", Driver: "llvmpipe"}
	xtx := probe.Device{Description: "AMD Radeon RX 7900 XTX (RADV NAVI31)", Type: "gpu", PCIID: "0000:03:00.0", Driver: "radv", MemoryTotal: 1 << 34}
	igpu := probe.Device{Description: "AMD Ryzen (RADV RAPHAEL_MENDOCINO)", Type: "igpu", PCIID: "0000:10:00.0", Driver: "radv", UMA: true}
	vlk := xtx
	vlk.Driver = "AMD open-source driver"
	got, err := Enumerate(context.Background(), machine([]probe.Device{lvp, vlk, igpu, xtx}))
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		pci    backends.PCI
		raw    int
		driver string
		kind   string
		name   string
	}{{"0000:10:00.0", 2, RADV, "integrated", "Vulkan1"}, {"0000:03:00.0", 3, RADV, "discrete", "Vulkan2"}, {"0000:03:00.0", 1, AMDVLK, "discrete", "Vulkan0"}}
	if len(got.List) != len(want) {
		t.Fatalf("%+v", got.List)
	}
	for i, w := range want {
		d := got.List[i]
		raw, _ := d.Face.RawIndex.Get()
		if d.PCI != w.pci || raw != w.raw || d.Face.Driver != w.driver || d.Face.Type != w.kind || d.Face.Name != w.name || len(d.Face.Blocked) != 0 {
			t.Errorf("device %d: %+v", i, d)
		}
	}
}

func TestEnumerateSoftwareOnly(t *testing.T) {
	// A plugin that lists a software renderer all the same (GGML_VK_VISIBLE_DEVICES in the child's environment).
	lvp := probe.Device{Description: "llvmpipe (LLVM 21.1.8, 256 bits)", Type: "gpu", Driver: "llvmpipe"}
	got, err := Enumerate(context.Background(), machine([]probe.Device{lvp}))
	if err != nil || len(got.List) != 1 || got.List[0].PCI != "" || len(got.List[0].Face.Blocked) != 1 {
		t.Errorf("%+v, %v", got.List, err)
	}
}

func TestEnumerateNothing(t *testing.T) {
	got, err := Enumerate(context.Background(), machine(nil))
	if err != nil || len(got.List) != 0 {
		t.Errorf("%+v, %v", got.List, err)
	}
	boom := errors.New("boom")
	if _, err := Enumerate(context.Background(), func(context.Context, []string) (probe.Result, error) { return probe.Result{}, boom }); !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
}
