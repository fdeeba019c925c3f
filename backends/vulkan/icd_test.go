package vulkan

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hearth/backends"
	"hearth/backends/sysroot"
)

const (
	radeon = `{"ICD":{"api_version":"1.4.354","library_path":"libvulkan_radeon.so"},"file_format_version":"1.0.1"}`
	amdvlk = `{"file_format_version":"1.0.0","ICD":{"library_path":"/usr/lib/x86_64-linux-gnu/amdvlk64.so","api_version":"1.4.313"}}`
	lvp    = `{"ICD":{"api_version":"1.4.354","library_path":"../lib/libvulkan_lvp.so"},"file_format_version":"1.0.1"}`
)

// tree writes files into a folder and opens it as a captured machine.
func tree(t *testing.T, files map[string]string) sysroot.FS {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := sysroot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func debianHost(mesa string) map[string]string {
	return map[string]string{
		"usr/share/vulkan/icd.d/radeon_icd.x86_64.json":     radeon,
		"usr/lib/x86_64-linux-gnu/libvulkan_radeon.so":      "\x7fELF...driver\x00Mesa " + mesa + "\x00",
		"usr/lib/x86_64-linux-gnu/libvulkan.so.1":           "",
		"usr/share/vulkan/implicit_layer.d/device_sel.json": `{"layer":{"name":"VK_LAYER_MESA_device_select","disable_environment":{"NODEVICE_SELECT":"1"}}}`,
	}
}

func names(inv Inventory) []string {
	var out []string
	for _, i := range inv.ICDs {
		out = append(out, filepath.Base(i.Manifest)+":"+i.Driver+":"+i.Skipped)
	}
	return out
}

func TestDiscoverDebian(t *testing.T) {
	inv := Discover(tree(t, debianHost("22.3.6")), nil)
	if len(inv.ICDs) != 1 || len(inv.Problems) != 0 || inv.Loader != "usr/lib/x86_64-linux-gnu/libvulkan.so.1" {
		t.Fatalf("%+v", inv)
	}
	icd := inv.ICDs[0]
	if icd.Driver != RADV || icd.Library != "usr/lib/x86_64-linux-gnu/libvulkan_radeon.so" || !icd.Usable() {
		t.Errorf("%+v", icd)
	}
	if v, _ := icd.Mesa.Get(); v != (Version{22, 3, 6}) {
		t.Errorf("Mesa %v", icd.Mesa)
	}
	if len(inv.Layers) != 1 || inv.Layers[0].Name != "VK_LAYER_MESA_device_select" {
		t.Errorf("layers %+v", inv.Layers)
	}
	if inv := Discover(tree(t, debianHost("22.3.6")), backends.Environ{"NODEVICE_SELECT=1"}); len(inv.Layers) != 0 {
		t.Errorf("a disabled layer is listed: %+v", inv.Layers)
	}
}

func TestDiscoverSearchOrderAndEnvironment(t *testing.T) {
	files := debianHost("26.2.6")
	files["etc/vulkan/icd.d/amd_icd64.json"] = amdvlk
	files["home/u/.local/share/vulkan/icd.d/lvp_icd.json"] = lvp
	files["home/u/.local/share/vulkan/lib/libvulkan_lvp.so"] = "Mesa 26.2.6"
	files["opt/v/one.json"] = strings.Replace(radeon, "libvulkan_radeon.so", "/opt/v/libvulkan_radeon.so", 1)
	files["usr/share/vulkan/icd.d/notes.txt"] = "not a manifest"
	fsys := tree(t, files)
	home := "HOME=/home/u"
	for _, c := range []struct {
		name   string
		env    backends.Environ
		want   []string
		source string
	}{
		{"standard", backends.Environ{home}, []string{"amd_icd64.json:amdvlk:", "lvp_icd.json:llvmpipe:", "radeon_icd.x86_64.json:radv:"}, ""},
		{"no home", nil, []string{"amd_icd64.json:amdvlk:", "radeon_icd.x86_64.json:radv:"}, ""},
		{"XDG_DATA_DIRS", backends.Environ{"XDG_DATA_DIRS=/nowhere"}, []string{"amd_icd64.json:amdvlk:"}, ""},
		{"VK_DRIVER_FILES", backends.Environ{home, "VK_DRIVER_FILES=/opt/v/one.json", "VK_ICD_FILENAMES=/x.json"}, []string{"one.json:radv:"}, "VK_DRIVER_FILES"},
		{"a directory", backends.Environ{"VK_ICD_FILENAMES=/opt/v"}, []string{"one.json:radv:"}, "VK_ICD_FILENAMES"},
		{"VK_ADD_DRIVER_FILES", backends.Environ{"VK_ADD_DRIVER_FILES=/opt/v/one.json"}, []string{"one.json:radv:", "amd_icd64.json:amdvlk:", "radeon_icd.x86_64.json:radv:"}, ""},
		{"disable", backends.Environ{"VK_LOADER_DRIVERS_DISABLE=*AMD*,foo"}, []string{"amd_icd64.json:amdvlk:disabled by VK_LOADER_DRIVERS_DISABLE", "radeon_icd.x86_64.json:radv:"}, ""},
		{"select", backends.Environ{"VK_LOADER_DRIVERS_SELECT=radeon*"}, []string{"amd_icd64.json:amdvlk:not selected by VK_LOADER_DRIVERS_SELECT", "radeon_icd.x86_64.json:radv:"}, ""},
		{"AMD_VULKAN_ICD", backends.Environ{"AMD_VULKAN_ICD=RADV"}, []string{"amd_icd64.json:amdvlk:steps aside because AMD_VULKAN_ICD=RADV", "radeon_icd.x86_64.json:radv:"}, ""},
	} {
		inv := Discover(fsys, c.env)
		if got := names(inv); !slices.Equal(got, c.want) || inv.Source != c.source {
			t.Errorf("%s:\n have %q from %q\n want %q from %q", c.name, got, inv.Source, c.want, c.source)
		}
	}
}

func TestDiscoverMissingFile(t *testing.T) {
	inv := Discover(tree(t, debianHost("26.2.6")), backends.Environ{"VK_DRIVER_FILES=/gone.json"})
	if len(inv.ICDs) != 0 || len(inv.Problems) != 1 || !errors.Is(inv.Problems[0], fs.ErrNotExist) {
		t.Errorf("%+v", inv)
	}
}

func TestManifestErrors(t *testing.T) {
	for _, bad := range []string{"", "[]", "{}", `{"ICD":{}}`, `{"ICD":{"library_path":3}}`, strings.Repeat(" ", maxManifest) + radeon} {
		if _, err := parseManifest([]byte(bad)); !errors.Is(err, ErrManifest) {
			t.Errorf("%.20q: err = %v", bad, err)
		}
	}
	inv := Discover(tree(t, map[string]string{"etc/vulkan/icd.d/x.json": "{"}), nil)
	if len(inv.Problems) != 1 {
		t.Errorf("a broken manifest is not reported: %+v", inv)
	}
}

func Test32BitDriverIsSkipped(t *testing.T) {
	files := debianHost("26.2.6")
	files["usr/share/vulkan/icd.d/radeon_icd.i686.json"] = strings.Replace(radeon, `"api_version"`, `"library_arch":"32","api_version"`, 1)
	inv := Discover(tree(t, files), nil)
	if len(inv.ICDs) != 2 || inv.ICDs[0].Usable() || !inv.ICDs[1].Usable() {
		t.Errorf("%+v", inv.ICDs)
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]Version{
		"Mesa 22.3.6": {22, 3, 6}, "\x00Mesa 26.0.0-devel (git-abc)\x00": {26, 0, 0}, "Mesa 25.1": {25, 1, 0},
	} {
		if v, ok := ParseVersion([]byte(text)); !ok || v != want {
			t.Errorf("%q: %v %v", text, v, ok)
		}
	}
	if _, ok := ParseVersion([]byte("Mesa DRI driver")); ok {
		t.Error("a version where there is none")
	}
}

func TestVersionAcrossChunks(t *testing.T) {
	pad := strings.Repeat("x", chunk-8)
	v := mesaVersion(tree(t, map[string]string{"l.so": pad + "Mesa 24.1.2" + pad}), "l.so")
	if got, _ := v.Get(); got != (Version{24, 1, 2}) {
		t.Errorf("%v", v)
	}
}

func FuzzManifest(f *testing.F) {
	for _, s := range []string{radeon, amdvlk, lvp, `{"layer":{"name":"x","enable_environment":{"A":"1"}}}`, `{"layers":[{"name":"x"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := parseManifest(b); err == nil && m.ICD.LibraryPath == "" {
			t.Fatal("a manifest without a library")
		}
		layers, err := parseLayers(b, "f", backends.Environ{"A=1"})
		for _, l := range layers {
			if err != nil || l.Name == "" {
				t.Fatal("a layer without a name")
			}
		}
		ParseVersion(b)
	})
}
