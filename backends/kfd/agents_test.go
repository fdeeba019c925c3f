package kfd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"hearth/backends"
	"hearth/backends/kfd"
)

// list spells HIP's ordinals: the agents' gfx targets in the order HIP numbers them.
func list(a kfd.Agents) string {
	out := make([]string, len(a.List))
	n := 0
	for _, agent := range a.List {
		if i, ok := agent.HIP.Get(); ok {
			out[i] = agent.GFX
			n++
		}
	}
	return strings.Join(out[:n], " ")
}

// TestAgentsEnvironment holds what was measured with HIP 6.4.3 and 7.2.4 on modelled GPUs, a gfx1100 and a gfx1036; odd
// spellings on the gfx1100 alone, with ROCr 7.2.4 and HIP 6.4.3.
func TestAgentsEnvironment(t *testing.T) {
	t.Parallel()
	s := read(t, "xtx-igpu")
	const uuid = "GPU-9e7f4de7ac7cf81b"
	for _, c := range []struct{ env, want string }{
		{"", "gfx1100 gfx1036"},
		{"ROCR_VISIBLE_DEVICES=1,0", "gfx1036 gfx1100"},
		{"ROCR_VISIBLE_DEVICES=0", "gfx1100"},
		{"ROCR_VISIBLE_DEVICES= 1 , 0", "gfx1036 gfx1100"},
		{"ROCR_VISIBLE_DEVICES=0x1", "gfx1036"},
		{"ROCR_VISIBLE_DEVICES=" + uuid, "gfx1100"},
		{"ROCR_VISIBLE_DEVICES=" + strings.ToUpper(uuid), "gfx1100"},
		{"ROCR_VISIBLE_DEVICES=GPU-9e", "gfx1100"},
		{"ROCR_VISIBLE_DEVICES=0b1", "gfx1036"},
		{"ROCR_VISIBLE_DEVICES=+1", "gfx1036"},
		{"ROCR_VISIBLE_DEVICES=4294967297", "gfx1036"},
		{"ROCR_VISIBLE_DEVICES=08", ""},
		{"ROCR_VISIBLE_DEVICES=0_0", ""},
		{"ROCR_VISIBLE_DEVICES=0o0", ""},
		{"ROCR_VISIBLE_DEVICES=1,", "gfx1036"},
		{"ROCR_VISIBLE_DEVICES=GPU-", ""},
		{"ROCR_VISIBLE_DEVICES=GPU-XX", ""},
		{"ROCR_VISIBLE_DEVICES=0,9,1", "gfx1100"},
		{"ROCR_VISIBLE_DEVICES=0,0,1", "gfx1100"},
		{"ROCR_VISIBLE_DEVICES=9,0", ""},
		{"ROCR_VISIBLE_DEVICES=-1", ""},
		{"ROCR_VISIBLE_DEVICES=", ""},
		{"ROCR_VISIBLE_DEVICES=one", ""},
		{"HIP_VISIBLE_DEVICES=1", "gfx1036"},
		{"HIP_VISIBLE_DEVICES=1,0", "gfx1036 gfx1100"},
		{"HIP_VISIBLE_DEVICES=0,0,1", "gfx1100 gfx1036"},
		{"HIP_VISIBLE_DEVICES=" + uuid, "gfx1100"},
		{"HIP_VISIBLE_DEVICES=GPU-9e", "gfx1100"},
		{"HIP_VISIBLE_DEVICES=GPU-9E7F4DE7AC7CF81B", ""},
		{"HIP_VISIBLE_DEVICES=GPU-" + "7f", ""},
		{"HIP_VISIBLE_DEVICES=1,", "gfx1036"},
		{"HIP_VISIBLE_DEVICES=,1", ""},
		{"HIP_VISIBLE_DEVICES= CUDA_VISIBLE_DEVICES=0", ""},
		{"HIP_VISIBLE_DEVICES=-1", ""},
		{"HIP_VISIBLE_DEVICES=", ""},
		{"HIP_VISIBLE_DEVICES=01", ""},
		{"CUDA_VISIBLE_DEVICES=1", "gfx1036"},
		{"HIP_VISIBLE_DEVICES=0 CUDA_VISIBLE_DEVICES=1", "gfx1100"},
		{"ROCR_VISIBLE_DEVICES=1 HIP_VISIBLE_DEVICES=1", ""},
		{"ROCR_VISIBLE_DEVICES=1 HIP_VISIBLE_DEVICES=0", "gfx1036"},
		{"ROCR_VISIBLE_DEVICES=1,0 HIP_VISIBLE_DEVICES=0", "gfx1036"},
		{"GPU_DEVICE_ORDINAL=1", "gfx1100 gfx1036"},
		{"HSA_OVERRIDE_GFX_VERSION=10.3.0", "gfx1030 gfx1030"},
		{"HSA_OVERRIDE_GFX_VERSION_2=10.3.0", "gfx1100 gfx1030"},
		{"HSA_OVERRIDE_GFX_VERSION_1=11.0.2 HSA_OVERRIDE_GFX_VERSION=10.3.0", "gfx1102 gfx1030"},
		{"HSA_OVERRIDE_GFX_VERSION_0=10.3.0", "gfx1100 gfx1036"},
		{"HSA_OVERRIDE_GFX_VERSION=+11.00.-0", "gfx1100 gfx1100"},
		{"HSA_OVERRIDE_GFX_VERSION=9.0.99", ""},
		{"HSA_OVERRIDE_GFX_VERSION_1=9.0.99", "gfx1036"},
		{"HSA_OVERRIDE_GFX_VERSION_1=9.0.99 ROCR_VISIBLE_DEVICES=0", ""},
		{"HSA_OVERRIDE_GFX_VERSION_1=9.0.99 ROCR_VISIBLE_DEVICES=1", "gfx1036"},
	} {
		// An assignment starts at a blank that is followed by a key; values may hold blanks too.
		var env backends.Environ
		for _, field := range strings.Split(strings.ReplaceAll(c.env, " H", "\nH"), "\n") {
			for _, f := range strings.Split(strings.ReplaceAll(strings.ReplaceAll(field, " C", "\nC"), " R", "\nR"), "\n") {
				env = append(env, f)
			}
		}
		a := s.Agents(env)
		if got := list(a); got != c.want || a.Fatal != nil {
			t.Errorf("%s: %q, want %q (fatal %v)", c.env, got, c.want, a.Fatal)
		}
		for _, agent := range a.List {
			if agent.HIP.Known() == (agent.Hidden != "") {
				t.Errorf("%s: node %d has ordinal %v and is hidden by %q", c.env, agent.Node, agent.HIP, agent.Hidden)
			}
		}
	}
	for _, bad := range []string{"gfx1030", "10.3", "10.3.0.0", "", "64.0.0", "10.300.0", "10.3.0 ", "10.3.0x", "10.-3.0"} {
		a := s.Agents(backends.Environ{"HSA_OVERRIDE_GFX_VERSION=" + bad})
		if !errors.Is(a.Fatal, kfd.ErrOverride) || len(a.List) != 0 {
			t.Errorf("override %q: %v, %v", bad, a.List, a.Fatal)
		}
	}
	for _, bad := range []string{",0", ",", " ", "0,,1"} {
		a := s.Agents(backends.Environ{"ROCR_VISIBLE_DEVICES=" + bad})
		if !errors.Is(a.Fatal, kfd.ErrEmptyItem) || len(a.List) != 0 {
			t.Errorf("ROCR_VISIBLE_DEVICES=%q: %v, %v", bad, a.List, a.Fatal)
		}
	}
	for _, env := range []string{"GPU_DEVICE_ORDINAL=1", "HSA_OVERRIDE_GFX_VERSION_0=10.3.0"} {
		if a := s.Agents(backends.Environ{env}); len(a.Notes) != 1 {
			t.Errorf("%s: notes %q", env, a.Notes)
		}
	}
}

