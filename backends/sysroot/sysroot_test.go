package sysroot_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"hearth/backends/sysroot"
)

// forms runs a test on an archive in memory and unpacked.
func forms(t *testing.T, archive string, test func(*testing.T, sysroot.FS)) {
	t.Helper()
	t.Run("disk", func(t *testing.T) {
		root, _ := open(t, archive)
		test(t, root)
	})
	t.Run("memory", func(t *testing.T) {
		root, err := sysroot.ParseArchive([]byte(archive)).FS()
		if err != nil {
			t.Fatal(err)
		}
		test(t, root)
	})
}

func open(t *testing.T, archive string) (*sysroot.Captured, string) {
	t.Helper()
	dir := t.TempDir()
	if err := sysroot.ParseArchive([]byte(archive)).Unpack(dir); err != nil {
		t.Fatal(err)
	}
	root, err := sysroot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root, dir
}

const sample = `a machine
-- .nodes --
dev/kfd crw-rw---- 0 104 235 0
dev/sda brw-rw---- 0 6 8 0
-- .errors --
# masked
sys/class/kfd/id EPERM read
dev/sda EACCES
sys/gone ENOENT
-- .links --
sys/class -> devices/real
sys/up -> ../sys/devices
sys/loop -> loop
sys/out -> /etc/passwd
-- sys/devices/real/kfd/id --
17
-- sys/devices/real/kfd/name --
ip discovery
-- sys/gone --
-- sys/bin.hex --
00ff
10
`

func TestCaptured(t *testing.T) {
	t.Parallel()
	forms(t, sample, testCaptured)
}

