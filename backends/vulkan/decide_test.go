package vulkan

import (
	"errors"
	"strings"
	"testing"

	"hearth/backends"
)

func host(driver, mesa string) Inventory {
	icd := ICD{Manifest: "usr/share/vulkan/icd.d/radeon_icd.json", Library: "usr/lib/libvulkan_radeon.so", LibraryName: "libvulkan_radeon.so", Driver: driver}
	if v, ok := ParseVersion([]byte("Mesa " + mesa)); ok {
		icd.Mesa = backends.Some(v)
	}
	return Inventory{ICDs: []ICD{icd}}
}

func TestDecide(t *testing.T) {
	mesa26 := BundleMesa{Manifest: "/b/mesa/radeon.json", Version: backends.Some(Version{26, 2, 6})}
	mesa22 := BundleMesa{Manifest: "/b/mesa/radeon.json", Version: backends.Some(Version{22, 3, 6})}
	none := Inventory{}
	gone := host(RADV, "")
	gone.ICDs[0].Library = ""
	set := host(RADV, "22.3.6")
	set.Source = "VK_DRIVER_FILES"
	for _, c := range []struct {
		name, setting string
		inv           Inventory
		bundle        BundleMesa
		gfx           string
		want, reason  string
		stale         bool
		err           error
	}{
		{"good host", "auto", host(RADV, "25.0.7"), mesa26, "gfx1100", DriverHost, "Mesa 25.0.7", false, nil},
		{"old host, RDNA3", "", host(RADV, "22.3.6"), mesa26, "gfx1100", DriverBundle, "22.3.6 has no cooperative matrices", false, nil},
		{"old host, no bundle", "auto", host(RADV, "22.3.6"), BundleMesa{}, "gfx1100", DriverHost, "HEARTH_MESA=ON", true, nil},
		{"old host, older bundle", "auto", host(RADV, "23.1.0"), mesa22, "gfx1100", DriverHost, "no newer one", true, nil},
		{"old host, RDNA2 has no matrices", "auto", host(RADV, "22.3.6"), mesa26, "gfx1030", DriverHost, "22.3.6", false, nil},
		{"24.0 is too old for RDNA4", "auto", host(RADV, "24.0.1"), mesa26, "gfx1201", DriverBundle, "25.0 has", false, nil},
		{"unknown version", "auto", host(RADV, "?"), mesa26, "gfx1100", DriverHost, "radv", false, nil},
		{"amdvlk", "auto", host(AMDVLK, ""), mesa26, "gfx1100", DriverHost, "amdvlk", false, nil},
		{"only llvmpipe", "auto", host(LLVMPipe, "22.3.6"), mesa26, "gfx1100", DriverBundle, "no Vulkan driver for AMD", false, nil},
		{"library gone", "auto", gone, mesa26, "gfx1100", DriverBundle, "which is not there", false, nil},
		{"nothing at all", "auto", none, BundleMesa{}, "gfx1100", "", "bundle has no Mesa", false, nil},
		{"variable set", "auto", set, mesa26, "gfx1100", DriverHost, "VK_DRIVER_FILES is set", false, nil},
		{"host forced", "host", host(RADV, "22.3.6"), mesa26, "gfx1100", DriverHost, "cooperative matrices", true, nil},
		{"host forced, none", "host", none, mesa26, "gfx1100", "", "", false, ErrNoDriver},
		{"bundle forced", "bundle", host(RADV, "26.2.6"), mesa26, "gfx1100", DriverBundle, "vulkan_driver is bundle", false, nil},
		{"bundle forced, none", "bundle", none, BundleMesa{}, "gfx1100", "", "", false, ErrNoDriver},
		{"typo", "hosst", none, mesa26, "gfx1100", "", "", false, ErrNoDriver},
	} {
		got, err := Decide(c.setting, c.inv, c.bundle, []string{c.gfx})
		if got.Driver != c.want || !strings.Contains(got.Reason, c.reason) || got.Stale != c.stale || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, err %v", c.name, got, err)
		}
		if (got.Driver == DriverBundle) != (len(got.Env) == 1 && got.Env[0] == "VK_DRIVER_FILES="+mesa26.Manifest) {
			t.Errorf("%s: env %q", c.name, got.Env)
		}
	}
}