// TestAgentsErrors follows libhsakmt: which failure hides one GPU and which hides all.
func TestAgentsErrors(t *testing.T) {
	t.Parallel()
	pathError := func(e syscall.Errno) error { return &fs.PathError{Op: "open", Path: "x", Err: e} }
	node := func(n int, simd uint64) kfd.Node {
		node := kfd.Node{Number: n, GPUID: backends.Some(uint64(n)), Props: map[string]uint64{"simd_count": simd, "gfx_target_version": 110000, "unique_id": uint64(n)}}
		if simd > 0 {
			node.Render = kfd.Access{Path: fmt.Sprintf("/dev/dri/renderD%d", 127+n)}
		}
		return node
	}
	masked := func(e syscall.Errno) kfd.Node {
		n := node(1, 192)
		n.GPUID = backends.Optional[uint64]{}
		n.Problems = []backends.Problem{{Path: "nodes/1/gpu_id", Err: e}}
		return n
	}
	render := func(e syscall.Errno) kfd.Node {
		n := node(1, 192)
		n.Render.Err = pathError(e)
		return n
	}
	ok := kfd.Access{Path: "/dev/kfd"}
	for _, c := range []struct {
		name  string
		first kfd.Node
		kfd   kfd.Access
		want  int // agents
		fatal syscall.Errno
	}{
		{"fine", node(1, 192), ok, 2, 0},
		{"masked by a cgroup", masked(syscall.EPERM), ok, 1, 0},
		{"gpu_id refused", masked(syscall.EACCES), ok, 0, syscall.EACCES},
		{"no render node", render(syscall.ENOENT), ok, 1, 0},
		{"render node masked", render(syscall.EPERM), ok, 1, 0},
		{"render node refused", render(syscall.EACCES), ok, 0, syscall.EACCES},
		{"render node without driver", render(syscall.ENXIO), ok, 0, syscall.ENXIO},
		{"kfd refused", node(1, 192), kfd.Access{Path: "/dev/kfd", Err: pathError(syscall.EACCES)}, 0, syscall.EACCES},
	} {
		s := kfd.System{Nodes: []kfd.Node{node(0, 0), c.first, node(2, 192)}, KFD: c.kfd}
		s.Nodes[0].GPUID = backends.Some[uint64](0)
		a := s.Agents(nil)
		if len(a.List) != c.want || backends.ErrnoOf(a.Fatal) != c.fatal || (c.fatal == 0) != (a.Fatal == nil) {
			t.Errorf("%s: %d agents, fatal %v", c.name, len(a.List), a.Fatal)
		}
		if c.want == 1 && (a.List[0].Node != 2 || a.List[0].UserNode != 1 || a.List[0].Index.Or(-1) != 0) {
			t.Errorf("%s: %+v, want KFD node 2 as user node 1 and GPU 0", c.name, a.List[0])
		}
	}
	if a := (kfd.System{KFD: ok}).Agents(nil); !errors.Is(a.Fatal, kfd.ErrNoKFD) {
		t.Errorf("no topology: %v", a.Fatal)
	}
}
