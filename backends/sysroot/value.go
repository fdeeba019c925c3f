package sysroot

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// ReadString returns a one-line file without its newline and surrounding blanks.
func ReadString(fsys FS, name string) (string, error) {
	b, err := fsys.ReadFile(name)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// ReadUint reads a file that holds one unsigned number; base 0 takes "0x1002" and "4098" alike, base 16 bare hex.
func ReadUint(fsys FS, name string, base int) (uint64, error) {
	s, err := ReadString(fsys, name)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		return 0, &fs.PathError{Op: "parse", Path: name, Err: fmt.Errorf("%q is not a number", clip(s))}
	}
	return v, nil
}

// clip shortens a value for an error message.
func clip(s string) string {
	const most = 40
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
