package survey_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/backends/probe"
	"hearth/backends/survey"
)

// engine stands for `hearth-engine devices` on a machine: it answers by the environment, as the real one does.
type engine struct {
	hip, vulkan []string // PCI addresses by ROCr's and Vulkan's own order
	hipDies     string   // why a product through HIP fails; empty: it works
	vulkanWrong bool     // Vulkan computes nonsense
	swapped     bool     // the filters are ignored
	calls       []string
}

func (e *engine) run(_ context.Context, c probe.Command, _ time.Duration) (probe.Result, error) {
	args := strings.Join(c.Argv, " ")
	env := backends.Environ(c.Env)
	e.calls = append(e.calls, args)
	all, key, prefix := e.hip, "ROCR_VISIBLE_DEVICES", "ROCm"
	if strings.Contains(args, "vulkan") {
		all, key, prefix = e.vulkan, "GGML_VK_VISIBLE_DEVICES", "Vulkan"
	}
	visible := all
	if v, ok := env.Lookup(key); ok && !e.swapped {
		visible = nil
		if i, err := strconv.Atoi(v); err == nil && i < len(all) {
			visible = all[i : i+1]
		}
	}
	r := probe.Result{Stage: probe.StageDone}
	for i, pci := range visible {
		driver := ""
		if prefix == "Vulkan" {
			driver = "radv"
		}
		r.Devices = append(r.Devices, probe.Device{Index: i, Name: prefix + strconv.Itoa(i), PCIID: pci, Type: "gpu", Driver: driver, MemoryFree: 1 << 30, MemoryTotal: 2 << 30})
	}
	if strings.Contains(args, "--gemm") && len(r.Devices) > 0 {
		r.Gemms = []probe.Gemm{{Device: prefix + "0", Case: "f16", Done: true, OK: prefix != "Vulkan" || !e.vulkanWrong}}
		if prefix == "ROCm" && e.hipDies != "" {
			r.Gemms[0].Done, r.Stage, r.Exit = false, probe.StageGemm, probe.Exit{Code: -1, Signal: "no kernel files"}
			r.Stderr, r.Findings = e.hipDies, probe.Diagnose(e.hipDies)
		}
	}
	return r, nil
}

