package sysroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Names of the files in a captured tree that describe what plain files cannot.
const (
	ErrorsFile = ".errors"
	NodesFile  = ".nodes"
	LinksFile  = ".links"
)

// overlay is what a captured tree says beside its files. Its zero value says nothing, as on the host.
type overlay struct {
	openErr, readErr map[string]syscall.Errno
	nodes            map[string]Node
}

func (o overlay) empty() bool { return len(o.openErr)+len(o.readErr)+len(o.nodes) == 0 }

func (c *Captured) readOverlay() error {
	read := func(name string, parse func([]byte) error) error {
		b, err := c.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return parse(b)
	}
	var o overlay
	err := errors.Join(
		read(ErrorsFile, func(b []byte) (err error) { o.openErr, o.readErr, err = parseErrors(b); return err }),
		read(NodesFile, func(b []byte) (err error) { o.nodes, err = parseNodes(b); return err }))
	if err != nil {
		return err
	}
	c.overlay = o // canonical looks at links only where there is an overlay
	c.overlay = overlay{openErr: byPath(c.canonical, o.openErr), readErr: byPath(c.canonical, o.readErr), nodes: byPath(c.canonical, o.nodes)}
	return nil
}

// byPath names entries by the path they resolve to.
func byPath[T any](canonical func(string) string, entries map[string]T) map[string]T {
	real := make(map[string]T, len(entries))
	for name, v := range entries {
		real[canonical(name)] = v
	}
	return real
}

func parseErrors(b []byte) (open, read map[string]syscall.Errno, err error) {
	open, read = map[string]syscall.Errno{}, map[string]syscall.Errno{}
	for i, fields := range lines(b) {
		if len(fields) < 2 || len(fields) > 3 || !fs.ValidPath(fields[0]) {
			return nil, nil, fmt.Errorf("%s line %d: want PATH ERRNO [open|read]", ErrorsFile, i+1)
		}
		errno, ok := errnoByName(fields[1])
		if !ok {
			return nil, nil, fmt.Errorf("%s line %d: unknown error number %q", ErrorsFile, i+1, fields[1])
		}
		switch {
		case len(fields) == 2 || fields[2] == "open":
			open[fields[0]] = errno
		case fields[2] == "read":
			read[fields[0]] = errno
		default:
			return nil, nil, fmt.Errorf("%s line %d: %q is neither open nor read", ErrorsFile, i+1, fields[2])
		}
	}
	return open, read, nil
}

func parseNodes(b []byte) (map[string]Node, error) {
	nodes := map[string]Node{}
	for i, fields := range lines(b) {
		bad := fmt.Errorf("%s line %d: want PATH MODE UID GID MAJOR MINOR", NodesFile, i+1)
		if len(fields) != 6 || !fs.ValidPath(fields[0]) {
			return nil, bad
		}
		mode, ok := parseMode(fields[1])
		if !ok {
			return nil, bad
		}
		var n [4]uint32
		for j := range n {
			v, err := strconv.ParseUint(fields[2+j], 10, 32)
			if err != nil {
				return nil, bad
			}
			n[j] = uint32(v)
		}
		nodes[fields[0]] = Node{Mode: mode, UID: n[0], GID: n[1], Major: n[2], Minor: n[3]}
	}
	return nodes, nil
}

// parseMode reads ls(1)'s spelling, "crw-rw----".
func parseMode(s string) (fs.FileMode, bool) {
	if len(s) != 10 {
		return 0, false
	}
	var mode fs.FileMode
	switch s[0] {
	case 'c':
		mode = os.ModeDevice | os.ModeCharDevice
	case 'b':
		mode = os.ModeDevice
	case '-':
	default:
		return 0, false
	}
	for i, want := range "rwxrwxrwx" {
		switch s[1+i] {
		case byte(want):
			mode |= 1 << (8 - i)
		case '-':
		default:
			return 0, false
		}
	}
	return mode, true
}

// lines yields the fields of each line that is neither empty nor a comment, by line index.
func lines(b []byte) map[int][]string {
	out := map[int][]string{}
	for i, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
			out[i] = f
		}
	}
	return out
}

func errnoByName(name string) (syscall.Errno, bool) {
	for _, e := range []struct {
		name  string
		errno syscall.Errno
	}{
		{"EACCES", syscall.EACCES}, {"EPERM", syscall.EPERM}, {"ENOENT", syscall.ENOENT}, {"ENXIO", syscall.ENXIO},
		{"ENODEV", syscall.ENODEV}, {"ENOMEM", syscall.ENOMEM}, {"EINVAL", syscall.EINVAL}, {"EBUSY", syscall.EBUSY},
		{"EIO", syscall.EIO}, {"EFAULT", syscall.EFAULT}, {"EOPNOTSUPP", syscall.EOPNOTSUPP},
	} {
		if e.name == name {
			return e.errno, true
		}
	}
	return 0, false
}
