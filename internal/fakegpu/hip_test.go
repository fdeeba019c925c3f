package fakegpu

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hearth/backends"
	"hearth/backends/doctor"
	"hearth/backends/fixtures"
	"hearth/backends/kfd"
	"hearth/backends/probe"
	"hearth/engine/bundle"
	"hearth/internal/toygguf"
)

// deadline bounds one child: reading 1.2 GB of code objects from a cold disk takes longest.
const deadline = 4 * time.Minute

// run starts the probe child on the rig.
func run(t *testing.T, r *Rig, child string, env backends.Environ, args ...string) probe.Result {
	t.Helper()
	c := r.Bundle.Command(child, args...)
	res, err := probe.Run(context.Background(), probe.Command{Path: c.Path, Argv: c.Argv, Env: append(env, c.Env...)}, deadline)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v: %s, stage %s, %.1f s", args, res.Exit, res.Stage, res.Took.Seconds())
	return res
}

func found(r probe.Result, id string) bool {
	return slices.ContainsFunc(r.Findings, func(f probe.Finding) bool { return f.ID == id })
}

// tail is the end of a child's stderr, for messages.
func tail(r probe.Result) string {
	const most = 1500
	return r.Stderr[max(0, len(r.Stderr)-most):]
}

// TestFake7900XTX: the real HIP runtime and llama.cpp's real HIP plugin see the card of the captured machine.
func TestFake7900XTX(t *testing.T) {
	r := New(t, "xtx")
	child := r.Child(t)
	hip := r.Plugin(bundle.KindHIP)

	root := fixtures.Open(t, "xtx")
	sys, err := kfd.Read(context.Background(), root)
	if err != nil {
		t.Fatal(err)
	}
	want := sys.Devices(nil)[0]

	t.Run("devices", func(t *testing.T) {
		res := run(t, r, child, r.Env(), "devices", hip)
		if !res.OK() || len(res.Devices) != 1 {
			t.Fatalf("%s; stderr:\n%s", res.Why(), tail(res))
		}
		d := res.Devices[0]
		if d.Name != want.HIP.Name || d.PCIID != string(want.PCI) || d.Type != "gpu" {
			t.Errorf("HIP says %+v, our reading of the kernel's files says %+v", d, want)
		}
		if pool, _ := want.Memory.Pool.Get(); d.MemoryTotal != pool || d.MemoryFree == 0 || d.MemoryFree > pool {
			t.Errorf("memory %d of %d, the kernel says %d", d.MemoryFree, d.MemoryTotal, pool)
		}
		if !strings.Contains(res.Stderr, "gfx1100") || len(res.Findings) != 0 {
			t.Errorf("findings %+v, stderr:\n%s", res.Findings, tail(res))
		}
	})

	t.Run("environment filters", func(t *testing.T) {
		for _, c := range []struct {
			env     string
			visible bool
		}{
			{"ROCR_VISIBLE_DEVICES=0", true}, {"ROCR_VISIBLE_DEVICES=" + want.UUID, true}, {"ROCR_VISIBLE_DEVICES=" + want.UUID[:6], true},
			{"ROCR_VISIBLE_DEVICES=0,7", true}, {"ROCR_VISIBLE_DEVICES=1", false}, {"ROCR_VISIBLE_DEVICES=", false}, {"ROCR_VISIBLE_DEVICES=GPU-XX", false},
			{"HIP_VISIBLE_DEVICES=0", true}, {"HIP_VISIBLE_DEVICES=-1", false}, {"CUDA_VISIBLE_DEVICES=1", false}, {"GPU_DEVICE_ORDINAL=1", true},
			{"HSA_OVERRIDE_GFX_VERSION=11.0.0", true}, {"HSA_OVERRIDE_GFX_VERSION=gfx1030", false},
		} {
			res := run(t, r, child, r.Env(c.env), "devices", hip)
			if got := len(res.Devices) == 1; got != c.visible {
				t.Errorf("%s: %d devices, exit %s", c.env, len(res.Devices), res.Exit)
			}
			predicted := slices.ContainsFunc(sys.Agents(backends.Environ{c.env}).List, func(a kfd.Agent) bool { return a.HIP.Known() })
			if predicted != c.visible {
				t.Errorf("%s: our prediction says visible=%v, HIP says %v", c.env, predicted, c.visible)
			}
			if !c.visible && !found(res, "hip-no-device") {
				t.Errorf("%s: not diagnosed: %+v\n%s", c.env, res.Findings, tail(res))
			}
		}
	})

	t.Run("a model loads with all layers offloaded", func(t *testing.T) {
		const layers = 4
		model := filepath.Join(t.TempDir(), "toy.gguf")
		if err := toygguf.Write(model, toygguf.Spec{Kind: toygguf.Llama, Layers: layers}); err != nil {
			t.Fatal(err)
		}
		res := run(t, r, child, r.Env(), "load", hip, r.CPUPlugin(t), model, "99")
		all := strconv.Itoa(layers + 1) // and the output layer
		if !strings.Contains(res.Stderr, "offloaded "+all+"/"+all+" layers to GPU") {
			t.Errorf("not offloaded: %s\n%s", res.Why(), tail(res))
		}
		if res.Exit.Code != 0 || res.Stage != probe.StageDone { // a decode went through HIP's queues; the numbers are garbage
			t.Errorf("%s at %s\n%s", res.Exit, res.Stage, tail(res))
		}
		if !strings.Contains(res.Stderr, "ROCm0") {
			t.Errorf("no buffer is on ROCm0:\n%s", tail(res))
		}
	})

	t.Run("a wrong result is not taken for success", func(t *testing.T) {
		res := run(t, r, child, r.Env(), "devices", hip, "--gemm")
		if len(res.Gemms) != 1 || !res.Gemms[0].Done || res.Gemms[0].OK || res.OK() {
			t.Fatalf("kernels do not run here, and the product is called right: %+v\n%s", res.Gemms, tail(res))
		}
		if !strings.Contains(res.Why(), "wrong result") {
			t.Errorf("why: %s", res.Why())
		}
	})

	t.Run("rocBLAS without its files", func(t *testing.T) {
		res := run(t, r, child, r.Env("ROCBLAS_TENSILE_LIBPATH=/nonexistent", "GGML_CUDA_FORCE_CUBLAS=1"), "devices", hip, "--gemm")
		if res.Exit.Signal != "SIGABRT" && res.Exit.Code != 134 || !found(res, "rocblas-no-tensile") {
			t.Errorf("%s, findings %+v\n%s", res.Exit, res.Findings, tail(res))
		}
	})
}

