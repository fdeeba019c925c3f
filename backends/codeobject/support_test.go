package codeobject

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/backends/kfd"
	"hearth/backends/sysroot"
)

func libraryWith(t *testing.T, targets ...string) Library {
	t.Helper()
	lib := Library{Bundles: 1}
	for _, s := range targets {
		target, err := ParseTarget(s)
		if err != nil {
			t.Fatal(err)
		}
		lib.Targets = append(lib.Targets, target)
	}
	return lib
}

// debianTargets is what Debian's libggml-hip.so has.
func debianTargets() []string {
	return []string{"gfx1010", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx803", "gfx900", "gfx906", "gfx908", "gfx90a"}
}

func TestSupport(t *testing.T) {
	t.Parallel()
	debian := debianTargets()
	for _, c := range []struct {
		gpu      string
		lib      []string
		class    backends.SupportClass
		target   string
		override string
	}{
		{"gfx1100", debian, backends.SupportNative, "gfx1100", ""},
		{"gfx1201", debian, backends.SupportNone, "", ""},
		{"gfx1151", debian, backends.SupportNone, "", ""}, // not as gfx1100: wrong results are on record
		{"gfx942", debian, backends.SupportNone, "", ""},
		{"gfx1036", debian, backends.SupportOverride, "gfx1030", "10.3.0"},
		{"gfx1103", debian, backends.SupportOverride, "gfx1102", "11.0.2"},
		{"gfx90c", debian, backends.SupportOverride, "gfx900", "9.0.0"},
		{"gfx1151", []string{"gfx11-generic"}, backends.SupportGeneric, "gfx11-generic", ""},
		{"gfx1201", []string{"gfx12-generic", "gfx1201"}, backends.SupportNative, "gfx1201", ""},
		{"gfx908", []string{"gfx9-generic"}, backends.SupportNone, "", ""},
		{"gfx1250", []string{SPIRV}, backends.SupportSPIRV, SPIRV, ""},
		{"gfx90a:sramecc+:xnack-", []string{"gfx90a:sramecc+:xnack-"}, backends.SupportNative, "gfx90a:sramecc+:xnack-", ""},
		{"gfx90a", []string{"gfx90a:sramecc+:xnack-"}, backends.SupportNative, "gfx90a:sramecc+:xnack-", ""},
		{"gfx90a", []string{"gfx90a:xnack+"}, backends.SupportNone, "", ""},
		{"gfx90a:sramecc-:xnack-", []string{"gfx90a:sramecc+"}, backends.SupportNone, "", ""},
		{"gfx942:sramecc+:xnack+", []string{"gfx942"}, backends.SupportNative, "gfx942", ""},
		{"gfx942:sramecc+:xnack-", []string{"gfx9-4-generic:xnack-"}, backends.SupportGeneric, "gfx9-4-generic:xnack-", ""},
	} {
		gpu, err := ParseTarget(c.gpu)
		if err != nil {
			t.Fatal(err)
		}
		got := libraryWith(t, c.lib...).Support(gpu)
		if got.Class != c.class || got.Target != c.target || got.Override != c.override || got.Reason == "" {
			t.Errorf("%s with %s: %+v, want %s %s %s", c.gpu, strings.Join(c.lib, " "), got, c.class, c.target, c.override)
		}
	}
	unknown := Library{Unknown: "the kernels lie in .kpack archives beside the library"}
	if got := unknown.Support(Target{Processor: "gfx1100"}); got.Class != backends.SupportUnknown {
		t.Errorf("kpack: %+v", got)
	}
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"gfx1100", "gfx90a:sramecc+:xnack-", "gfx9-4-generic:xnack+", "amdgcnspirv", "gfx10-3-generic"} {
		target, err := ParseTarget(s)
		if err != nil || target.String() != s {
			t.Errorf("%s: %v, %v", s, target, err)
		}
	}
	for _, s := range []string{"", "gfx", "sm_90", "gfx1100:", "gfx1100:xnack", "gfx1100:xnack++", "gfx1100:wave64+", "gfxzz", "gfx11 00"} {
		if target, err := ParseTarget(s); err == nil {
			t.Errorf("%q gave %v, want an error", s, target)
		}
	}
}

