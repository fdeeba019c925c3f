package ldpath

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hearth/backends"
	"hearth/backends/sysroot"
)

func open(t *testing.T, files map[string]string) sysroot.FS {
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

func TestFindFollowsTheLoader(t *testing.T) {
	fsys := open(t, map[string]string{
		"etc/ld.so.conf":                  "include /etc/ld.so.conf.d/*.conf\n# a comment\n",
		"etc/ld.so.conf.d/rocm.conf":      "/opt/rocm/lib # ROCm\ninclude ../ld.so.conf\n",
		"etc/ld.so.conf.d/readme.txt":     "/wrong\n",
		"opt/rocm/lib/libamdhip64.so.7":   "",
		"usr/lib64/libamdhip64.so.7":      "",
		"home/me/lib/libamdhip64.so.6":    "",
		"usr/lib/libhsa-runtime64.so.1":   "",
		"usr/lib/libhsa-runtime64.so.1.1": "",
	})
	p := New(fsys, backends.Environ{"LD_LIBRARY_PATH=/home/me/lib::relative"})
	for soname, want := range map[string]string{
		"libamdhip64.so.7":              "opt/rocm/lib/libamdhip64.so.7",
		"libamdhip64.so.6":              "home/me/lib/libamdhip64.so.6",
		"libhsa-runtime64.so.1":         "usr/lib/libhsa-runtime64.so.1",
		"librocblas.so.4":               "",
		"/usr/lib64/libamdhip64.so.7":   "usr/lib64/libamdhip64.so.7",
		"/usr/lib64/no/libamdhip64.so7": "",
	} {
		if got := p.Find(soname); got != want {
			t.Errorf("%s: %q, want %q", soname, got, want)
		}
	}
	if got := p.With("/usr/lib64").Find("libamdhip64.so.7"); got != "usr/lib64/libamdhip64.so.7" {
		t.Errorf("With: %q", got)
	}
	if got := p.Match("libamdhip64.so.*"); !slices.Equal(got, []string{"home/me/lib/libamdhip64.so.6", "opt/rocm/lib/libamdhip64.so.7", "usr/lib64/libamdhip64.so.7"}) {
		t.Errorf("Match: %q", got)
	}
	if d := p.Dirs(); d[0] != "home/me/lib" || d[1] != "opt/rocm/lib" || slices.Contains(d, "relative") || slices.Contains(d, "wrong") {
		t.Errorf("dirs %q", d)
	}
}
