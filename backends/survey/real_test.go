package survey_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hearth/backends"
	"hearth/backends/probe"
	"hearth/backends/survey"
	"hearth/backends/sysroot"
	"hearth/engine/bundle"
)

// TestRealEngine runs the real engine on this machine, with the Vulkan driver that the environment names: a software
// renderer will do. It shows that the environments, the protocol and the figures fit together.
func TestRealEngine(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a software renderer takes long for its first product")
	}
	dir, drivers := os.Getenv("HEARTH_TEST_BUNDLE"), os.Getenv("HEARTH_TEST_VK_DRIVER_FILES")
	if dir == "" || drivers == "" {
		t.Skip("needs HEARTH_TEST_BUNDLE (an engine bundle) and HEARTH_TEST_VK_DRIVER_FILES (a Vulkan driver)")
	}
	b, err := bundle.Load(dir)
	if err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(b.Path("bin/hearth-engine")); err != nil || len(b.PluginsOf(bundle.KindVulkan)) == 0 {
		t.Skip("the bundle has no hearth-engine or no Vulkan plugin; make build")
	}
	if _, err := os.Stat(drivers); err != nil {
		t.Skip(err)
	}
	b = b.WithLibraryPath(filepath.Join(filepath.Dir(filepath.Dir(drivers)), "lib")) // a driver of the test's own lies there
	s := survey.New(survey.Config{
		Root: sysroot.Host(), Environ: backends.Environ{"PATH=/usr/bin:/bin", "GGML_VK_VISIBLE_DEVICES=9"},
		VulkanPlugin: b.PluginsOf(bundle.KindVulkan)[0].Path, VulkanEnv: []string{"VK_DRIVER_FILES=" + drivers},
		Command: func(args ...string) probe.Command {
			c := b.Command("hearth-engine", args...)
			return probe.Command{Path: c.Path, Argv: c.Argv, Env: c.Env}
		},
		Deadline: 5 * time.Minute, Logger: slog.New(slog.DiscardHandler),
	})
	look, err := s.Look(t.Context())
	if err != nil || look.Vulkan == nil || !look.Vulkan.OK() {
		t.Fatalf("notes %q, %v", look.Notes, err)
	}
	t.Logf("devices: %+v", look.Devices)
	// The plugin leaves software renderers out of its list, so the one that is tried is named by its raw index.
	device := backends.Device{Name: "raw index 0", Vulkan: &backends.VulkanFace{RawIndex: backends.Some(0)}}
	good, bad, err := s.Confirm(t.Context(), backends.Choice{Device: device, Backends: []string{backends.HIP, backends.Vulkan}}, "", true)
	if err != nil || len(good) != 2 || good[0].Backend != backends.Vulkan || good[0].Device != "Vulkan0" || !good[0].Total.Known() || good[1].Backend != backends.CPU {
		t.Fatalf("candidates %+v, rejected %+v, %v", good, bad, err)
	}
	if len(bad) != 1 || bad[0].Backend != backends.HIP {
		t.Errorf("rejected: %+v", bad)
	}
	t.Logf("Vulkan0: %d of %d MiB free", good[0].Free.Or(0)>>20, good[0].Total.Or(0)>>20)
}
