package native

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"hearth/engine/batch"
	"hearth/engine/llama"
)

// Saved sequences lie in memory of their own mappings: what is forgotten goes back to the system at once, and there is an
// error, not an end, when there is no more. Large pages (MADV_HUGEPAGE) would save half of the time of a save, but the kernel may
// stall for as long as it likes to make them.

// Save implements worker.Memory.
func (m *model) Save(seq, slot int32) error {
	m.Forget(slot)
	n, err := m.ctx.SeqStateSize(seq, 0)
	if err != nil {
		return err
	}
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("%d bytes: %w", n, err)
	}
	got, err := m.ctx.SeqStateGet(b, seq, 0)
	if err == nil && got != n {
		err = fmt.Errorf("%d of %d bytes were saved", got, n)
	}
	if err != nil {
		_ = syscall.Munmap(b)
		return err
	}
	if m.host == nil {
		m.host = make(map[int32]saved)
	}
	m.host[slot] = saved{b, m.ctx.PosMax(seq) + 1 - m.ctx.PosMin(seq)}
	return nil
}

// saved is the state of a sequence of so many cells.
type saved struct {
	state []byte
	cells int32
}

// Load implements worker.Memory.
func (m *model) Load(slot, seq, from, to int32) error {
	s := m.host[slot]
	if from == 0 && to == s.cells {
		return m.ctx.SeqStateSet(s.state, seq, 0)
	}
	part, err := llama.StatePart(m.part[:0], s.state, int(from), int(to))
	if err != nil {
		return err
	}
	m.part = part
	return m.ctx.SeqStateSet(part, seq, 0)
}

// Forget implements worker.Memory.
func (m *model) Forget(slot int32) {
	s, ok := m.host[slot]
	if !ok {
		return
	}
	delete(m.host, slot)
	if err := syscall.Munmap(s.state); err != nil {
		m.log.Warn("free host memory", "err", err)
	}
}

// SaveSize implements worker.Memory.
func (m *model) SaveSize(seq int32) (int, error) { return m.ctx.SeqStateSize(seq, 0) }

// forgetAll frees host memory.
func (m *model) forgetAll() {
	for slot := range m.host {
		m.Forget(slot)
	}
}

// hostMost is the most host memory that a worker takes by itself, hostShare its part of what is available; on a GPU, whose memory is not
// this one and whose models are larger, more of it. hostPart bounds the parts in which a sequence comes back there, in bytes.
const (
	hostMost, hostShare       = 2 << 30, 10
	hostMostGPU, hostShareGPU = 8 << 30, 4
	hostPart                  = 64 << 20
)

// hostBudget is how much host memory cached prefixes may move to. It is for pure attention in one pool: states and windows cannot be cut to
// what a request shares, and in streams the library puts copies of sequences off, but not those of states.
func (m *model) hostBudget() batch.Host {
	mi := m.m.Info()
	if m.cfg.Layout != batch.LayoutUnified || m.cfg.Recurrent || mi.SWA > 0 {
		return batch.Host{}
	}
	h := batch.Host{Bytes: m.spec.HostCache}
	most, share := int64(hostMost), int64(hostShare)
	if m.spec.Backend != "cpu" {
		most, share, h.PartBytes = hostMostGPU, hostShareGPU, hostPart
	}
	if h.Bytes < 0 {
		h.Bytes = min(most, available("/")/share)
	}
	return h
}

// available is how many bytes of memory this process may still take: what the kernel says, or less in a group with a limit; 0:
// unknown. root holds proc and sys.
func available(root string) int64 {
	free := int64(0)
	info, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemAvailable:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			free = kib << 10
		}
	}
	groups, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return free
	}
	for line := range strings.Lines(string(groups)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		for ok {
			if left, limited := groupLeft(filepath.Join(root, "sys/fs/cgroup", path)); limited {
				free = min(free, left)
			}
			if path == "/" || path == "." || path == "" {
				break
			}
			path = filepath.Dir(path)
		}
	}
	return free
}

// groupLeft is what a control group may still take.
func groupLeft(dir string) (left int64, limited bool) {
	var v [2]int64
	for i, name := range []string{"memory.max", "memory.current"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return 0, false
		}
		if v[i], err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err != nil {
			return 0, false // "max"
		}
	}
	return max(0, v[0]-v[1]), true
}
