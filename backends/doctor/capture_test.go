package doctor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hearth/backends/probe"
	"hearth/backends/sysroot"
)

func text(t *testing.T, r Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteText(&b, true); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestCaptureRedacts plants what must not leave the machine in every place that is read.
func TestCaptureRedacts(t *testing.T) {
	dir := unpack(t, "xtx")
	write := func(name, content string) {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/cmdline", "BOOT_IMAGE=/vmlinuz-alice root=UUID=11111111-2222-3333-4444-555555555555 iommu=pt ip=10.1.2.3::::babylon ro\n")
	write("proc/self/status", "Name:\tsecretprog\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t44 104 1000\n")
	write("etc/group", "render:x:104:alice\nalice:x:1000:\n")
	write("run/.containerenv", "name=\"alices-box\"\n")
	write(".hearth/kernel.log", "amdgpu 0000:03:00.0: on babylon, serial number: ABC123XYZ\nr8169 eth0: aa:bb:cc:dd:ee:01 link up\namdgpu: from aa:bb:cc:dd:ee:ff\n")
	write(".hearth/environ", "HOME=/home/alice\nLD_LIBRARY_PATH=/home/alice/rocm/lib:/opt/rocm/lib\nROCR_VISIBLE_DEVICES=GPU-9e7f4b0d8f5f3b1b\nHF_TOKEN=hf_secret\nHEARTH_API_KEY=k123\nEDITOR=vi\n")
	write("usr/share/vulkan/icd.d/broken.json", "{ alice@babylon }")
	env, err := FromTree(openDir(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	env.Probe = func(context.Context, string, []string) (probe.Result, error) {
		return probe.Result{Stderr: "cannot open /home/alice/model on babylon\n", Errors: []string{"/home/alice/x"}}, nil
	}
	_, a, err := Capture(context.Background(), env, CaptureOptions{Hosts: []string{"babylon"}, Users: []string{"alice"}})
	if err != nil {
		t.Fatal(err)
	}
	out := string(a.Format())
	for _, secret := range []string{"alice", "babylon", "11111111-2222", "10.1.2.3", "secretprog", "ABC123XYZ", "aa:bb:cc", "hf_secret", "k123",
		"9e7f4b0d8f5f3b1b", "11420932837461522459", "EDITOR"} {
		if i := strings.Index(strings.ToLower(out), strings.ToLower(secret)); i >= 0 {
			t.Errorf("%q is in the archive: ...%s...", secret, out[max(0, i-80):min(len(out), i+80)])
		}
	}
	for _, kept := range []string{"iommu=pt", "render:x:104:", "Groups:\t44 104 1000", "LD_LIBRARY_PATH=/home/user/rocm/lib:/opt/rocm/lib", "GPU-feed0000000000", "gfx_target_version 110000"} {
		if !strings.Contains(out, kept) {
			t.Errorf("%q is lost", kept)
		}
	}
}

func TestRedactorKeepsWordsApart(t *testing.T) {
	r := newRedactor([]string{"amd"}, []string{"ed"})
	if got := r.text("amdgpu on amd: edge of ed,ed."); got != "amdgpu on host: edge of user,user." {
		t.Errorf("%q", got)
	}
	if first := r.serial(7); r.serial(0) != 0 || r.serial(7) != first || r.serial(8) == first {
		t.Error("serials do not map one to one")
	}
}

// guard is an FS that fails the test when it is asked for a name outside the tree, and counts reads.
type guard struct {
	sysroot.FS
	t     *testing.T
	reads map[string]bool
}

func (g *guard) see(name string) {
	g.reads[name] = true
	if strings.HasPrefix(name, "/") || strings.Contains(name, "..") {
		g.t.Errorf("a check asks for %q", name)
	}
}
func (g *guard) ReadFile(n string) ([]byte, error)   { g.see(n); return g.FS.ReadFile(n) }
func (g *guard) ReadDir(n string) ([]string, error)  { g.see(n); return g.FS.ReadDir(n) }
func (g *guard) ReadLink(n string) (string, error)   { g.see(n); return g.FS.ReadLink(n) }
func (g *guard) Stat(n string) (sysroot.Node, error) { g.see(n); return g.FS.Stat(n) }
func (g *guard) Access(n string) error               { g.see(n); return g.FS.Access(n) }
func (g *guard) Open(n string) (sysroot.File, error) { g.see(n); return g.FS.Open(n) }

// TestNothingOutsideTheRootIsRead has a tree full of links that lead out of it, absolute and relative, to files that
// exist on this machine and would change the report.
func TestNothingOutsideTheRootIsRead(t *testing.T) {
	dir := unpack(t, "xtx")
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "radeon_icd.json"), []byte(`{"ICD":{"library_path":"/outside.so"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"etc/vulkan/icd.d":                    outside,
		"usr/local/share/vulkan":              outside,
		"etc/ld.so.conf":                      filepath.Join(outside, "radeon_icd.json"),
		"proc/1/cgroup":                       "/proc/self/cgroup",
		"sys/fs/selinux/enforce":              "../../../../../../../../../../../../etc/hostname",
		"sys/bus/pci/devices/0000:99:00.0":    outside,
		"opt/rocm":                            outside,
		"home/user/.local/share/vulkan/icd.d": outside,
	} {
		p := filepath.Join(dir, link)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.Symlink(target, p)); err != nil {
			t.Fatal(err)
		}
	}
	env, err := FromTree(openDir(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	env.Environ = append(env.Environ, "HOME=/home/user", "LD_LIBRARY_PATH="+outside, "VK_ADD_DRIVER_FILES="+outside, "ROCBLAS_TENSILE_LIBPATH="+outside)
	g := &guard{FS: env.FS, t: t, reads: map[string]bool{}}
	env.FS = g
	r, a, err := Capture(context.Background(), env, CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(g.reads) < 50 {
		t.Errorf("only %d reads went through the root", len(g.reads))
	}
	if out := string(a.Format()); strings.Contains(out, "outside.so") || strings.Contains(text(t, r), "outside.so") {
		t.Error("a file outside the root was read")
	}
	if c := r.Find("libs-rocblas-path"); c.Status != Fail {
		t.Errorf("a folder outside the root was accepted: %+v", c)
	}
}

func TestFromTreeIgnoresThisMachine(t *testing.T) {
	t.Setenv("HSA_OVERRIDE_GFX_VERSION", "garbage")
	r := report(t, open(t, archive(t, "xtx")))
	if c := r.Find("rocr-override-syntax"); c.Status != OK {
		t.Errorf("the environment of this process leaks into a captured tree: %+v", c)
	}
}