func surveyor(t *testing.T, machine string, e *engine, log *bytes.Buffer) *survey.Surveyor {
	t.Helper()
	return survey.New(survey.Config{
		Root: fixtures.Open(t, machine), Environ: backends.Environ{"HOME=/home/u", "DRI_PRIME=1"}, Run: e.run,
		HIPPlugin: plugin(t), VulkanPlugin: "/bundle/libggml-vulkan.so", VulkanEnv: []string{"VK_DRIVER_FILES=/radv.json"},
		Command: func(args ...string) probe.Command {
			return probe.Command{Path: "/bundle/bin/hearth-engine", Argv: args, Env: []string{"BUNDLE=1"}}
		},
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
}

// plugin is a HIP plugin that nobody can read the targets of, so that the probe decides.
func plugin(t *testing.T) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "libggml-hip*.so")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("not an ELF file, long enough to look like the head of one, but it is not one"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

const xtx = "0000:03:00.0"

func TestSurvey(t *testing.T) {
	t.Parallel()
	igpuFirst := func() *engine {
		return &engine{hip: []string{"0000:7a:00.0", xtx}, vulkan: []string{"0000:7a:00.0", xtx}}
	}
	rocblas := "rocBLAS error: Cannot read /x/TensileLibrary.dat: No such file or directory for GPU arch : gfx1100\n"
	for _, c := range []struct {
		name     string
		change   func(*engine)
		allowCPU bool
		good     string
		bad      []string // words of the reasons
	}{
		{"both work", func(*engine) {}, true, "hip ROCm0 0000:03:00.0, vulkan Vulkan0 0000:03:00.0, cpu  ", nil},
		{"HIP aborts", func(e *engine) { e.hipDies = rocblas }, true, "vulkan Vulkan0 0000:03:00.0, cpu  ", []string{"no kernel files"}},
		{"Vulkan computes nonsense", func(e *engine) { e.vulkanWrong = true }, false, "hip ROCm0 0000:03:00.0", []string{"wrong"}},
		{"nothing works", func(e *engine) { e.hipDies, e.vulkanWrong = rocblas, true }, true, "cpu  ", []string{"no kernel files", "wrong"}},
		{"nothing works, no CPU", func(e *engine) { e.hipDies, e.vulkanWrong = rocblas, true }, false, "", []string{"no kernel files", "wrong"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := igpuFirst()
			c.change(e)
			var log bytes.Buffer
			s := surveyor(t, "igpu-xtx", e, &log)
			look, err := s.Look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			choice, err := backends.Select(look.Devices, backends.SelectOptions{})
			if err != nil || choice.Device.PCI != xtx {
				t.Fatalf("%s, %v", choice.Device.PCI, err)
			}
			good, bad, err := s.Confirm(t.Context(), choice, "", c.allowCPU)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, g := range good {
				got = append(got, g.Backend+" "+g.Device+" "+string(g.WantPCI))
				if g.Backend == backends.HIP && !slices.Contains(g.Env, "ROCR_VISIBLE_DEVICES=1") || g.Backend == backends.Vulkan && !slices.Contains(g.Env, "GGML_VK_VISIBLE_DEVICES=1") {
					t.Errorf("%s: %q", g.Backend, g.Env)
				}
				if slices.Contains(g.Env, "DRI_PRIME=1") || !slices.Contains(g.Env, "HOME=/home/u") {
					t.Errorf("%s: %q", g.Backend, g.Env)
				}
			}
			if strings.Join(got, ", ") != c.good {
				t.Errorf("candidates %q, want %q", got, c.good)
			}
			if len(bad) != len(c.bad) || strings.Count(log.String(), "backend passed over") != len(bad) {
				t.Errorf("rejected %+v\n%s", bad, log.String())
			}
			for i, b := range bad {
				if !strings.Contains(b.Reason, c.bad[i]) {
					t.Errorf("%s: %q, want %q in it", b.Backend, b.Reason, c.bad[i])
				}
			}
		})
	}
}

// A backend that ends up on another GPU is refused, however well it computes.
func TestSurveyWrongGPU(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	e := &engine{hip: []string{"0000:7a:00.0"}, vulkan: []string{"0000:7a:00.0", xtx}}
	s := surveyor(t, "igpu-xtx", e, &log)
	look, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.swapped = true
	choice, err := backends.Select(look.Devices, backends.SelectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	good, bad, err := s.Confirm(t.Context(), choice, "", false)
	if err != nil || len(good) != 0 || len(bad) != 2 || !strings.Contains(bad[0].Reason, "instead of "+xtx) || !strings.Contains(bad[1].Reason, "lists 2 devices") {
		t.Errorf("%+v, %+v, %v", good, bad, err)
	}
}

func TestSurveyWithoutPlugins(t *testing.T) {
	t.Parallel()
	s := survey.New(survey.Config{Root: fixtures.Open(t, "xtx"), Logger: slog.New(slog.DiscardHandler)})
	look, err := s.Look(t.Context())
	if err != nil || len(look.Devices) != 1 {
		t.Fatalf("%+v, %v", look, err)
	}
	if _, err := backends.Select(look.Devices, backends.SelectOptions{}); err == nil || !strings.Contains(err.Error(), "no HIP plugin") {
		t.Errorf("a bundle without GPU plugins: %v", err)
	}
	good, _, err := s.Confirm(t.Context(), backends.Choice{Backends: []string{backends.CPU}}, "", false)
	if err != nil || len(good) != 1 || good[0].Backend != backends.CPU {
		t.Errorf("cpu: %+v, %v", good, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Look(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Unproven skips the product, not the question where the backend sits.
func TestSurveyUnproven(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		where string
		good  int
	}{{xtx, 1}, {"0000:7a:00.0", 0}} {
		e := &engine{hip: []string{c.where}, hipDies: "Memory access fault by GPU node-1"}
		var log bytes.Buffer
		s := survey.New(survey.Config{Root: fixtures.Open(t, "xtx"), HIPPlugin: plugin(t), Run: e.run, Unproven: true,
			Command: func(args ...string) probe.Command { return probe.Command{Argv: args} }, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		look, err := s.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		good, _, err := s.Confirm(t.Context(), backends.Choice{Device: look.Devices[0], Backends: []string{backends.HIP}}, "", false)
		if err != nil || len(good) != c.good || !strings.Contains(log.String(), "without a check") {
			t.Errorf("%s: %+v, %v\n%s", c.where, good, err, log.String())
		}
	}
}

func TestSurveyOverride(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	e := &engine{hip: []string{xtx}}
	s := surveyor(t, "xtx", e, &log)
	look, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	choice := backends.Choice{Device: look.Devices[0], Backends: []string{backends.HIP}}
	good, _, err := s.Confirm(t.Context(), choice, "11.0.0", false)
	if err != nil || len(good) != 1 || !slices.Contains(good[0].Env, "HSA_OVERRIDE_GFX_VERSION_1=11.0.0") || good[0].Free.Or(0) != 1<<30 {
		t.Errorf("%+v, %v", good, err)
	}
}
