package fakegpu

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hearth/backends/fixtures"
	"hearth/backends/sysroot"
)

func TestTopologyFitsTheModelMode(t *testing.T) {
	topo, err := NewTopology(fixtures.Archive(t, "xtx-igpu"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(topo.GPUs, []string{"gfx1100", "gfx1036"}) {
		t.Errorf("GPUs %v", topo.GPUs)
	}
	dir := t.TempDir()
	if err := topo.Write(dir); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, want := range map[string]string{"nodes/0/gpu_id": "0\n", "nodes/1/gpu_id": "2\n", "nodes/2/gpu_id": "3\n"} {
		if got := read(name); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	_, gpu, err := parse(read("nodes/1/properties"))
	if err != nil {
		t.Fatal(err)
	}
	if c := gpu["capability"]; c&(1<<29) != 0 || c>>12&3 != 2 {
		t.Errorf("capability %#x", c)
	}
	for key, want := range map[string]uint64{"gfx_target_version": 110000, "caches_count": 3, "mem_banks_count": 1, "io_links_count": 0, "family_id": 145, "device_id": 29772} {
		if gpu[key] != want {
			t.Errorf("%s is %d, want %d", key, gpu[key], want)
		}
	}
	if !strings.Contains(read("nodes/1/mem_banks/0/properties"), "size_in_bytes 25753026560") {
		t.Error("the bank is not the captured one")
	}
	_ = read("nodes/1/caches/2/properties")
}

func TestTopologyNeedsAGPU(t *testing.T) {
	for _, machine := range []string{"empty-vm", "no-kfd"} {
		if _, err := NewTopology(fixtures.Archive(t, machine)); !errors.Is(err, ErrNoTopology) {
			t.Errorf("%s: %v", machine, err)
		}
	}
	bad := sysroot.Archive{Files: []sysroot.ArchiveFile{{Name: kfdTree + "nodes/0/properties", Data: []byte("simd_count many\n")}}}
	if _, err := NewTopology(bad); err == nil {
		t.Error("garbage is taken for a topology")
	}
}
