package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/backends/probe"
	"hearth/backends/survey"
	"hearth/configs"
	"hearth/engine"
	"hearth/engine/bundle"
	"hearth/models"
)

// rig is a chooser on a captured machine, whose plugins answer as the test says.
type rig struct {
	chooser *gpuChooser
	log     bytes.Buffer
	lists   int // runs that listed Vulkan's devices: one for each look and raw index
}

// newRig: hip is what the HIP plugin's child reports, nil for a healthy one on the GPU with the address hipPCI; the Vulkan
// plugin lists the PCI addresses in vk.
func newRig(t *testing.T, machine, hipPCI string, hip *probe.Result, vk []string, env ...string) *rig {
	t.Helper()
	r := &rig{}
	log := slog.New(slog.NewTextHandler(&r.log, nil))
	root := fixtures.Open(t, machine)
	healthy := func(name, pci, typ string) probe.Result {
		return probe.Result{Stage: probe.StageDone, Devices: []probe.Device{{Name: name, PCIID: pci, Type: typ, Description: "x (RADV)", MemoryTotal: 1 << 34}},
			Gemms: []probe.Gemm{{Device: name, Case: "f16", Done: true, OK: true}}}
	}
	cfg := survey.Config{
		Root: root, Environ: env, HIPPlugin: hipPlugin(t), VulkanPlugin: "/b/libggml-vulkan.so", VulkanEnv: []string{"VK_DRIVER_FILES=/b/radeon.json"}, Logger: log,
		Command: func(args ...string) probe.Command { return probe.Command{Path: "/b/hearth-engine", Argv: args} },
		Run: func(_ context.Context, c probe.Command, _ time.Duration) (probe.Result, error) {
			if !slices.Contains(c.Argv, "/b/libggml-vulkan.so") {
				if hip != nil {
					return *hip, nil
				}
				return healthy("ROCm0", hipPCI, "gpu"), nil
			}
			filter, _ := backends.Environ(c.Env).Lookup("GGML_VK_VISIBLE_DEVICES")
			if i, err := strconv.Atoi(filter); err == nil {
				if i >= len(vk) {
					return probe.Result{Stage: probe.StageLoad, Exit: probe.Exit{Code: 3}}, nil
				}
				return healthy("Vulkan0", vk[i], "gpu"), nil
			}
			r.lists++
			all := probe.Result{Stage: probe.StageDone}
			for i, pci := range vk {
				d := healthy("Vulkan"+strconv.Itoa(i), pci, "gpu").Devices[0]
				d.Index = i
				all.Devices = append(all.Devices, d)
			}
			return all, nil
		},
	}
	b := bundle.Bundle{Manifest: bundle.Manifest{Name: "hip", Plugins: []bundle.Plugin{{Name: "hip", Kind: bundle.KindHIP}, {Name: "vulkan", Kind: bundle.KindVulkan}, {Name: "cpu-x64", Kind: bundle.KindCPU}}}}
	r.chooser = &gpuChooser{
		explicit: &explicitChooser{env: env, bundle: b, log: log}, proven: survey.New(cfg), now: time.Now, log: log,
		told: map[string]bool{}, passed: map[string]passedOver{},
	}
	cfg.Unproven = true
	r.chooser.unproven = survey.New(cfg)
	return r
}

// hipPlugin writes what the code object reader takes for code for gfx1100: the head of an ELF file for AMD GPUs.
func hipPlugin(t *testing.T) string {
	t.Helper()
	const amdgpu, gfx1100 = 224, 0x41 // e_machine, EF_AMDGPU_MACH
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01\x40\x02")
	binary.LittleEndian.PutUint16(head[18:], amdgpu)
	binary.LittleEndian.PutUint32(head[48:], gfx1100)
	path := filepath.Join(t.TempDir(), "libggml-hip.so")
	if err := os.WriteFile(path, head, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
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
	wrong := &probe.Result{Stage: probe.StageDone, Devices: []probe.Device{{Name: "ROCm0", PCIID: "0000:03:00.0"}}, Gemms: []probe.Gemm{{Device: "ROCm0", Case: "f16", Done: true, MaxError: 1}}}
	started := &probe.Result{Stage: probe.StageDone, Devices: wrong.Devices}
	xtx, igpu := "0000:03:00.0", "0000:7a:00.0"
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
		{"discrete first", "igpu-xtx", nil, []string{igpu, xtx}, configs.Run{Backend: "auto"}, nil, []string{"hip on " + xtx, "vulkan on " + xtx, "cpu"}, ""},
		{"by name", "igpu-xtx", nil, []string{igpu, xtx}, configs.Run{Backend: "auto", Device: igpu}, nil, []string{"vulkan on " + igpu, "cpu"}, "no code object for gfx1036"},
		{"no code object", "r9700", nil, []string{"0000:84:00.0"}, configs.Run{Backend: "auto"}, nil, []string{"vulkan on 0000:84:00.0", "cpu"}, "no code object for gfx1201"},
		{"hip dies", "xtx", dead, []string{xtx}, configs.Run{Backend: "auto"}, nil, []string{"vulkan on " + xtx, "cpu"}, "rocBLAS has no kernel files"},
		{"hip is wrong", "xtx", wrong, []string{xtx}, configs.Run{Backend: "auto"}, nil, []string{"vulkan on " + xtx, "cpu"}, "wrong result"},
		{"hip is asked for", "xtx", started, []string{xtx}, configs.Run{Backend: "hip"}, nil, []string{"hip on " + xtx}, "without a check"},
		{"nothing runs", "r9700", nil, nil, configs.Run{Backend: "auto"}, nil, []string{"cpu"}, "running on the CPU, no GPU can run models"},
		{"no GPU", "empty-vm", nil, nil, configs.Run{Backend: "auto"}, nil, []string{"cpu"}, "running on the CPU"},
		{"cpu", "xtx", nil, nil, configs.Run{Backend: "cpu"}, nil, []string{"cpu"}, ""},
		{"a person's own filter", "xtx", nil, nil, configs.Run{Backend: "vulkan"}, []string{"GGML_VK_VISIBLE_DEVICES=3"}, []string{"vulkan"}, ""},
		{"another vendor's GPU", "empty-vm", nil, nil, configs.Run{Backend: "vulkan"}, nil, []string{"vulkan"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.machine, xtx, c.hip, c.vk, c.env...)
			got, err := r.chooser.Choose(context.Background(), models.Entry{Name: "m"}, c.run)
			if err != nil || !slices.Equal(labels(got), c.want) {
				t.Fatalf("places %v, want %v, err %v\n%s", labels(got), c.want, err, &r.log)
			}
			reason, count := r.chooser.passedOver("m")
			if lost := c.run.Backend == "auto" && len(got) < 3 && c.machine != "empty-vm"; lost != (reason != "") || lost != (count == 1) {
				t.Errorf("passed over %d times, %q", count, reason)
			}
			if !strings.Contains(r.log.String(), c.log) {
				t.Errorf("%q is not in the log:\n%s", c.log, &r.log)
			}
		})
	}
}

