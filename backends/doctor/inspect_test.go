package doctor

import (
	"slices"
	"strings"
	"testing"

	"hearth/backends/sysroot"
)

func TestInspectBundleReportsWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	a := sysroot.Archive{Files: []sysroot.ArchiveFile{
		{Name: "b/backends/libggml-hip.so", Data: []byte("not an ELF file\n")},
		{Name: "b/lib/rocblas/4.4.1/library/TensileLibrary_lazy_gfx1100.dat"},
		{Name: "b/lib/rocblas/4.4.1/library/TensileLibrary_Type_HH_gfx1100.co"},
		{Name: "cache/libhsa-runtime64.so.1.15.0"},
		{Name: "b/mesa/radeon_icd.json", Data: []byte(`{"ICD":{"library_path":"/b/mesa/libvulkan_radeon.so","api_version":"1.4"}}` + "\n")},
		{Name: "b/mesa/libvulkan_radeon.so", Data: []byte("Mesa 26.2.6\n")},
		{Name: sysroot.LinksFile, Data: []byte("b/lib/libhsa-runtime64.so.1 -> ../../cache/libhsa-runtime64.so.1.15.0\n")},
	}}
	if err := a.Unpack(dir); err != nil {
		t.Fatal(err)
	}
	b := InspectBundle(openDir(t, dir), nil, BundleFiles{
		Name: "hip", Plugins: []PluginFile{{"cpu", "/b/backends/libggml-cpu.so"}, {"cpu", "/b/backends/other.so"}, {"hip", "/b/backends/libggml-hip.so"}},
		LibraryDirs: []string{"/b/lib"}, VulkanManifests: []string{"/b/mesa/radeon_icd.json"},
	})
	if !slices.Equal(b.Plugins, []string{"cpu", "hip"}) || b.GFXUnknown == "" || !b.BLAS.Covers("gfx1100") || b.ROCr != "1.15.0" {
		t.Errorf("%+v", b)
	}
	if v, ok := b.Mesa.Version.Get(); !ok || v.Major != 26 || b.Mesa.Manifest == "" {
		t.Errorf("Mesa %+v", b.Mesa)
	}
	if strings.Contains(b.GFXUnknown, dir) {
		t.Errorf("a path of this machine leaks: %s", b.GFXUnknown)
	}
}
