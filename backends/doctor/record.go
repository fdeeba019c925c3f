package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"hearth/backends"
	"hearth/backends/sysroot"
)

// recorder is a sysroot.FS that remembers everything read through it, so that a report's archive holds just what the
// checks looked at: a tree made of it gives the same answers. It is safe for concurrent use.
type recorder struct {
	fsys sysroot.FS

	mu    sync.Mutex
	files map[string][]byte        // canonical name -> content
	links map[string]string        // canonical name -> relative target
	nodes map[string]sysroot.Node  // device nodes
	errs  map[string]syscall.Errno // "NAME open" or "NAME read"
	walks map[string]string        // name -> canonical name
	dirs  map[string]bool          // canonical names of directories that were seen
}

func newRecorder(fsys sysroot.FS) *recorder {
	return &recorder{
		fsys: fsys, files: map[string][]byte{}, links: map[string]string{}, nodes: map[string]sysroot.Node{},
		errs: map[string]syscall.Errno{}, walks: map[string]string{}, dirs: map[string]bool{},
	}
}

// keepFile stands in a folder of an archive that would be empty without it.
const keepFile = ".keep"

// Limits of a recording.
const (
	maxHops    = 40  // links in one path, as the kernel has it
	maxEntries = 256 // of a directory that are noted without having been read
)

// canonical follows the links in name as far as they go, notes each, and returns the name without links. The caller
// holds the lock.
func (r *recorder) canonical(name string) string {
	if c, ok := r.walks[name]; ok {
		return c
	}
	done, rest := "", strings.Split(name, "/")
	for hops := 0; len(rest) > 0; {
		next := path.Join(done, rest[0])
		rest = rest[1:]
		target, err := r.fsys.ReadLink(next)
		if err != nil || target == "" {
			done = next
			continue
		}
		if hops++; hops > maxHops {
			break
		}
		if path.IsAbs(target) { // an absolute target counts from the root
			target = relative(path.Dir(next), strings.TrimPrefix(path.Clean(target), "/"))
		}
		to := path.Join(path.Dir(next), target)
		if to == ".." || strings.HasPrefix(to, "../") { // out of the tree: nothing was read there
			done = next
			continue
		}
		r.links[next] = target
		rest = append(strings.Split(to, "/"), rest...)
		done = ""
	}
	r.walks[name] = done
	return done
}

// relative spells the path to from the folder from; both are relative to the root.
func relative(from, to string) string {
	if from == "." || from == "" {
		return to
	}
	return strings.Repeat("../", strings.Count(from, "/")+1) + to
}

// fail notes an error number; "does not exist" is what an archive says by silence.
func (r *recorder) fail(name, how string, err error) {
	if errno := backends.ErrnoOf(err); errno != 0 && errno != syscall.ENOENT && errno != syscall.ENOTDIR && !errors.Is(err, fs.ErrNotExist) {
		r.errs[name+" "+how] = errno
		if _, ok := r.files[name]; !ok && how == "read" {
			r.files[name] = nil // a file that is there and cannot be read
		}
	}
}

func (r *recorder) ReadFile(name string) ([]byte, error) {
	b, err := r.fsys.ReadFile(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.canonical(name)
	if err != nil {
		r.fail(c, "read", err)
		return nil, err
	}
	r.files[c] = b
	return b, nil
}

func (r *recorder) ReadDir(name string) ([]string, error) {
	names, err := r.fsys.ReadDir(name)
	r.mu.Lock()
	c := r.canonical(name)
	if err != nil {
		r.fail(c, "open", err)
	}
	r.mu.Unlock()
	if err == nil && len(names) <= maxEntries {
		for _, n := range names {
			_, _ = r.Stat(path.Join(name, n)) // notes what is there
		}
	}
	return names, err
}

func (r *recorder) ReadLink(name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	target, err := r.fsys.ReadLink(name)
	if err == nil {
		r.canonical(name)
	}
	return target, err
}

func (r *recorder) Stat(name string) (sysroot.Node, error) {
	n, err := r.fsys.Stat(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		return n, err
	}
	c := r.canonical(name)
	switch {
	case n.IsDevice():
		r.nodes[c] = n
	case n.Mode.IsDir():
		r.dirs[c] = true
	case n.Mode.IsRegular():
		if _, ok := r.files[c]; !ok {
			r.files[c] = nil
		}
	}
	return n, nil
}

func (r *recorder) Access(name string) error {
	err := r.fsys.Access(name)
	if n, serr := r.Stat(name); err != nil && serr == nil && n.IsDevice() {
		r.mu.Lock()
		r.fail(r.canonical(name), "open", err)
		r.mu.Unlock()
	}
	return err
}

func (r *recorder) Open(name string) (sysroot.File, error) {
	f, err := r.fsys.Open(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.canonical(name)
	if err != nil {
		r.fail(c, "read", err)
	} else if _, ok := r.files[c]; !ok {
		r.files[c] = nil // libraries are not copied
	}
	return f, err
}

// archive makes a text archive of the recording. content has the last word about each file's text; false leaves it out.
func (r *recorder) archive(comment string, content func(name string, data []byte) ([]byte, bool)) sysroot.Archive {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := sysroot.Archive{Comment: []byte(comment)}
	add := func(name, text string) {
		if text != "" {
			a.Files = append(a.Files, sysroot.ArchiveFile{Name: name, Data: []byte(text)})
		}
	}
	var nodes, errs, links strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[name]
		fmt.Fprintf(&nodes, "%s %s %d %d %d %d\n", name, modeText(n.Mode), n.UID, n.GID, n.Major, n.Minor)
	}
	for _, key := range slices.Sorted(maps.Keys(r.errs)) {
		name, how, _ := strings.Cut(key, " ")
		fmt.Fprintf(&errs, "%s %s %s\n", name, backends.ErrnoName(r.errs[key]), how)
	}
	for _, name := range slices.Sorted(maps.Keys(r.links)) {
		if !strings.ContainsAny(name+r.links[name], " \t\n") {
			fmt.Fprintf(&links, "%s -> %s\n", name, r.links[name])
		}
	}
	add(sysroot.NodesFile, nodes.String())
	add(sysroot.ErrorsFile, errs.String())
	add(sysroot.LinksFile, links.String())
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if _, isNode := r.nodes[name]; isNode {
			continue
		}
		if data, keep := content(name, r.files[name]); keep {
			a.Files = append(a.Files, sysroot.ArchiveFile{Name: name, Data: data})
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(r.dirs)) {
		below := func(f sysroot.ArchiveFile) bool { return strings.HasPrefix(f.Name, dir+"/") }
		if !slices.ContainsFunc(a.Files, below) { // archives have no empty folders, and this one's existence was asked for
			a.Files = append(a.Files, sysroot.ArchiveFile{Name: dir + "/" + keepFile})
		}
	}
	slices.SortStableFunc(a.Files, func(x, y sysroot.ArchiveFile) int { return cmp.Compare(x.Name, y.Name) })
	return a
}

// modeText is ls(1)'s spelling of a device node's mode.
func modeText(m fs.FileMode) string {
	kind := "-"
	switch {
	case m&os.ModeCharDevice != 0:
		kind = "c"
	case m&os.ModeDevice != 0:
		kind = "b"
	}
	return kind + m.Perm().String()[1:]
}
