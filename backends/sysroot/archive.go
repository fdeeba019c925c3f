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

// Unpack writes the archive below directory, which must exist. Nothing is written outside it: names must be relative
// and clean, and links are made last and never written through. Device nodes of NodesFile become empty files.
func (a Archive) Unpack(directory string) error {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return err
	}
	return errors.Join(a.unpack(root), root.Close())
}

func (a Archive) unpack(root *os.Root) error {
	var links []byte
	for _, f := range a.Files {
		data := f.Data
		switch {
		case f.Name == LinksFile:
			links = data
			continue
		case f.Name == NodesFile:
			nodes, err := parseNodes(data)
			if err != nil {
				return err
			}
			for name := range nodes {
				if err := writeFile(root, name, nil); err != nil {
					return err
				}
			}
		case strings.HasSuffix(f.Name, HexSuffix):
			var err error
			if data, err = hex.DecodeString(strings.Join(strings.Fields(string(data)), "")); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
		}
		if err := writeFile(root, strings.TrimSuffix(f.Name, HexSuffix), data); err != nil {
			return err
		}
	}
	for i, fields := range lines(links) {
		if len(fields) != 3 || fields[1] != "->" || !fs.ValidPath(fields[0]) {
			return fmt.Errorf("%s line %d: want PATH -> TARGET", LinksFile, i+1)
		}
		if err := root.MkdirAll(path.Dir(fields[0]), 0o755); err != nil {
			return err
		}
		if err := root.Symlink(filepath.FromSlash(fields[2]), fields[0]); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(root *os.Root, name string, data []byte) error {
	if !fs.ValidPath(name) {
		return fmt.Errorf("%q is not a clean relative path", name)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	return root.WriteFile(name, data, 0o644)
}
