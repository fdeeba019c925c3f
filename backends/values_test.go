package backends_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"hearth/backends"
)

func TestOptional(t *testing.T) {
	t.Parallel()
	type pair struct {
		A backends.Optional[uint64] `json:"a"`
		B backends.Optional[uint64] `json:"b,omitzero"`
	}
	for _, c := range []struct {
		v    pair
		want string
	}{{pair{}, `{"a":null}`}, {pair{backends.Some[uint64](0), backends.Some[uint64](0)}, `{"a":0,"b":0}`}} {
		b, err := json.Marshal(c.v)
		if err != nil || string(b) != c.want {
			t.Errorf("%s, %v; want %s", b, err, c.want)
		}
		var back pair
		if err := json.Unmarshal(b, &back); err != nil || back != c.v {
			t.Errorf("%s came back as %+v, %v", b, back, err)
		}
	}
	if got := backends.MinKnown(backends.Optional[uint64]{}, backends.Some[uint64](7), backends.Some[uint64](3)); got.Or(0) != 3 {
		t.Errorf("least of unknown, 7, 3: %v", got)
	}
	if got := backends.MinKnown[uint64](); got.Known() || got.String() != "unknown" {
		t.Errorf("least of nothing: %v", got)
	}
}

func TestPCI(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]backends.PCI{"0000:03:00.0": "0000:03:00.0", "03:00.0": "0000:03:00.0", "0001:C2:1F.7": "0001:c2:1f.7",
		"0000:03:00": "0000:03:00.0", "10000:E1:00.0": "10000:e1:00.0"} {
		if got, err := backends.ParsePCI(in); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "3", "03:00", "0000:03:20.0", "0000:03:00.8", "gfx1100", "0000:100:00.0", "::.", "0000:03:00.0.0", "-1:03:00.0"} {
		if got, err := backends.ParsePCI(in); err == nil {
			t.Errorf("%q gave %s", in, got)
		}
	}
	if got := backends.PCIOf(1, 0xc100); got != "0001:c1:00.0" {
		t.Error(got)
	}
	if !backends.PCI("ffff:03:00.0").Less("10000:03:00.0") {
		t.Error("domain ffff must come before domain 10000")
	}
}

