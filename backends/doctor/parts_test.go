package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"hearth/backends"
	"hearth/backends/probe"
)

func TestHandlerAnswersLoopbackAlone(t *testing.T) {
	runs := 0
	h := Handler(func(context.Context) (Report, error) {
		runs++
		return Report{Schema: 1, Checks: []Check{{ID: "a-b", Status: OK}}}, nil
	})
	for remote, want := range map[string]int{
		"127.0.0.1:5000": http.StatusOK, "[::1]:5000": http.StatusOK, "192.0.2.7:5000": http.StatusForbidden, "[2001:db8::1]:1": http.StatusForbidden,
		"": http.StatusForbidden, "@": http.StatusForbidden,
	} {
		r := httptest.NewRequest(http.MethodGet, "/api/doctor", nil)
		r.RemoteAddr = remote
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: status %d, want %d", remote, w.Code, want)
		}
		var m struct{ Checks []Check }
		if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil || (w.Code == http.StatusOK) != (len(m.Checks) == 1) {
			t.Errorf("%q: %s", remote, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/api/doctor", nil)
	r.RemoteAddr = "127.0.0.1:5000"
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("through a proxy: status %d", w.Code)
	}
	if runs != 2 {
		t.Errorf("%d reports were made", runs)
	}
}

func TestProbesInTheReport(t *testing.T) {
	fsys := open(t, archive(t, "xtx"))
	env, err := FromTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	healthy := func(name string) probe.Result {
		return probe.Result{Stage: probe.StageDone, Devices: []probe.Device{{Name: name, PCIID: "0000:03:00.0", Type: "gpu", Driver: "radv", MatrixCores: "KHR_coopmat"}}}
	}
	dead := func(stderr string) probe.Result {
		return probe.Result{Stage: probe.StageGemm, Exit: probe.Exit{Code: -1, Signal: "SIGABRT"}, Devices: healthy("ROCm0").Devices, Stderr: stderr, Findings: probe.Diagnose(stderr)}
	}
	for _, c := range []struct {
		name        string
		hip, vulkan probe.Result
		err         error
		want        map[string]Status
		works       []string
	}{
		{"both healthy", healthy("ROCm0"), healthy("Vulkan0"), nil,
			map[string]Status{"plugin-hip-probe": OK, "vulkan-probe": OK, "hip-devices": OK, "gfx-start": OK, "vulkan-matrix": OK}, []string{"hip", "vulkan", "cpu"}},
		{"rocBLAS aborts", dead("rocBLAS error: Cannot read x/TensileLibrary.dat: Illegal seek for GPU arch : gfx1100\n"), healthy("Vulkan0"), nil,
			map[string]Status{"plugin-hip-probe": Warn, "libs-rocblas-start": Fail, "vulkan-probe": OK}, []string{"vulkan", "cpu"}},
		{"another GPU answers", func() probe.Result { r := healthy("ROCm0"); r.Devices[0].PCIID = "0000:99:00.0"; return r }(), healthy("Vulkan0"), nil,
			map[string]Status{"hip-devices": Fail}, []string{"hip", "vulkan", "cpu"}},
		{"Vulkan sees nothing", healthy("ROCm0"), probe.Result{Stage: probe.StageDone, Findings: probe.Diagnose("ggml_vulkan: No devices found.")}, nil,
			map[string]Status{"vulkan-start": Fail, "vulkan-probe": Skip}, []string{"hip", "cpu"}},
		{"no matrix cores", healthy("ROCm0"), func() probe.Result { r := healthy("Vulkan0"); r.Devices[0].MatrixCores = "none"; return r }(), nil,
			map[string]Status{"vulkan-matrix": Warn}, []string{"hip", "vulkan", "cpu"}},
		{"no child", probe.Result{}, probe.Result{}, errors.New("no hearth-engine"),
			map[string]Status{"plugin-hip-probe": Unknown, "gfx-start": Unknown}, []string{"hip", "vulkan", "cpu"}},
	} {
		env.Probe = func(_ context.Context, backend string, _ []string) (probe.Result, error) {
			if backend == backends.HIP {
				return c.hip, c.err
			}
			return c.vulkan, c.err
		}
		r := Run(context.Background(), env)
		for id, want := range c.want {
			if got := r.Find(id); got.Status != want {
				t.Errorf("%s: %s is %+v, want %s", c.name, id, got, want)
			}
		}
		var works []string
		for _, w := range r.Works {
			if w.Works {
				works = append(works, w.Backend)
			}
		}
		if !slices.Equal(works, c.works) {
			t.Errorf("%s: works %v, want %v", c.name, works, c.works)
		}
	}
}

func TestKmsgText(t *testing.T) {
	for record, want := range map[string]string{
		"6,1234,5678901,-;amdgpu: hello; world\n SUBSYSTEM=pci\n DEVICE=+pci:0000:03:00.0\n": "amdgpu: hello; world",
		"no head": "no head",
	} {
		if got := kmsgText([]byte(record)); got != want {
			t.Errorf("%q -> %q", record, got)
		}
	}
}

// TestSpill: a full card that maps system memory is a warning; an integrated GPU does that all day.
func TestSpill(t *testing.T) {
	const total = 24 << 30
	mem := func(vram, gtt uint64) backends.Memory {
		return backends.Memory{VRAMTotal: backends.Some[uint64](total), VRAMUsed: backends.Some(vram), GTTUsed: backends.Some(gtt)}
	}
	for _, c := range []struct {
		name string
		d    backends.Device
		want Status
	}{
		{"full and spilling", backends.Device{Kind: backends.KindDiscrete, Memory: mem(total-1<<20, 3<<30)}, Warn},
		{"full", backends.Device{Kind: backends.KindDiscrete, Memory: mem(total-1<<20, 100<<20)}, OK},
		{"system memory for another reason", backends.Device{Kind: backends.KindDiscrete, Memory: mem(total/2, 3<<30)}, OK},
		{"integrated", backends.Device{Kind: backends.KindIntegrated, Memory: mem(total, 30<<30)}, Skip},
		{"unknown use", backends.Device{Kind: backends.KindDiscrete}, Skip},
	} {
		if got := checkSpill(&facts{machine: &machine{Devices: []backends.Device{c.d}}}); got.status != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.status, c.want)
		}
	}
}