func testCaptured(t *testing.T, root sysroot.FS) {
	errno := func(err error) syscall.Errno {
		e, _ := errors.AsType[syscall.Errno](err)
		return e
	}
	if s, err := sysroot.ReadString(root, "sys/class/kfd/name"); s != "ip discovery" || err != nil {
		t.Errorf("through a link: %q, %v", s, err)
	}
	for _, name := range []string{"sys/class/kfd/id", "sys/devices/real/kfd/id", "sys/up/real/kfd/id"} {
		if _, err := root.ReadFile(name); errno(err) != syscall.EPERM {
			t.Errorf("%s: %v, want EPERM by whichever path", name, err)
		}
	}
	if _, err := root.ReadFile("sys/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("recorded as missing: %v", err)
	}
	if b, err := root.ReadFile("sys/bin"); !bytes.Equal(b, []byte{0, 0xff, 0x10}) || err != nil {
		t.Errorf("binary: %x, %v", b, err)
	}
	if err := root.Access("dev/kfd"); err != nil {
		t.Errorf("a node without a recorded error opens: %v", err)
	}
	if err := root.Access("dev/sda"); errno(err) != syscall.EACCES {
		t.Errorf("dev/sda: %v", err)
	}
	if err := root.Access("dev/none"); errno(err) != syscall.ENOENT {
		t.Errorf("dev/none: %v", err)
	}
	n, err := root.Stat("dev/kfd")
	if err != nil || !n.IsDevice() || n.GID != 104 || n.Major != 235 || n.Mode.Perm() != 0o660 || n.Mode&fs.ModeCharDevice == 0 {
		t.Errorf("stat: %+v, %v", n, err)
	}
	if _, err := root.ReadFile("dev/kfd"); errno(err) != syscall.EINVAL {
		t.Errorf("reading a device: %v", err)
	}
	if names, err := root.ReadDir("sys/class/kfd"); !slices.Equal(names, []string{"id", "name"}) || err != nil {
		t.Errorf("%q, %v", names, err)
	}
	if got := sysroot.Base(root, "sys/class"); got != "real" {
		t.Errorf("base %q", got)
	}
	f, err := root.Open("sys/bin")
	if err != nil || f.Size() != 3 {
		t.Fatalf("open: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// Nothing outside the root is ever read.
func TestCapturedStaysInside(t *testing.T) {
	t.Parallel()
	root, dir := open(t, sample)
	secret := filepath.Join(filepath.Dir(dir), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "sys/abs")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../secret", filepath.Join(dir, "sys/rel")); err != nil {
		t.Fatal(err)
	}
	memory, err := sysroot.ParseArchive([]byte(sample)).FS()
	if err != nil {
		t.Fatal(err)
	}
	outside := []string{"sys/abs", "sys/rel", "sys/out", "sys/loop", "../secret", "/etc/passwd", "sys/../../secret", ""}
	stayInside(t, root, outside)
	stayInside(t, memory, outside)
}

func stayInside(t *testing.T, root sysroot.FS, outside []string) {
	t.Helper()
	for _, name := range outside {
		if b, err := root.ReadFile(name); err == nil {
			t.Errorf("ReadFile(%q) = %q", name, b)
		}
		if err := root.Access(name); err == nil {
			t.Errorf("Access(%q) worked", name)
		}
		if _, err := root.Stat(name); err == nil {
			t.Errorf("Stat(%q) worked", name)
		}
		if f, err := root.Open(name); err == nil {
			t.Errorf("Open(%q) worked", name)
			_ = f.Close()
		}
	}
}

// A FIFO must not hang a read.
func TestCapturedFIFO(t *testing.T) {
	t.Parallel()
	root, dir := open(t, sample)
	if err := syscall.Mkfifo(filepath.Join(dir, "sys/fifo"), 0o600); err != nil {
		t.Skip(err)
	}
	if _, err := root.ReadFile("sys/fifo"); err == nil {
		t.Error("read a FIFO")
	}
}

func TestReadUint(t *testing.T) {
	t.Parallel()
	root, _ := open(t, "-- a --\n0x1002\n-- b --\n42\n-- c --\nN/A\n-- d --\n-- e --\n18446744073709551616\n")
	for name, want := range map[string]uint64{"a": 0x1002, "b": 42} {
		if v, err := sysroot.ReadUint(root, name, 0); v != want || err != nil {
			t.Errorf("%s: %d, %v", name, v, err)
		}
	}
	for _, name := range []string{"c", "d", "e", "f"} {
		if v, err := sysroot.ReadUint(root, name, 0); err == nil {
			t.Errorf("%s: %d", name, v)
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	for _, archive := range []string{"-- ../x --\n", "-- /x --\n", "-- a//b --\n", "-- a.hex --\nzz\n", "-- .links --\na b c\n",
		"-- .links --\n../a -> b\n", "-- .nodes --\ndev/kfd 0660\n", "-- a --\nx\n-- a/b --\ny\n"} {
		if err := sysroot.ParseArchive([]byte(archive)).Unpack(t.TempDir()); err == nil {
			t.Errorf("%q unpacked", archive)
		}
		if _, err := sysroot.ParseArchive([]byte(archive)).FS(); err == nil {
			t.Errorf("%q opened", archive)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".errors"), []byte("dev/kfd EWHAT\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sysroot.Open(dir); err == nil || !strings.Contains(err.Error(), "EWHAT") {
		t.Errorf("bad overlay: %v", err)
	}
}

func TestHost(t *testing.T) {
	t.Parallel()
	root := sysroot.Host()
	if s, err := sysroot.ReadString(root, "proc/sys/kernel/ostype"); err != nil || s == "" {
		t.Errorf("%q, %v", s, err)
	}
	if n, err := root.Stat("dev/null"); err != nil || n.Major != 1 || n.Minor != 3 {
		t.Errorf("dev/null: %+v, %v", n, err)
	}
	if err := root.Access("dev/null"); err != nil {
		t.Error(err)
	}
	if _, err := root.ReadFile("dev/zero"); err == nil {
		t.Error("read an endless device")
	}
}

func FuzzArchive(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("-- a --\n-- b --\nx"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a := sysroot.ParseArchive(text)
		again := sysroot.ParseArchive(a.Format())
		if len(again.Files) != len(a.Files) {
			t.Fatalf("%d files came back as %d", len(a.Files), len(again.Files))
		}
		root, err := a.FS()
		if err != nil {
			return
		}
		for _, f := range a.Files {
			_, _ = root.ReadFile(f.Name)
			_, _ = root.ReadLink(f.Name)
			_, _ = root.Stat(f.Name)
		}
	})
}

// TestFSOf opens a machine as the two things a user may have: a folder and a file.
func TestFSOf(t *testing.T) {
	t.Parallel()
	_, dir := open(t, sample)
	file := filepath.Join(t.TempDir(), "machine.txtar")
	if err := os.WriteFile(file, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, file} {
		root, done, err := sysroot.FSOf(name)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := sysroot.ReadString(root, "sys/class/kfd/name"); s != "ip discovery" || err != nil {
			t.Errorf("%s: %q, %v", name, s, err)
		}
		if err := done(); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := sysroot.FSOf(filepath.Join(dir, "none")); err == nil {
		t.Error("opened nothing")
	}
}

func TestArchiveRoundTrip(t *testing.T) {
	t.Parallel()
	a := sysroot.Archive{Comment: []byte("c"), Files: []sysroot.ArchiveFile{{"text", []byte("one\ntwo")}, {"empty", nil},
		{"binary", []byte{0, 1, 2, 0xff}}, {"marker", []byte("-- x --\n")}}}
	dir := t.TempDir()
	if err := sysroot.ParseArchive(a.Format()).Unpack(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"text": "one\ntwo\n", "empty": "", "binary": "\x00\x01\x02\xff", "marker": "-- x --\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v; want %q", name, b, err, want)
		}
	}
}
