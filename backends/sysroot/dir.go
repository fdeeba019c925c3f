package sysroot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"
)

// Host is the running machine.
func Host() FS { return &dir{} }

// Open reads a captured tree. Symbolic links that lead out of it, absolute ones among them, are errors. Close frees the
// directory handle.
func Open(directory string) (*Captured, error) {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, err
	}
	c := &Captured{dir: dir{root: root}}
	if err := c.readOverlay(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return c, nil
}

// Captured is a tree on disk that stands for a machine.
type Captured struct{ dir }

// Close frees the directory handle.
func (c *Captured) Close() error { return c.root.Close() }

// dir reads below root, or below "/" when root is nil. The host is not read through os.Root, because that refuses
// absolute links, which /etc and /usr are full of.
type dir struct {
	root    *os.Root
	overlay overlay
	folders sync.Map // path of a folder -> the path it resolves to
}

func (d *dir) openFile(name string, flags int) (*os.File, error) {
	// O_NONBLOCK: a FIFO in a captured tree must not hang the open.
	flags |= syscall.O_CLOEXEC | syscall.O_NONBLOCK | syscall.O_NOCTTY
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if e := d.overlay.openErr[d.canonical(name)]; e != 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: e}
	}
	if d.root != nil {
		return d.root.OpenFile(name, flags, 0)
	}
	return os.OpenFile("/"+name, flags, 0)
}

// openRegular opens a regular file; reading a device node or a FIFO could block or have effects.
func (d *dir) openRegular(name string) (*os.File, fs.FileInfo, error) {
	if _, isNode := d.overlay.nodes[d.canonical(name)]; isNode {
		return nil, nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EINVAL}
	}
	f, err := d.openFile(name, os.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: name, Err: syscall.EINVAL}
		if info.IsDir() {
			err = &fs.PathError{Op: "read", Path: name, Err: syscall.EISDIR}
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

func (d *dir) ReadFile(name string) (b []byte, err error) {
	f, _, err := d.openRegular(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if e := d.overlay.readErr[d.canonical(name)]; e != 0 {
		return nil, &fs.PathError{Op: "read", Path: name, Err: e}
	}
	// Sysfs reports a size of 4096 whatever is in the file, so the size is no help.
	b, err = io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > MaxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, MaxFile)
	}
	return b, nil
}

// canonical resolves the links in name, inside the root, so that an overlay's entry counts by whichever path a file is
// reached. Without an overlay there is nothing to look up, and name comes back as it is. What does not exist stays as it
// is. Folders are remembered, as a captured tree does not change.
func (d *dir) canonical(name string) string {
	if d.overlay.empty() || !fs.ValidPath(name) {
		return name
	}
	const mostLinks = 40 // the kernel's own limit
	return d.resolve(name, mostLinks)
}

func (d *dir) resolve(name string, linksLeft int) string {
	if name == "." {
		return name
	}
	parent := path.Dir(name)
	if parent != "." {
		known, ok := d.folders.Load(parent)
		if !ok {
			known = d.resolve(parent, linksLeft)
			d.folders.Store(parent, known)
		}
		parent = known.(string)
	}
	full := path.Join(parent, path.Base(name))
	target, err := d.root.Readlink(full)
	if err != nil || path.IsAbs(target) || linksLeft == 0 {
		return full
	}
	next := path.Join(parent, target)
	if !fs.ValidPath(next) {
		return full // leads out of the root; opening it will fail
	}
	return d.resolve(next, linksLeft-1)
}

func (d *dir) ReadDir(name string) (names []string, err error) {
	f, err := d.openFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	names, err = f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

func (d *dir) ReadLink(name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	if e := d.overlay.openErr[d.canonical(path.Dir(name))+"/"+path.Base(name)]; e != 0 {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: e}
	}
	if d.root != nil {
		return d.root.Readlink(name)
	}
	return os.Readlink("/" + name)
}

func (d *dir) Stat(name string) (Node, error) {
	if !fs.ValidPath(name) {
		return Node{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrInvalid}
	}
	if n, ok := d.overlay.nodes[d.canonical(name)]; ok {
		return n, nil
	}
	var info fs.FileInfo
	var err error
	if d.root != nil {
		info, err = d.root.Stat(name)
	} else {
		info, err = os.Stat("/" + name)
	}
	if err != nil {
		return Node{}, err
	}
	n := Node{Mode: info.Mode(), Size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		n.UID, n.GID = st.Uid, st.Gid
		n.Major, n.Minor = deviceNumbers(uint64(st.Rdev))
	}
	return n, nil
}

// deviceNumbers splits a dev_t as glibc's makedev(3) builds it.
func deviceNumbers(rdev uint64) (major, minor uint32) {
	return uint32(rdev>>8&0xfff | rdev>>32&^0xfff), uint32(rdev&0xff | rdev>>12&^0xff)
}

func (d *dir) Access(name string) error {
	real := d.canonical(name)
	if n, ok := d.overlay.nodes[real]; ok && d.overlay.openErr[real] == 0 && n.IsDevice() {
		return nil // a captured node without a recorded error could be opened
	}
	f, err := d.openFile(name, os.O_RDWR)
	if err != nil {
		return err
	}
	return f.Close()
}

func (d *dir) Open(name string) (File, error) {
	f, info, err := d.openRegular(name)
	if err != nil {
		return nil, err
	}
	return &file{File: f, size: info.Size()}, nil
}

type file struct {
	*os.File
	size int64
}

func (f *file) Size() int64 { return f.size }

// Base returns the last element of what the link name points at, "" when it is no link: the PCI address behind a DRM
// node's `device`, the name of a `driver`.
func Base(fsys FS, name string) string {
	target, err := fsys.ReadLink(name)
	if err != nil || target == "" {
		return ""
	}
	return path.Base(target)
}
