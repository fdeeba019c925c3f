package kfd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/backends/kfd"
	"hearth/backends/sysroot"
)

// changing is a machine whose generation_id moves for the first reads, as a topology does while a GPU resets.
type changing struct {
	sysroot.FS
	left int
}

func (c *changing) ReadFile(name string) ([]byte, error) {
	if strings.HasSuffix(name, "generation_id") && c.left > 0 {
		c.left--
		return fmt.Appendf(nil, "%d\n", 100+c.left), nil
	}
	return c.FS.ReadFile(name)
}

func TestReadGeneration(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		changes int
		stable  bool
	}{{0, true}, {1, true}, {2, true}, {99, false}} {
		s, err := kfd.Read(context.Background(), &changing{fixtures.Open(t, "xtx"), c.changes})
		if err != nil || s.Generation.Known() != c.stable || len(s.Nodes) != 2 {
			t.Errorf("%d changes: generation %v, %d nodes, %v", c.changes, s.Generation, len(s.Nodes), err)
		}
		if noted := len(s.Problems) > 0; noted == c.stable {
			t.Errorf("%d changes: problems %v", c.changes, s.Problems)
		}
	}
}

// hung is a machine on which reading one file never returns.
type hung struct {
	sysroot.FS
	block chan struct{}
}

func (h *hung) ReadFile(name string) ([]byte, error) {
	if strings.HasSuffix(name, "mem_info_vram_used") {
		<-h.block
	}
	return h.FS.ReadFile(name)
}

func TestReadHung(t *testing.T) {
	t.Parallel()
	captured := fixtures.Open(t, "xtx")
	synctest.Test(t, func(t *testing.T) {
		root := &hung{FS: captured, block: make(chan struct{})}
		s, err := kfd.Read(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		d := s.Devices(nil)[0]
		if d.Memory.VRAMUsed.Known() || !d.Memory.VRAMTotal.Known() || len(d.Problems) != 1 || !errors.Is(d.Problems[0], os.ErrDeadlineExceeded) {
			t.Errorf("%+v %v", d.Memory, d.Problems)
		}
		close(root.block)
	})
}

func TestReadOrder(t *testing.T) {
	t.Parallel()
	s := read(t, "mi50-16")
	for i, n := range s.Nodes {
		if n.Number != i {
			t.Fatalf("node %d stands at place %d", n.Number, i)
		}
	}
	last := s.Agents(nil).List[15]
	if last.Node != 16 || last.HIP.Or(-1) != 15 {
		t.Errorf("the last GPU is %+v", last)
	}
	if d := s.Devices(nil)[15]; d.RenderNode != "/dev/dri/renderD143" || d.HIP.Name != "ROCm15" {
		t.Errorf("the last row is %+v", d)
	}
}

func TestReadUnknownIsNotZero(t *testing.T) {
	t.Parallel()
	s := read(t, "na-values")
	d := s.Devices(nil)[0]
	if d.Memory.VRAMUsed.Known() || d.Memory.GTTTotal.Known() || !d.Memory.VRAMTotal.Known() || d.UUID != "" {
		t.Errorf("%+v %q", d.Memory, d.UUID)
	}
	if v := s.Nodes[1].Prop("future_key"); v.Or(0) != 1<<64-1 {
		t.Errorf("unknown keys are kept: %v", v)
	}
	if s.Nodes[1].Prop("cwsr_size").Known() {
		t.Error("a key that the kernel does not export is unknown")
	}
}

func TestReadCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := kfd.Read(ctx, fixtures.Open(t, "mi300x-8")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	s := read(t, "mi300x-8")
	xgmi := 0
	for _, l := range s.Nodes[2].Links {
		if l.Kind() == "XGMI" {
			xgmi++
		}
	}
	if xgmi != 7 {
		t.Errorf("%d XGMI links, want 7", xgmi)
	}
	for _, l := range read(t, "mi50-16").Nodes[1].Links {
		if !l.NoAtomics {
			t.Errorf("link without atomics: %+v", l)
		}
	}
	card := read(t, "mi50-renoir").Cards[0]
	if card.PCIe.Width.Or(0) != 16 || card.PCIe.SlotWidth.Or(0) != 4 {
		t.Errorf("the slot's four lanes hide behind the card's own switch: %+v", card.PCIe)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	// The distribution's table wins, then the card's own name, then ours.
	for machine, want := range map[string]string{"xtx": "AMD Radeon RX 7900 XTX", "mi300x-8": "AMD Instinct MI300X OAM",
		"strix-halo": "AMD Radeon 8060S Graphics", "r9700": "AMD Radeon AI PRO R9700", "igpu-xtx": "AMD Radeon RX 7900 XTX"} {
		if got := read(t, machine).Devices(nil)[0].Name; got != want {
			t.Errorf("%s: %q, want %q", machine, got, want)
		}
	}
}

func FuzzProps(f *testing.F) {
	f.Add([]byte("cpu_cores_count 0\nsimd_count 192\nunique_id 18446744073709551615\n"))
	f.Add([]byte("a -1\nb\nc d e\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		props, err := kfd.ParseProps(b)
		n := kfd.Node{Props: props}
		// Whatever the kernel prints, a node can be described.
		_, _, _, _ = n.GFX(), n.PCI(), n.UUID(), n.ComputeUnits()
		s := kfd.System{Nodes: []kfd.Node{n}, KFD: kfd.Access{Path: "/dev/kfd"}}
		s.Devices(backends.Environ{"HSA_OVERRIDE_GFX_VERSION=" + string(b), "ROCR_VISIBLE_DEVICES=" + string(b)})
		if addr := n.PCI(); addr != "" {
			if again, err := backends.ParsePCI(string(addr)); err != nil || again != addr {
				t.Errorf("%s: %s, %v", addr, again, err)
			}
		}
		_ = err
	})
}

func FuzzIDs(f *testing.F) {
	f.Add([]byte("1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range kfd.ParseIDs(b) {
			if strings.TrimSpace(name) == "" {
				t.Error("a GPU without a name")
			}
		}
	})
}
