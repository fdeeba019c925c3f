package kfd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"time"

	"hearth/backends"
	"hearth/backends/sysroot"
)

const (
	topologyDir = "sys/class/kfd/kfd/topology"
	// generationTries bounds how often the walk starts again because the topology changed under it (a GPU that resets, a
	// driver that still loads).
	generationTries = 3
	pageSize        = 4096
)

// readTimeout bounds one read. Opening a suspended GPU's node may have to wake it, which takes up to a second.
const readTimeout = 2 * time.Second

// Read looks at the machine below root. A machine without a GPU, without KFD or without permissions is not an error:
// what could not be read, or did not answer in time, stands in Problems. The error is ctx's alone.
func Read(ctx context.Context, root sysroot.FS) (System, error) {
	root = sysroot.Bounded(root, sysroot.Limits{Timeout: readTimeout})
	r := reader{ctx: ctx, root: root}
	var s System
	r.topology(&s)
	r.driver(&s)
	s.Cards = r.cards(&s.Problems)
	s.KFD = r.access("dev/kfd")
	_, err := root.Stat("dev/dxg")
	s.WSL = err == nil
	if b, err := root.ReadFile("proc/meminfo"); err == nil {
		s.MemTotal, s.MemAvailable = parseMeminfo(b)
	} else {
		s.Problems = append(s.Problems, problem("proc/meminfo", err))
	}
	if pages, err := sysroot.ReadUint(root, "sys/module/ttm/parameters/pages_limit", 10); err == nil {
		s.TTMLimit = backends.Some(pages * pageSize)
	}
	s.ids = r.ids()
	return s, ctx.Err()
}

// reader is one walk over the machine.
type reader struct {
	ctx  context.Context
	root sysroot.FS
}

func problem(name string, err error) backends.Problem {
	// The path stands in the Problem already.
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return backends.Problem{Path: name, Err: err}
}

// note appends a problem unless err is nil or the file is simply not there: most files exist on some kernels and GPUs only.
func note(problems *[]backends.Problem, name string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		*problems = append(*problems, problem(name, err))
	}
}

func (r *reader) access(name string) Access {
	a := Access{Path: "/" + name, Err: r.root.Access(name)}
	if pe, ok := errors.AsType[*fs.PathError](a.Err); ok {
		a.Err = pe.Err
	}
	return a
}

func (r *reader) driver(s *System) {
	_, err := r.root.Stat("sys/module/amdgpu")
	s.Driver.Loaded = err == nil
	if v, err := sysroot.ReadString(r.root, "sys/module/amdgpu/version"); err == nil {
		s.Driver.Version = v
	}
	if b, err := r.root.ReadFile("proc/devices"); err == nil {
		s.Driver.KFDMajor = parseKFDMajor(b)
	}
	if v, err := sysroot.ReadString(r.root, "proc/sys/kernel/osrelease"); err == nil {
		s.Driver.Kernel = v
	}
}

func (r *reader) ids() idTable {
	for _, name := range []string{"usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids"} {
		if b, err := r.root.ReadFile(name); err == nil {
			return parseIDs(b)
		}
	}
	return nil
}

// topology walks the KFD nodes and starts again when generation_id moved meanwhile.
func (r *reader) topology(s *System) {
	genFile := path.Join(topologyDir, "generation_id")
	before, err := sysroot.ReadUint(r.root, genFile, 10)
	if err != nil {
		note(&s.Problems, genFile, err)
		if errors.Is(err, fs.ErrNotExist) {
			return // no KFD
		}
	}
	for range generationTries {
		problems := []backends.Problem{}
		s.Nodes = r.nodes(&problems)
		after, err2 := sysroot.ReadUint(r.root, genFile, 10)
		if r.ctx.Err() != nil || err != nil || err2 != nil || after == before {
			if err == nil && err2 == nil {
				s.Generation = backends.Some(after)
			}
			s.Problems = append(s.Problems, problems...)
			return
		}
		before = after
	}
	s.Problems = append(s.Problems, problem(genFile, errors.New("the topology kept changing while it was read")))
}

func (r *reader) nodes(problems *[]backends.Problem) []Node {
	dir := path.Join(topologyDir, "nodes")
	numbers, err := r.numbered(dir)
	if err != nil {
		*problems = append(*problems, problem(dir, err))
		return nil
	}
	nodes := make([]Node, 0, len(numbers))
	for _, n := range numbers {
		if r.ctx.Err() != nil {
			break
		}
		nodes = append(nodes, r.node(path.Join(dir, strconv.Itoa(n)), n))
	}
	return nodes
}

// numbered lists the sub folders whose names are numbers, as numbers in ascending order: 10 comes after 9.
func (r *reader) numbered(dir string) ([]int, error) {
	names, err := r.root.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil && n >= 0 && strconv.Itoa(n) == name {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (r *reader) node(dir string, number int) Node {
	n := Node{Number: number}
	if id, err := sysroot.ReadUint(r.root, path.Join(dir, "gpu_id"), 10); err == nil {
		n.GPUID = backends.Some(id)
	} else {
		n.Problems = append(n.Problems, problem(path.Join(dir, "gpu_id"), err))
	}
	name, err := sysroot.ReadString(r.root, path.Join(dir, "name"))
	n.Name = name
	note(&n.Problems, path.Join(dir, "name"), err)
	n.Props, err = r.props(path.Join(dir, "properties"))
	if err != nil {
		n.Problems = append(n.Problems, problem(path.Join(dir, "properties"), err))
	}
	for p := range r.parts(dir, "mem_banks", &n.Problems) {
		n.Banks = append(n.Banks, bankOf(p))
	}
	for p := range r.parts(dir, "io_links", &n.Problems) {
		n.Links = append(n.Links, linkOf(p, false))
	}
	for p := range r.parts(dir, "p2p_links", &n.Problems) {
		n.Links = append(n.Links, linkOf(p, true))
	}
	if minor, ok := n.Prop("drm_render_minor").Get(); ok && minor > 0 && n.IsGPU() {
		n.Render = r.access(fmt.Sprintf("dev/dri/renderD%d", minor))
	}
	return n
}

func (r *reader) props(name string) (map[string]uint64, error) {
	b, err := r.root.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseProps(b)
}

// parts yields the properties of a node's numbered sub folders (mem_banks/0, mem_banks/1, ...), in order.
func (r *reader) parts(dir, kind string, problems *[]backends.Problem) func(func(map[string]uint64) bool) {
	return func(yield func(map[string]uint64) bool) {
		parent := path.Join(dir, kind)
		numbers, err := r.numbered(parent)
		note(problems, parent, err)
		for _, i := range numbers {
			name := path.Join(parent, strconv.Itoa(i), "properties")
			p, err := r.props(name)
			note(problems, name, err)
			if p != nil && !yield(p) {
				return
			}
		}
	}
}
