package sysroot

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Archive is a captured machine as one text file, in the txtar format: a comment, then for each file a line
// "-- NAME --" and its content. Beside plain files it holds the files described in the package comment, LinksFile with
// lines "PATH -> TARGET", and entries named "PATH.hex" whose content is the hex dump of the binary file PATH.
type Archive struct {
	Comment []byte
	Files   []ArchiveFile
}

// ArchiveFile is one entry. Data ends in a newline unless it is empty.
type ArchiveFile struct {
	Name string
	Data []byte
}

// content is the entry's path in the tree and its bytes.
func (f ArchiveFile) content() (name string, data []byte, err error) {
	name, isHex := strings.CutSuffix(f.Name, HexSuffix)
	if !isHex {
		return name, f.Data, nil
	}
	data, err = hex.DecodeString(strings.Join(strings.Fields(string(f.Data)), ""))
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return name, data, nil
}

// HexSuffix marks entries that hold a hex dump of a binary file.
const HexSuffix = ".hex"

// ParseArchive splits a text into its entries. Any text is an archive, if only a comment.
func ParseArchive(text []byte) Archive {
	var a Archive
	current := &a.Comment
	for line := range bytes.Lines(text) {
		if name, ok := markerName(line); ok {
			a.Files = append(a.Files, ArchiveFile{Name: name})
			current = &a.Files[len(a.Files)-1].Data
			continue
		}
		*current = append(*current, line...)
	}
	return a
}

// markerName reads a line "-- NAME --".
func markerName(line []byte) (string, bool) {
	s, ok := strings.CutPrefix(strings.TrimRight(string(line), "\r\n"), "-- ")
	if !ok {
		return "", false
	}
	s, ok = strings.CutSuffix(s, " --")
	s = strings.TrimSpace(s)
	return s, ok && s != ""
}

// Format writes the archive as text. Content that does not end in a newline gets one, and a file that holds a marker
// line or a NUL byte, or is not plain text, is written as a hex dump.
func (a Archive) Format() []byte {
	var b bytes.Buffer
	newline := func(data []byte) {
		b.Write(data)
		if len(data) > 0 && data[len(data)-1] != '\n' {
			b.WriteByte('\n')
		}
	}
	newline(a.Comment)
	for _, f := range a.Files {
		if plain(f.Data) {
			fmt.Fprintf(&b, "-- %s --\n", f.Name)
			newline(f.Data)
			continue
		}
		fmt.Fprintf(&b, "-- %s --\n%s", f.Name+HexSuffix, hexLines(f.Data))
	}
	return b.Bytes()
}

func plain(data []byte) bool {
	for line := range bytes.Lines(data) {
		if _, marker := markerName(line); marker {
			return false
		}
	}
	return !bytes.ContainsFunc(data, func(r rune) bool {
		return r == '\r' || r < ' ' && r != '\n' && r != '\t' || r == '\uFFFD'
	})
}

func hexLines(data []byte) string {
	var b strings.Builder
	const perLine = 32
	for len(data) > 0 {
		n := min(perLine, len(data))
		b.WriteString(hex.EncodeToString(data[:n]))
		b.WriteByte('\n')
		data = data[n:]
	}
	return b.String()
}

// Unpack writes the archive below directory, which must exist and be empty. Nothing is written outside it: names must be
// relative and clean, files are created and never overwritten, and links are made when all files are there, so that none
// is written through. Device nodes of NodesFile become empty files.
func (a Archive) Unpack(directory string) error {
	names, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("%s: %w", directory, ErrNotEmpty)
	}
	u := unpacker{top: directory, made: map[string]bool{".": true}}
	var links []byte
	for _, f := range a.Files {
		if f.Name == LinksFile {
			links = f.Data
			continue
		}
		if err := u.entry(f); err != nil {
			return err
		}
	}
	return u.links(links)
}

// ErrNotEmpty says that an archive was to be unpacked over other files.
var ErrNotEmpty = errors.New("the directory is not empty")

// unpacker writes below top and remembers the folders it made.
type unpacker struct {
	top  string
	made map[string]bool
}

func (u *unpacker) entry(f ArchiveFile) error {
	name, data, err := f.content()
	if err != nil {
		return err
	}
	if name == NodesFile {
		nodes, err := parseNodes(data)
		if err != nil {
			return err
		}
		for node := range nodes {
			if err := u.file(node, nil); err != nil {
				return err
			}
		}
	}
	return u.file(name, data)
}

func (u *unpacker) file(name string, data []byte) (err error) {
	at, err := u.place(name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.Write(data)
	return err
}

func (u *unpacker) links(list []byte) error {
	type link struct{ at, target string }
	var all []link
	for i, fields := range lines(list) {
		if len(fields) != 3 || fields[1] != "->" {
			return fmt.Errorf("%s line %d: want PATH -> TARGET", LinksFile, i+1)
		}
		at, err := u.place(fields[0]) // makes the folder, before there is any link to follow
		if err != nil {
			return err
		}
		all = append(all, link{at, filepath.FromSlash(fields[2])})
	}
	for _, l := range all {
		if err := os.Symlink(l.target, l.at); err != nil {
			return err
		}
	}
	return nil
}

// place returns where name goes and makes its folder.
func (u *unpacker) place(name string) (string, error) {
	if !fs.ValidPath(name) || name == "." {
		return "", fmt.Errorf("%q is not a clean relative path", name)
	}
	if dir := path.Dir(name); !u.made[dir] {
		if err := os.MkdirAll(filepath.Join(u.top, filepath.FromSlash(dir)), 0o755); err != nil {
			return "", err
		}
		u.made[dir] = true
	}
	return filepath.Join(u.top, filepath.FromSlash(name)), nil
}