func TestGFX(t *testing.T) {
	t.Parallel()
	for version, want := range map[uint64]string{80003: "gfx803", 90010: "gfx90a", 90012: "gfx90c", 90402: "gfx942", 100306: "gfx1036",
		110003: "gfx1103", 110501: "gfx1151", 120001: "gfx1201", 120500: "gfx1250", 0: "", 90099: "", 1 << 40: ""} {
		if got := backends.GFXName(version); got != want {
			t.Errorf("%d: %q, want %q", version, got, want)
		}
	}
	for name, want := range map[string]string{"gfx1030": "10.3.0", "gfx90c": "9.0.12", "gfx803": "8.0.3", "gfx11-generic": "", "gfx": ""} {
		if got := backends.OverrideValue(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	// An override never leads to another generation's code.
	for _, version := range []uint64{90000, 90002, 90006, 90008, 90010, 90012, 90402, 100100, 100102, 100300, 100306, 110000, 110003, 110500, 110501, 110502, 120000, 120001} {
		name := backends.GFXName(version)
		targets, _ := backends.GFXOverrides(name)
		for _, target := range targets {
			m1, n1, _, _ := backends.GFXVersion(name)
			m2, n2, _, _ := backends.GFXVersion(target)
			if m1 != m2 || n1 != n2 || target == name {
				t.Errorf("%s as %s", name, target)
			}
		}
	}
}

func TestProblem(t *testing.T) {
	t.Parallel()
	p := backends.Problem{Path: "dev/kfd", Err: &fs.PathError{Op: "open", Path: "dev/kfd", Err: syscall.EACCES}}
	b, err := json.Marshal(p)
	if err != nil || !strings.Contains(string(b), `"errno":"EACCES"`) || !errors.Is(p, fs.ErrPermission) {
		t.Errorf("%s, %v", b, err)
	}
	if got := backends.ErrnoOf(fmt.Errorf("plain")); got != 0 {
		t.Error(got)
	}
	if got := backends.ErrnoName(syscall.Errno(71)); got != "errno 71" {
		t.Error(got)
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	some := func(n float64) backends.Optional[uint64] { return backends.Some(uint64(n * gib)) }
	card := backends.Memory{VRAMTotal: some(24), VRAMUsed: some(4), GTTTotal: some(16), GTTUsed: some(0)}
	apu := backends.Memory{VRAMTotal: some(1), VRAMUsed: some(0.25), GTTTotal: some(112), GTTUsed: some(2)}
	for _, c := range []struct {
		name  string
		in    backends.BudgetInput
		want  float64 // GiB; negative: unknown
		limit string
	}{
		{"card, kernel alone", backends.BudgetInput{Kind: backends.KindDiscrete, Memory: card}, 20 * 0.95, "vram free"},
		{"card, backend has less", backends.BudgetInput{Kind: backends.KindDiscrete, Memory: card, BackendFree: some(10)}, 9.5, "backend free"},
		{"card, backend counts GTT", backends.BudgetInput{Kind: backends.KindDiscrete, Memory: card, BackendFree: some(36)}, 19, "vram free"},
		{"card, compute buffer", backends.BudgetInput{Kind: backends.KindDiscrete, Memory: card, ComputeBuffer: 3 * gib}, 16, "vram free"},
		{"card full", backends.BudgetInput{Kind: backends.KindDiscrete, Memory: backends.Memory{VRAMTotal: some(8), VRAMUsed: some(9)}, ComputeBuffer: gib}, 0, "vram free"},
		{"unknown kind never uses GTT", backends.BudgetInput{Memory: card}, 19, "vram free"},
		{"nothing known", backends.BudgetInput{Kind: backends.KindDiscrete, Memory: backends.Memory{GTTTotal: some(16)}}, -1, ""},
		{"apu", backends.BudgetInput{Kind: backends.KindIntegrated, Memory: apu, MemAvailable: some(120)}, 110.75, "gtt and carve-out free"},
		{"apu, little memory left", backends.BudgetInput{Kind: backends.KindIntegrated, Memory: apu, MemAvailable: some(30)}, 28.75, "system memory available"},
		{"apu, own reserve", backends.BudgetInput{Kind: backends.KindIntegrated, Memory: apu, MemAvailable: some(30), Reserve: 10 * gib}, 20.75, "system memory available"},
		{"apu, old kernel gives HIP the carve-out", backends.BudgetInput{Kind: backends.KindIntegrated, Memory: apu, MemAvailable: some(120), BackendFree: some(0.75)}, 0.75, "backend free"},
		{"apu, large carve-out", backends.BudgetInput{Kind: backends.KindIntegrated, MemAvailable: some(20),
			Memory: backends.Memory{VRAMTotal: some(96), VRAMUsed: some(0), GTTTotal: some(16), GTTUsed: some(0)}}, 112, "gtt and carve-out free"},
	} {
		got := backends.BudgetFor(c.in)
		n, known := got.Bytes.Get()
		if c.want < 0 {
			if known {
				t.Errorf("%s: %+v, want unknown", c.name, got)
			}
			continue
		}
		if diff := float64(n) - c.want*gib; !known || diff > 1e3 || diff < -1e3 || got.Limit != c.limit || got.Why == "" {
			t.Errorf("%s: %.3f GiB by %q (%s), want %.3f by %q", c.name, float64(n)/gib, got.Limit, got.Why, c.want, c.limit)
		}
	}
}

func TestWorkerEnv(t *testing.T) {
	t.Parallel()
	d := backends.Device{HIP: &backends.HIPFace{ROCrIndex: backends.Some(1), UserNode: backends.Some(2)}}
	env, err := backends.WorkerEnv(backends.Environ{"A=b"}, d, backends.HIP, "10.3.0")
	if err != nil || strings.Join(env, " ") != "A=b GGML_NO_BACKTRACE=1 ROCR_VISIBLE_DEVICES=1 HSA_OVERRIDE_GFX_VERSION_2=10.3.0 GGML_VK_VISIBLE_DEVICES=" {
		t.Errorf("%q, %v", env, err)
	}
	if env, err := backends.WorkerEnv(nil, d, backends.CPU, ""); err != nil || strings.Join(env, " ") != "GGML_NO_BACKTRACE=1 ROCR_VISIBLE_DEVICES= GGML_VK_VISIBLE_DEVICES=" {
		t.Errorf("cpu: %q, %v", env, err)
	}
	for _, bad := range []struct {
		d        backends.Device
		backend  string
		override string
	}{{backends.Device{}, backends.HIP, ""}, {d, backends.Vulkan, ""}, {backends.Device{HIP: &backends.HIPFace{ROCrIndex: backends.Some(0)}}, backends.HIP, "11.0.0"}} {
		if env, err := backends.WorkerEnv(nil, bad.d, bad.backend, bad.override); err == nil {
			t.Errorf("%+v: %q", bad, env)
		}
	}
}
