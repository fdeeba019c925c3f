package main

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"hearth/backends"
	"hearth/backends/codeobject"
	"hearth/backends/fixtures"
	"hearth/backends/probe"
	"hearth/backends/survey"
	"hearth/backends/vulkan"
	"hearth/configs"
	"hearth/engine"
	"hearth/engine/bundle"
	"hearth/models"
)

// rig is a chooser on a captured machine with Debian's HIP bundle, whose plugins answer as the test says.
type rig struct {
	chooser *gpuChooser
	log     bytes.Buffer
	looks   int
}

// newRig: hip is what the HIP plugin's child reports; the Vulkan one lists the PCI addresses in vk.
func newRig(t *testing.T, machine string, hip *probe.Result, vk []string, env ...string) *rig {
	t.Helper()
	debian := []string{"gfx803", "gfx900", "gfx906", "gfx908", "gfx90a", "gfx1010", "gfx1030", "gfx1100", "gfx1101", "gfx1102"}
	blas := codeobject.KernelFiles{}
	for _, g := range debian {
		blas[g] = codeobject.KernelCount{Index: true, Tuned: 9}
	}
	e := survey.Env{
		FS: fixtures.Open(t, machine), Environ: env, VulkanDriver: vulkan.DriverBundle,
		Bundle: &survey.Bundle{Name: "hip", Plugins: []string{"cpu", "vulkan", "hip"}, GFXTargets: debian, BLAS: blas, Mesa: vulkan.BundleMesa{Manifest: "/b/radeon.json"}},
		Probe: func(_ context.Context, backend string, extra []string) (probe.Result, error) {
			if backend == backends.HIP {
				if hip != nil {
					return *hip, nil
				}
				return probe.Result{Stage: probe.StageDone}, nil
			}
			r := probe.Result{Stage: probe.StageDone}
			for i, pci := range vk {
				filter := "GGML_VK_VISIBLE_DEVICES=" + string(rune('0'+i))
				if len(extra) == 1 || slices.Contains(extra, filter) { // the first entry is VK_DRIVER_FILES
					r.Devices = append(r.Devices, probe.Device{Index: len(r.Devices), Name: "Vulkan0", Type: "gpu", PCIID: pci, Description: "x (RADV)", MemoryTotal: 1 << 34})
				}
			}
			return r, nil
		},
	}
	b := bundle.Bundle{Manifest: bundle.Manifest{Name: "hip", Plugins: []bundle.Plugin{{Name: "hip", Kind: bundle.KindHIP}, {Name: "vulkan", Kind: bundle.KindVulkan}, {Name: "cpu-x64", Kind: bundle.KindCPU}}}}
	r := &rig{}
	log := slog.New(slog.NewTextHandler(&r.log, nil))
	r.chooser = &gpuChooser{
		explicit: &explicitChooser{env: env, bundle: b, log: log}, now: time.Now, log: log,
		look: func(ctx context.Context) *survey.Survey { r.looks++; return survey.Take(ctx, e) },
	}
	return r
}

func labels(places []Placement) []string {
	var out []string
	for _, p := range places {
		out = append(out, p.Label)
	}
	return out
}

