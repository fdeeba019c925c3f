package gguf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	ggufparser "github.com/gpustack/gguf-parser-go"
)

// File is the parsed header of a model, all parts of a split one together.
type File struct {
	// Parts are the files of the model, the one to load first.
	Parts []string
	// Size is their size on disk, bytes.
	Size int64

	parsed *ggufparser.GGUFFile
}

// Open checks every part of the model whose first (or only) file is path and parses its header.
func Open(path string) (*File, error) {
	parts, err := Parts(path)
	if err != nil {
		return nil, err
	}
	f := &File{Parts: parts}
	for i, p := range parts {
		h, err := Check(p)
		switch {
		case errors.Is(err, os.ErrNotExist) && len(parts) > 1:
			return nil, &FormatError{Path: path, Kind: ErrTruncated,
				Reason: fmt.Sprintf("is split in %d parts and %s is missing", len(parts), filepath.Base(p))}
		case err != nil:
			return nil, err
		case max(h.SplitCount, 1) != len(parts) || h.SplitNo != i:
			return nil, &FormatError{Path: p, Kind: ErrMalformed, Reason: fmt.Sprintf(
				"says it is part %d of %d, its name says %d of %d", h.SplitNo+1, max(h.SplitCount, 1), i+1, len(parts))}
		}
		st, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("stat model: %w", err)
		}
		f.Size += st.Size()
	}
	if f.parsed, err = parse(path); err != nil {
		return nil, err
	}
	if _, ok := f.parsed.Header.MetadataKV.Get("general.architecture"); !ok {
		return nil, &FormatError{Path: path, Kind: ErrMalformed, Reason: "has no general.architecture"}
	}
	return f, nil
}

// parse calls the parser, which panics on some metadata of unexpected type.
func parse(path string) (g *ggufparser.GGUFFile, err error) {
	defer recovered(path, &err)
	g, err = ggufparser.ParseGGUFFile(path, ggufparser.UseMMap(), ggufparser.SkipLargeMetadata())
	if err != nil {
		return nil, &FormatError{Path: path, Kind: ErrMalformed, Reason: err.Error()}
	}
	return g, nil
}

// recovered turns a panic of the parser into a FormatError.
func recovered(path string, err *error) {
	if r := recover(); r != nil {
		*err = &FormatError{Path: path, Kind: ErrMalformed, Reason: fmt.Sprintf("metadata of an unexpected type: %v", r)}
	}
}

// Parsed is the parser's view, for models/fit. It must not be changed.
func (f *File) Parsed() *ggufparser.GGUFFile { return f.parsed }

// Guard runs fn, which reads Parsed, and returns its panics as errors.
func (f *File) Guard(fn func()) (err error) {
	defer recovered(f.Parts[0], &err)
	fn()
	return nil
}

var shardName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// maxShards bounds what a file name can make us look for.
const maxShards = 4096

// Parts lists the files of the model that path belongs to by llama.cpp's naming of split models
// ("name-00001-of-00003.gguf"), whether they exist or not. Any part may be given.
func Parts(path string) ([]string, error) {
	dir, base := filepath.Split(path)
	m := shardName.FindStringSubmatch(base)
	if m == nil {
		return []string{path}, nil
	}
	no, _ := strconv.Atoi(m[2])
	n, _ := strconv.Atoi(m[3])
	if n < 1 || n > maxShards || no < 1 || no > n {
		return nil, &FormatError{Path: path, Kind: ErrMalformed, Reason: fmt.Sprintf("is named part %d of %d", no, n)}
	}
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf("%s%s-%05d-of-%05d.gguf", dir, m[1], i+1, n)
	}
	return parts, nil
}

// IsPart says that path is named as a part of a split model, and whether it is the first.
func IsPart(path string) (part, first bool) {
	m := shardName.FindStringSubmatch(filepath.Base(path))
	return m != nil, m != nil && m[2] == "00001"
}