func TestKernelNames(t *testing.T) {
	t.Parallel()
	files := ParseKernelNames([]string{
		"TensileLibrary_lazy_gfx1100.dat", "TensileLibrary_lazy_gfx90a.dat", "TensileManifest.txt",
		"TensileLibrary_Type_HH_Contraction_l_Ailk_Bljk_Cijk_Dijk_fallback_gfx1010.hsaco",
		"TensileLibrary_Type_HH_Contraction_l_Ailk_Bljk_Cijk_Dijk_gfx1100.co",
		"Kernels.so-000-gfx90a-xnack+.hsaco", "Kernels.so-000-gfx1011.hsaco", "TensileLibrary_gfx803.dat", "extop_gfx942.co",
	})
	want := KernelFiles{"gfx1100": {Index: true, Tuned: 1}, "gfx90a": {Index: true, Fallback: 1}, "gfx1010": {Fallback: 1},
		"gfx1011": {Fallback: 1}, "gfx803": {Index: true}, "gfx942": {Tuned: 1}}
	for p, w := range want {
		if files[p] != w {
			t.Errorf("%s: %+v, want %+v", p, files[p], w)
		}
	}
	if len(files) != len(want) {
		t.Errorf("%v", files)
	}
	if got := files.Processors(); !slices.Equal(got, []string{"gfx1100", "gfx803", "gfx90a"}) {
		t.Errorf("covered: %v", got)
	}
}

func TestFindKernelFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"lib/rocblas/4.4.1/library/TensileLibrary_lazy_gfx1100.dat", "lib/hipblaslt/library/gfx1201/TensileLibrary_lazy_gfx1201.dat",
		"elsewhere/TensileLibrary_lazy_gfx906.dat"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := sysroot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	for _, c := range []struct{ name, override, folder, gfx string }{
		{"rocblas", "", "lib/rocblas/4.4.1/library", "gfx1100"},
		{"hipblaslt", "", "lib/hipblaslt/library", "gfx1201"},
		{"rocblas", "/elsewhere", "elsewhere", "gfx906"},
	} {
		files, folder, err := FindKernelFiles(root, []string{"none", "lib"}, c.name, c.override)
		if err != nil || folder != c.folder || !files.Covers(c.gfx) {
			t.Errorf("%s: %v in %q, %v; want %s in %s", c.name, files, folder, err, c.gfx, c.folder)
		}
	}
	if _, _, err := FindKernelFiles(root, []string{"lib"}, "rocblas", "/nonexist"); !errors.Is(err, ErrNoKernelFiles) {
		t.Errorf("missing folder: %v", err)
	}
}

// TestApply runs the Debian plugin's targets against whole machines.
func TestApply(t *testing.T) {
	t.Parallel()
	lib := libraryWith(t, debianTargets()...)
	blas := ParseKernelNames([]string{"TensileLibrary_lazy_gfx1100.dat", "TensileLibrary_lazy_gfx906.dat"})
	for _, c := range []struct {
		machine string
		env     backends.Environ
		want    []string // class and block codes for each row
	}{
		{"xtx-igpu", nil, []string{"native", "override no-code-object no-blas-kernels"}},
		{"r9700", nil, []string{"none no-code-object no-blas-kernels"}},
		{"strix-halo", nil, []string{"none no-code-object no-blas-kernels"}},
		{"rx6600-igpu", nil, []string{"override no-code-object no-blas-kernels", "override no-code-object no-blas-kernels"}},
		// An override of the user's own makes the GPU native to the library, and then rocBLAS decides.
		{"rx6600-igpu", backends.Environ{"HSA_OVERRIDE_GFX_VERSION=10.3.0"}, []string{"native no-blas-kernels", "native no-blas-kernels"}},
		{"no-kfd", nil, []string{""}},
	} {
		s, err := kfd.Read(context.Background(), fixtures.Open(t, c.machine))
		if err != nil {
			t.Fatal(err)
		}
		before := s.Devices(c.env)
		rows := Apply(before, lib, blas)
		for i, r := range rows {
			got := ""
			if r.HIP != nil {
				got = string(r.HIP.Support.Class)
				for _, b := range r.HIP.Blocked {
					got += " " + b.Code
				}
			}
			if got != c.want[i] {
				t.Errorf("%s row %d: %q, want %q", c.machine, i, got, c.want[i])
			}
			if before[i].HIP != nil && before[i].HIP.Support.Class != "" {
				t.Errorf("%s: Apply changed its argument", c.machine)
			}
		}
	}
	rows := Apply([]backends.Device{{HIP: &backends.HIPFace{GFX: "gfx1100"}}}, lib, nil)
	if !rows[0].HIP.Usable() || rows[0].HIP.Support.BLAS.Known() {
		t.Errorf("without rocBLAS: %+v", rows[0].HIP)
	}
}

func TestKpackTargets(t *testing.T) {
	t.Parallel()
	got := KpackTargets([]string{"ggml_gfx1100.kpack", "ggml_gfx90a.kpack", "blas_lib_gfx1100.kpack", "readme", "gfx1.kpack"})
	if !slices.Equal(got, []string{"gfx1100", "gfx90a"}) {
		t.Errorf("%v", got)
	}
}
