package fakegpu

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/engine/bundle"
)

//go:embed c/stub.c c/child.c c/icd.c
var sources embed.FS

// Variables that say where the large downloads are; `make test-hip` sets them.
const (
	EnvBundle = "HEARTH_TEST_HIP_BUNDLE" // the HIP engine bundle, build/engine/hip
	EnvROCr   = "HEARTH_TEST_ROCR"       // folder with libhsa-runtime64 7.2.4 or newer
	// EnvVulkan names the manifest of a software renderer, build/testmesa/icd.d/lvp_icd.json, for Disguise.
	EnvVulkan = "HEARTH_TEST_VK_DRIVER_FILES"
)

// Rig is one fake machine: where its files are and how a program is started on it.
type Rig struct {
	Bundle bundle.Bundle // with the ROCr that has a model mode first on its library path
	// Topology and Model are what HSA_MODEL_TOPOLOGY and HSA_MODEL_LIB are set to.
	Topology, Model string
	// GPUs are the targets of the machine's GPUs.
	GPUs []string
	// VulkanManifest is the driver file of the card's disguised Vulkan driver, empty before Disguise.
	VulkanManifest string
	dir            string
}

// New makes the fake of a captured machine, or skips the test when the HIP bundle, the ROCr or a C compiler is missing.
// A machine with several GPUs works only as far as ROCr's assertion about them (one GPU at a time).
func New(tb testing.TB, machine string) *Rig {
	tb.Helper()
	where, rocr := os.Getenv(EnvBundle), os.Getenv(EnvROCr)
	if where == "" || rocr == "" {
		tb.Skipf("%s and %s are not set: make test-hip does", EnvBundle, EnvROCr)
	}
	b, err := bundle.Load(where)
	if err != nil {
		tb.Fatal(err)
	}
	if len(b.PluginsOf(bundle.KindHIP)) == 0 {
		tb.Fatalf("%s has no HIP plugin", where)
	}
	t, err := NewTopology(fixtures.Archive(tb, machine))
	if err != nil {
		tb.Fatalf("%s: %v", machine, err)
	}
	r := &Rig{Bundle: b.WithLibraryPathFirst(rocr), GPUs: t.GPUs, dir: tb.TempDir()}
	r.Topology = filepath.Join(r.dir, "topology")
	if err := t.Write(r.Topology); err != nil {
		tb.Fatal(err)
	}
	r.Model = r.compile(tb, "stub", "-shared", "-fPIC", "-pthread")
	return r
}

// compile builds one of the C sources and returns the result's path.
func (r *Rig) compile(tb testing.TB, name string, flags ...string) string {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		tb.Skip("there is no C compiler")
	}
	text, err := sources.ReadFile("c/" + name + ".c")
	if err != nil {
		tb.Fatal(err)
	}
	src, out := filepath.Join(r.dir, name+".c"), filepath.Join(r.dir, name)
	if err := os.WriteFile(src, text, 0o644); err != nil {
		tb.Fatal(err)
	}
	args := append([]string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", out, src}, flags...)
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s %s: %v\n%s", cc, strings.Join(args, " "), err, text)
	}
	return out
}

// Disguise gives the machine a Vulkan driver: a software renderer that says it is the card of this name at this address.
// It skips the test when there is no renderer.
func (r *Rig) Disguise(tb testing.TB, name string, pci backends.PCI) {
	tb.Helper()
	manifest := os.Getenv(EnvVulkan)
	if manifest == "" {
		tb.Skipf("%s is not set: make test-hip does", EnvVulkan)
	}
	var domain, bus, slot, fn uint
	if _, err := fmt.Sscanf(string(pci), "%x:%x:%x.%x", &domain, &bus, &slot, &fn); err != nil {
		tb.Fatal(err)
	}
	lib := filepath.Join(filepath.Dir(filepath.Dir(manifest)), "lib")
	r.Bundle = r.Bundle.WithLibraryPath(lib)
	out := r.compile(tb, "icd", "-shared", "-fPIC", fmt.Sprintf("-DDRIVER=%q", filepath.Join(lib, "libvulkan_lvp.so")), fmt.Sprintf("-DNAME=%q", name),
		fmt.Sprintf("-DDOMAIN=%d", domain), fmt.Sprintf("-DBUS=%d", bus), fmt.Sprintf("-DSLOT=%d", slot), fmt.Sprintf("-DFN=%d", fn))
	dir := filepath.Join(r.dir, "vulkan")
	r.VulkanManifest = filepath.Join(dir, "radeon_icd.json")
	text := fmt.Sprintf(`{"file_format_version": "1.0.1", "ICD": {"api_version": "1.4.0", "library_path": %q}}`, filepath.Join(dir, "libvulkan_radeon.so"))
	for _, err := range []error{os.Mkdir(dir, 0o755), os.Rename(out, filepath.Join(dir, "libvulkan_radeon.so")), os.WriteFile(r.VulkanManifest, []byte(text), 0o644)} {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// Child compiles the probe child against the bundle.
func (r *Rig) Child(tb testing.TB) string {
	tb.Helper()
	dir := func(name string) string { return r.Bundle.Path(name) }
	return r.compile(tb, "child", "-I"+dir("include"), "-L"+dir("lib"), "-lllama", "-lggml", "-lggml-base",
		"-Wl,-rpath-link,"+dir("lib"), "-Wl,--allow-shlib-undefined")
}

// Env is the environment in which a program sees the fake GPU; extra variables come last.
func (r *Rig) Env(extra ...string) backends.Environ {
	return append(backends.Environ{"HSA_MODEL_TOPOLOGY=" + r.Topology, "HSA_MODEL_LIB=" + r.Model, "GGML_NO_BACKTRACE=1", "HOME=" + r.dir,
		"PATH=/usr/bin:/bin"}, extra...)
}

// Plugin is the path of the bundle's first plugin of a kind.
func (r *Rig) Plugin(kind bundle.Kind) string { return r.Bundle.Path(r.Bundle.PluginsOf(kind)[0].Path) }

// CPUPlugin is the path of the CPU plugin that runs on every x86-64.
func (r *Rig) CPUPlugin(tb testing.TB) string {
	tb.Helper()
	for _, p := range r.Bundle.PluginsOf(bundle.KindCPU) {
		if p.Name == "cpu-x64" {
			return p.Path
		}
	}
	tb.Fatal("the bundle has no cpu-x64 plugin")
	return ""
}
