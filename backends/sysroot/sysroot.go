// Package sysroot reads a machine's /sys, /proc, /dev and /usr below a root that is a parameter: the running machine
// (Host), or a tree captured from another one (Open). Everything that looks at hardware reads through it, so a captured
// machine behaves like a live one, errors included, and nothing is read outside the root.
//
// A captured tree may hold three files at its top that say what a plain tree cannot:
//
//	.errors   lines "PATH ERRNO [open|read]": opening (default) or reading PATH fails so, even for root
//	.nodes    lines "PATH MODE UID GID MAJOR MINOR": PATH is a device node, as in "dev/kfd crw-rw---- 0 104 235 0"
//	.links    is read by the fixtures' unpacker alone; on disk the links are real
//
// Implementations may be used from several goroutines. Names are slash-separated and relative to the root, without a
// leading slash ("sys/class/kfd").
package sysroot

import (
	"io"
	"io/fs"
)

// MaxFile bounds ReadFile, in bytes. Sysfs files are at most a page (gpu_metrics and binary tables a few); proc files and
// amdgpu.ids are larger.
const MaxFile = 4 << 20

// FS is a root to read below. Errors are *fs.PathError with the system's errno inside where there is one.
type FS interface {
	// ReadFile returns the content of a regular file, at most MaxFile bytes. Links are followed inside the root.
	ReadFile(name string) ([]byte, error)
	// ReadDir returns the names in a directory, sorted.
	ReadDir(name string) ([]string, error)
	// ReadLink returns the target of the link name itself, as it is stored.
	ReadLink(name string) (string, error)
	// Stat describes what name leads to.
	Stat(name string) (Node, error)
	// Access opens name for reading and writing and closes it: nil, or the error that a user of the node would meet.
	Access(name string) error
	// Open opens a regular file for random reads.
	Open(name string) (File, error)
}

// File is a regular file open for random reads.
type File interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Node is what Stat says. Major and Minor are of device nodes.
type Node struct {
	Mode         fs.FileMode
	Size         int64
	UID, GID     uint32
	Major, Minor uint32
}

// IsDevice says whether the node is a character or block device.
func (n Node) IsDevice() bool { return n.Mode&fs.ModeDevice != 0 }