func TestChooserPlaces(t *testing.T) {
	dead := &probe.Result{Stage: probe.StageGemm, Exit: probe.Exit{Signal: "SIGABRT"}, Findings: probe.Diagnose("rocBLAS error: Cannot read x/TensileLibrary.dat: Illegal seek for GPU arch : gfx1100")}
	xtx := "0000:03:00.0"
	for _, c := range []struct {
		name, machine string
		hip           *probe.Result
		vk            []string
		run           configs.Run
		env           []string
		want          []string
		log           string
	}{
		{"healthy", "xtx", nil, []string{xtx}, configs.Run{Backend: "auto"}, nil, []string{"hip on " + xtx, "vulkan on " + xtx, "cpu"}, "device chosen"},
		{"discrete first", "igpu-xtx", nil, []string{"0000:7a:00.0", xtx}, configs.Run{Backend: "auto"}, nil, []string{"hip on " + xtx, "vulkan on " + xtx, "cpu"}, ""},
		{"by name", "igpu-xtx", nil, []string{"0000:7a:00.0", xtx}, configs.Run{Backend: "auto", Device: "0000:7a:00.0"}, nil, []string{"vulkan on 0000:7a:00.0", "cpu"}, "hip is passed over"},
		{"no code object", "r9700", nil, []string{"0000:84:00.0"}, configs.Run{Backend: "auto"}, nil, []string{"vulkan on 0000:84:00.0", "cpu"}, "no code object for gfx1201"},
		{"hip dies", "xtx", dead, []string{xtx}, configs.Run{Backend: "auto"}, nil, []string{"vulkan on " + xtx, "cpu"}, "rocBLAS has no kernel files"},
		{"hip dies and is asked for", "xtx", dead, []string{xtx}, configs.Run{Backend: "hip"}, nil, []string{"hip on " + xtx}, "asked for although its probe failed"},
		{"nothing runs", "r9700", nil, nil, configs.Run{Backend: "auto"}, nil, []string{"cpu"}, "running on the CPU, no GPU can run models"},
		{"no GPU", "empty-vm", nil, nil, configs.Run{Backend: "auto"}, nil, []string{"cpu"}, "running on the CPU"},
		{"cpu", "xtx", nil, nil, configs.Run{Backend: "cpu"}, nil, []string{"cpu"}, ""},
		{"a person's own filter", "xtx", nil, nil, configs.Run{Backend: "vulkan"}, []string{"GGML_VK_VISIBLE_DEVICES=3"}, []string{"vulkan"}, ""},
		{"another vendor's GPU", "empty-vm", nil, nil, configs.Run{Backend: "vulkan"}, nil, []string{"vulkan"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.machine, c.hip, c.vk, c.env...)
			got, err := r.chooser.Choose(context.Background(), models.Entry{Name: "m"}, c.run)
			if err != nil || !slices.Equal(labels(got), c.want) {
				t.Fatalf("places %v, want %v, err %v", labels(got), c.want, err)
			}
			if !strings.Contains(r.log.String(), c.log) {
				t.Errorf("%q is not in the log:\n%s", c.log, r.log.String())
			}
		})
	}
}

func TestChooserRefusesBeforeLoading(t *testing.T) {
	r := newRig(t, "r9700", nil, []string{"0000:84:00.0"})
	_, err := r.chooser.Choose(context.Background(), models.Entry{Name: "m"}, configs.Run{Backend: "hip"})
	if engine.KindOf(err) != engine.KindUnsupported || !strings.Contains(err.Error(), "no code object for gfx1201") || !strings.Contains(err.Error(), "Vulkan") {
		t.Errorf("err = %v", err)
	}
}

func TestChooserEnvironment(t *testing.T) {
	r := newRig(t, "igpu-xtx", nil, []string{"0000:7a:00.0", "0000:03:00.0"})
	places, err := r.chooser.Choose(context.Background(), models.Entry{Name: "m"}, configs.Run{Backend: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	// The XTX is KFD's second GPU and Vulkan's second device on this machine.
	for i, want := range [][]string{{"ROCR_VISIBLE_DEVICES=1", "GGML_VK_VISIBLE_DEVICES="}, {"GGML_VK_VISIBLE_DEVICES=1", "ROCR_VISIBLE_DEVICES=", "VK_DRIVER_FILES=/b/radeon.json"}, nil} {
		for _, kv := range want {
			if !slices.Contains(places[i].Env, kv) {
				t.Errorf("%s: %s is not in %v", places[i].Label, kv, places[i].Env)
			}
		}
		if wantPCI := map[bool]string{true: "0000:03:00.0"}[want != nil]; places[i].WantPCI != wantPCI {
			t.Errorf("%s must check for %q, has %q", places[i].Label, wantPCI, places[i].WantPCI)
		}
	}
}

func TestChooserLooksOnce(t *testing.T) {
	r := newRig(t, "xtx", nil, []string{"0000:03:00.0"})
	now := time.Unix(0, 0)
	r.chooser.now = func() time.Time { return now }
	gone, cancel := context.WithCancel(context.Background())
	cancel() // a client that went away must not spoil the look
	for range 3 {
		if places, err := r.chooser.Choose(gone, models.Entry{Name: "m"}, configs.Run{Backend: "auto"}); err != nil || len(places) != 3 {
			t.Fatal(places, err)
		}
	}
	if r.looks != 1 {
		t.Errorf("%d looks at the machine, want 1", r.looks)
	}
	now = now.Add(surveyAgain)
	if _, err := r.chooser.Choose(gone, models.Entry{Name: "m"}, configs.Run{Backend: "auto", Device: "gfx1201"}); err == nil {
		t.Error("a device that is not there was found")
	}
	if r.looks != 2 {
		t.Errorf("%d looks, want a second one for a device that was not found", r.looks)
	}
}
