package sysroot

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// FS returns the archive as a root in memory. It behaves as the unpacked tree does, without the cost of thousands of
// small files.
func (a Archive) FS() (FS, error) {
	m := &memory{entries: map[string]*memEntry{".": {mode: fs.ModeDir | 0o755}}}
	var links []byte
	for _, f := range a.Files {
		if f.Name == LinksFile {
			links = f.Data
			continue
		}
		name, data, err := f.content()
		if err != nil {
			return nil, err
		}
		if err := m.add(name, &memEntry{mode: 0o644, data: data}); err != nil {
			return nil, err
		}
	}
	nodes, err := m.readNodes()
	if err != nil {
		return nil, err
	}
	for i, fields := range lines(links) {
		if len(fields) != 3 || fields[1] != "->" {
			return nil, fmt.Errorf("%s line %d: want PATH -> TARGET", LinksFile, i+1)
		}
		if err := m.add(fields[0], &memEntry{mode: fs.ModeSymlink | 0o777, target: fields[2]}); err != nil {
			return nil, err
		}
	}
	return m, m.readOverlay(nodes)
}

// memory is a tree that is not changed once it is built.
type memory struct {
	entries map[string]*memEntry
	overlay overlay
}

type memEntry struct {
	mode     fs.FileMode
	data     []byte
	target   string   // of a link
	children []string // of a folder, sorted when asked for
}

// add puts an entry in its place and makes its folders.
func (m *memory) add(name string, e *memEntry) error {
	if !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("%q is not a clean relative path", name)
	}
	if m.entries[name] != nil {
		return &fs.PathError{Op: "unpack", Path: name, Err: fs.ErrExist}
	}
	dir := path.Dir(name)
	parent := m.entries[dir]
	if parent == nil {
		parent = &memEntry{mode: fs.ModeDir | 0o755}
		if err := m.add(dir, parent); err != nil {
			return err
		}
	}
	if !parent.mode.IsDir() {
		return &fs.PathError{Op: "unpack", Path: name, Err: syscall.ENOTDIR}
	}
	parent.children = append(parent.children, path.Base(name))
	m.entries[name] = e
	return nil
}

// readNodes makes the device nodes, which are listed and not stored.
func (m *memory) readNodes() (map[string]Node, error) {
	e := m.entries[NodesFile]
	if e == nil {
		return nil, nil
	}
	nodes, err := parseNodes(e.data)
	if err != nil {
		return nil, err
	}
	for name := range nodes {
		if err := m.add(name, &memEntry{mode: 0o644}); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

func (m *memory) readOverlay(nodes map[string]Node) error {
	var o overlay
	if e := m.entries[ErrorsFile]; e != nil {
		var err error
		if o.openErr, o.readErr, err = parseErrors(e.data); err != nil {
			return err
		}
	}
	m.overlay = overlay{openErr: byPath(m.canonical, o.openErr), readErr: byPath(m.canonical, o.readErr), nodes: byPath(m.canonical, nodes)}
	return nil
}

// walk follows the links in name. It returns the path that name leads to and its entry; where something is missing, the
// path as far as it is known and the error.
func (m *memory) walk(name string, followLast bool) (string, *memEntry, error) {
	const mostLinks = 40 // the kernel's own limit
	if !fs.ValidPath(name) {
		return name, nil, fs.ErrInvalid
	}
	at, rest := ".", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			if at == "." {
				return name, nil, syscall.EXDEV // leads out
			}
			at = path.Dir(at)
			continue
		}
		at = path.Join(at, part)
		e := m.entries[at]
		switch {
		case e == nil:
			return path.Join(append([]string{at}, rest...)...), nil, syscall.ENOENT
		case e.mode&fs.ModeSymlink != 0 && (len(rest) > 0 || followLast):
			if links++; links > mostLinks {
				return name, nil, syscall.ELOOP
			}
			if path.IsAbs(e.target) {
				return at, nil, syscall.EXDEV
			}
			at = path.Dir(at)
			rest = append(strings.Split(path.Clean(e.target), "/"), rest...)
		case len(rest) > 0 && !e.mode.IsDir() && e.mode&fs.ModeSymlink == 0:
			return at, nil, syscall.ENOTDIR
		}
	}
	return at, m.entries[at], nil
}

func (m *memory) canonical(name string) string {
	at, _, _ := m.walk(name, true)
	return at
}

// find is walk with the overlay's errors.
func (m *memory) find(op, name string) (string, *memEntry, error) {
	at, e, err := m.walk(name, true)
	if errno := m.overlay.openErr[at]; errno != 0 {
		err = errno
	}
	if err != nil {
		return at, nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return at, e, nil
}

// regular is find for a file that can be read.
func (m *memory) regular(name string) ([]byte, error) {
	at, e, err := m.find("open", name)
	if err != nil {
		return nil, err
	}
	bad := func(errno syscall.Errno) error { return &fs.PathError{Op: "read", Path: name, Err: errno} }
	if _, isNode := m.overlay.nodes[at]; isNode {
		return nil, bad(syscall.EINVAL)
	}
	if e.mode.IsDir() {
		return nil, bad(syscall.EISDIR)
	}
	return e.data, nil
}

func (m *memory) ReadFile(name string) ([]byte, error) {
	b, err := m.regular(name)
	if err != nil {
		return nil, err
	}
	if errno := m.overlay.readErr[m.canonical(name)]; errno != 0 {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errno}
	}
	if len(b) > MaxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, MaxFile)
	}
	return append([]byte{}, b...), nil
}

func (m *memory) ReadDir(name string) ([]string, error) {
	_, e, err := m.find("open", name)
	if err != nil {
		return nil, err
	}
	if !e.mode.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: syscall.ENOTDIR}
	}
	names := append([]string{}, e.children...)
	slices.Sort(names)
	return names, nil
}

func (m *memory) ReadLink(name string) (string, error) {
	at, e, err := m.walk(name, false)
	if errno := m.overlay.openErr[at]; errno != 0 {
		err = errno
	}
	if err == nil && e.mode&fs.ModeSymlink == 0 {
		err = syscall.EINVAL
	}
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return e.target, nil
}

func (m *memory) Stat(name string) (Node, error) {
	at, e, err := m.walk(name, true)
	if err != nil {
		return Node{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if n, ok := m.overlay.nodes[at]; ok {
		return n, nil
	}
	return Node{Mode: e.mode, Size: int64(len(e.data))}, nil
}

func (m *memory) Access(name string) error {
	_, e, err := m.find("open", name)
	if err != nil {
		return err
	}
	if e.mode.IsDir() {
		return &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	}
	return nil
}

func (m *memory) Open(name string) (File, error) {
	b, err := m.regular(name)
	if err != nil {
		return nil, err
	}
	return memFile{bytes.NewReader(b)}, nil
}

type memFile struct{ *bytes.Reader }

func (memFile) Close() error { return nil }

// FSOf opens what a user names as `--root`: a folder, or an archive as one file. The function it returns frees it.
func FSOf(name string) (FS, func() error, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if info.IsDir() {
		c, err := Open(name)
		if err != nil {
			return nil, nil, err
		}
		return c, c.Close, nil
	}
	const mostArchive = 64 << 20
	if info.Size() > mostArchive {
		return nil, nil, fmt.Errorf("%s: %d bytes are too many for a captured machine", name, info.Size())
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	m, err := ParseArchive(text).FS()
	return m, func() error { return nil }, err
}
