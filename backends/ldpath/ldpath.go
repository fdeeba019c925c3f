// Package ldpath says which file the dynamic loader would open for a library name, without opening any library: the
// directories of LD_LIBRARY_PATH, of /etc/ld.so.conf and its includes, and the built-in ones, below a root. It does not
// read /etc/ld.so.cache, whose format is glibc's own; a library that only a stale cache knows is reported as absent.
//
// backends/vulkan and backends/doctor call it. Values are immutable after New; methods may run at the same time.
package ldpath

import (
	"path"
	"slices"
	"strings"

	"hearth/backends"
	"hearth/backends/sysroot"
)

// Path is a list of directories in search order, relative to the root, without a leading slash.
type Path struct {
	fsys sysroot.FS
	dirs []string
}

// maxConf bounds how many configuration files are read; ld.so.conf may include itself.
const maxConf = 64

// New reads the search path of 64-bit x86 programs. Configuration that cannot be read is left out.
func New(fsys sysroot.FS, environ backends.Environ) Path {
	p := Path{fsys: fsys}
	if v, ok := environ.Lookup("LD_LIBRARY_PATH"); ok {
		for _, d := range strings.FieldsFunc(v, func(r rune) bool { return r == ':' || r == ';' }) {
			p.add(d)
		}
	}
	budget := maxConf
	p.conf("etc/ld.so.conf", &budget)
	for _, d := range []string{
		"/usr/local/lib", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
	} {
		p.add(d)
	}
	return p
}

// With returns the path with dirs before all others, as a DT_RUNPATH or --library-path would put them.
func (p Path) With(dirs ...string) Path {
	q := Path{fsys: p.fsys}
	for _, d := range dirs {
		q.add(d)
	}
	for _, d := range p.dirs {
		q.add("/" + d)
	}
	return q
}

// add takes an absolute directory; relative ones depend on a working directory that a captured tree does not have.
func (p *Path) add(dir string) {
	if !strings.HasPrefix(dir, "/") {
		return
	}
	d := strings.TrimPrefix(path.Clean(dir), "/")
	if d != "" && !slices.Contains(p.dirs, d) {
		p.dirs = append(p.dirs, d)
	}
}

// conf reads one ld.so.conf: a directory a line, "#" comments, "include PATTERN".
func (p *Path) conf(name string, budget *int) {
	if *budget--; *budget < 0 {
		return
	}
	b, err := p.fsys.ReadFile(name)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "hwcap":
		case f[0] == "include":
			for _, pattern := range f[1:] {
				if !strings.HasPrefix(pattern, "/") {
					pattern = "/" + path.Join(path.Dir(name), pattern)
				}
				for _, inc := range p.glob(strings.TrimPrefix(pattern, "/")) {
					p.conf(inc, budget)
				}
			}
		default:
			p.add(f[0])
		}
	}
}

// glob expands a pattern whose last element alone has wildcards.
func (p *Path) glob(pattern string) []string {
	dir, last := path.Split(pattern)
	names, err := p.fsys.ReadDir(strings.TrimSuffix(dir, "/"))
	if err != nil {
		return nil
	}
	var out []string
	for _, n := range names {
		if ok, err := path.Match(last, n); err == nil && ok {
			out = append(out, dir+n)
		}
	}
	return out
}

// Dirs returns the directories in order.
func (p Path) Dirs() []string { return slices.Clone(p.dirs) }

// Find returns the first file called soname, relative to the root; "" when there is none.
func (p Path) Find(soname string) string {
	if strings.HasPrefix(soname, "/") {
		name := strings.TrimPrefix(path.Clean(soname), "/")
		if _, err := p.fsys.Stat(name); err == nil {
			return name
		}
		return ""
	}
	for _, d := range p.dirs {
		if _, err := p.fsys.Stat(d + "/" + soname); err == nil {
			return d + "/" + soname
		}
	}
	return ""
}

// Match returns every file in the path's directories whose name matches the pattern, in search order.
func (p Path) Match(pattern string) []string {
	var out []string
	for _, d := range p.dirs {
		for _, f := range p.glob(d + "/" + pattern) {
			if _, err := p.fsys.Stat(f); err == nil { // not a dangling link
				out = append(out, f)
			}
		}
	}
	return out
}