// TestFakeUnsupportedTargets: what happens on GPUs for which Debian's plugin has no code. The list of devices looks
// healthy; the death comes at the first kernel. So the answer must come from the code objects, before the start.
func TestFakeUnsupportedTargets(t *testing.T) {
	for machine, gfx := range map[string]string{"r9700": "gfx1201", "strix-halo": "gfx1151"} {
		t.Run(gfx, func(t *testing.T) {
			r := New(t, machine)
			child := r.Child(t)
			hip := r.Plugin(bundle.KindHIP)
			if !slices.Equal(r.GPUs, []string{gfx}) {
				t.Fatalf("the fake machine has %v", r.GPUs)
			}
			if slices.Contains(r.Bundle.GFXTargets, gfx) {
				t.Skipf("this bundle has code for %s", gfx)
			}
			res := run(t, r, child, r.Env(), "devices", hip)
			if !res.OK() || len(res.Devices) != 1 {
				t.Errorf("enumeration: %s\n%s", res.Why(), tail(res))
			}
			for what, ids := range map[string][]string{
				"--add":  {"gfx-no-code-object", "gfx-invalid-device-function"}, // llama.cpp's own kernels
				"--gemm": {"gfx-no-code-object", "rocblas-no-tensile"},          // rocBLAS comes first
			} {
				res = run(t, r, child, r.Env("AMD_LOG_LEVEL=1"), "devices", hip, what)
				if res.OK() || res.Exit.Signal != "SIGABRT" {
					t.Errorf("%s on %s: %s\n%s", what, gfx, res.Exit, tail(res))
				}
				for _, id := range ids {
					if !found(res, id) {
						t.Errorf("%s on %s: no finding %s\n%s", what, gfx, id, tail(res))
					}
				}
				if res.Stage != probe.StageGemm || len(res.Devices) != 1 {
					t.Errorf("stage %s, %d devices: the death must not hide the list", res.Stage, len(res.Devices))
				}
			}
		})
	}
}

// TestTwoFakesAbort pins the limit of the stock ROCr and, with it, that an abort inside hsa_init is survived and named.
func TestTwoFakesAbort(t *testing.T) {
	r := New(t, "xtx-igpu")
	res := run(t, r, r.Child(t), r.Env(), "devices", r.Plugin(bundle.KindHIP))
	if res.OK() || res.Exit.Signal != "SIGABRT" || res.Stage != probe.StageLoad || !found(res, "rocr-model-abort") {
		t.Errorf("%s at %s, findings %+v\n%s", res.Exit, res.Stage, res.Findings, tail(res))
	}
}

// TestDoctorOnFakes: the doctor's report on a captured machine, with the real plugin started on its fake.
func TestDoctorOnFakes(t *testing.T) {
	for _, c := range []struct {
		machine, check string
		status         doctor.Status
	}{
		{"xtx", "hip-devices", doctor.OK}, {"xtx", "plugin-hip-probe", doctor.OK}, {"xtx", "gfx-code-object", doctor.OK},
		{"r9700", "gfx-code-object", doctor.Fail}, // no Vulkan driver in the bare fixture stands in
		{"strix-halo", "gfx-code-object", doctor.Fail},
	} {
		r := New(t, c.machine)
		child := r.Child(t)
		rep := doctor.Run(context.Background(), doctor.Env{
			FS: fixtures.Open(t, c.machine),
			Bundle: &doctor.Bundle{
				Name: r.Bundle.Name, GGMLVersion: r.Bundle.GGMLVersion, Source: string(r.Bundle.Source), Plugins: []string{"cpu", "hip"},
				GFXTargets: r.Bundle.GFXTargets,
			},
			Probe: func(_ context.Context, backend string, env []string) (probe.Result, error) {
				return run(t, r, child, r.Env(env...), "devices", r.Plugin(bundle.Kind(backend))), nil
			},
		})
		got := rep.Find(c.check)
		if got.Status != c.status {
			t.Errorf("%s: %+v", c.machine, got)
		}
		if c.status == doctor.Fail && (!strings.Contains(got.Evidence, r.GPUs[0]) || !strings.Contains(got.Fix, "Vulkan")) {
			t.Errorf("%s: the report names neither the target nor the way out: %+v", c.machine, got)
		}
	}
}