func TestChooserRefusesBeforeLoading(t *testing.T) {
	r := newRig(t, "r9700", "", nil, []string{"0000:84:00.0"})
	_, err := r.chooser.Choose(context.Background(), models.Entry{Name: "m"}, configs.Run{Backend: "hip"})
	if engine.KindOf(err) != engine.KindUnsupported || !strings.Contains(err.Error(), "no code object for gfx1201") || !strings.Contains(err.Error(), "Vulkan") {
		t.Errorf("err = %v", err)
	}
	dead := &probe.Result{Stage: probe.StageLoad, Exit: probe.Exit{Signal: "SIGABRT"}}
	r = newRig(t, "xtx", "", dead, nil)
	if _, err := r.chooser.Choose(context.Background(), models.Entry{Name: "m"}, configs.Run{Backend: "hip"}); engine.KindOf(err) != engine.KindUnsupported {
		t.Errorf("a backend that does not start is offered because it was asked for: %v", err)
	}
}

func TestChooserEnvironment(t *testing.T) {
	const pci = "0000:03:00.0"
	r := newRig(t, "igpu-xtx", pci, nil, []string{"0000:7a:00.0", pci}, "HOME=/home/u", "LD_PRELOAD=/x.so")
	places, err := r.chooser.Choose(context.Background(), models.Entry{Name: "m"}, configs.Run{Backend: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	// The XTX is KFD's second GPU and Vulkan's second device on this machine.
	for i, want := range [][]string{{"ROCR_VISIBLE_DEVICES=1", "GGML_VK_VISIBLE_DEVICES="}, {"GGML_VK_VISIBLE_DEVICES=1", "ROCR_VISIBLE_DEVICES=", "VK_DRIVER_FILES=/b/radeon.json"}} {
		for _, kv := range want {
			if !slices.Contains(places[i].Env, kv) {
				t.Errorf("%s: %s is not in %v", places[i].Label, kv, places[i].Env)
			}
		}
		if slices.ContainsFunc(places[i].Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") || strings.HasPrefix(kv, "LD_") }) {
			t.Errorf("%s: %v holds what the supervisor decides about", places[i].Label, places[i].Env)
		}
		if places[i].WantPCI != pci {
			t.Errorf("%s must check for %s, has %q", places[i].Label, pci, places[i].WantPCI)
		}
	}
}

func TestChooserLooksOnce(t *testing.T) {
	r := newRig(t, "xtx", "0000:03:00.0", nil, []string{"0000:03:00.0"})
	now := time.Unix(0, 0)
	r.chooser.now = func() time.Time { return now }
	gone, cancel := context.WithCancel(context.Background())
	cancel() // a client that went away must not spoil the look
	for range 3 {
		if places, err := r.chooser.Choose(gone, models.Entry{Name: "m"}, configs.Run{Backend: "auto"}); err != nil || len(places) != 3 {
			t.Fatal(places, err)
		}
	}
	if r.lists != 1 {
		t.Errorf("%d looks at the machine, want 1", r.lists)
	}
	now = now.Add(surveyAgain)
	if _, err := r.chooser.Choose(gone, models.Entry{Name: "m"}, configs.Run{Backend: "auto", Device: "gfx1201"}); err == nil {
		t.Error("a device that is not there was found")
	}
	if r.lists != 2 {
		t.Errorf("%d looks, want a second one for a device that was not found", r.lists)
	}
}
