package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Fetcher brings locked packages into a cache that build trees share.
type Fetcher struct {
	Lock  Lock
	Cache string // absolute folder; holds debs/, apt/ and roots/
	Tools Tools
	// Mirror is asked for when something has to be downloaded.
	Mirror func() (Mirror, error)
	// Say prints one line of progress.
	Say func(format string, args ...any)
}

// Fetch makes sure that every package of the sets is in the cache and returns what it settled on: the locked
// packages when they are cached or the archive still has them, else the archive's present ones if the lock accepts
// them. It returns ErrRefused when it does not.
func (f *Fetcher) Fetch(ctx context.Context, sets ...string) ([]Package, error) {
	locked, err := f.Lock.Pick(sets...)
	if err != nil {
		return nil, err
	}
	missing := f.Missing(locked)
	if len(missing) == 0 && len(locked) > 0 {
		return locked, nil
	}
	apt, err := f.apt(ctx)
	if err != nil {
		return nil, err
	}
	var gone error
	if len(locked) > 0 {
		gone = f.download(ctx, apt, missing)
		if gone == nil {
			return locked, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return f.fetchMoved(ctx, apt, locked, gone, sets)
}

// fetchMoved looks at what the archive has now, because a locked package could not be fetched (gone says why).
func (f *Fetcher) fetchMoved(ctx context.Context, apt Apt, locked []Package, gone error, sets []string) ([]Package, error) {
	f.Say("a locked package is not to be had; asking the archive what it has now")
	if err := apt.Update(ctx); err != nil {
		return nil, errors.Join(gone, err)
	}
	var now []Package
	fresh := f.Lock
	fresh.Sets = map[string]Set{}
	for _, name := range sets {
		set, err := f.resolve(ctx, apt, f.Lock.Sets[name])
		if err != nil {
			return nil, err
		}
		fresh.Sets[name] = set
	}
	now, err := fresh.Pick(sets...)
	if err != nil {
		return nil, err
	}
	moves, err := f.Lock.Compare(locked, now)
	if len(moves) > 0 {
		f.Say("the archive has moved on since engine.lock was written:")
		for _, m := range moves {
			f.Say("  %s", m)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w\n  hearth has not been tried with it. To move on: edit \"accept\" in engine.lock, run make engine-relock and make test;"+
			"\n  to stay: set HEARTH_DEBIAN_MIRROR to an archive that still has the locked version, or use HEARTH_ENGINE=source", err)
	}
	if len(moves) == 0 {
		return nil, fmt.Errorf("the archive lists the locked packages but does not deliver them: %w", gone)
	}
	f.Say("all accepted; going on with the new ones (make engine-relock records them)")
	if err := f.download(ctx, apt, f.Missing(now)); err != nil {
		return nil, err
	}
	return now, nil
}

// Relock resolves every set of the lock against the archive as it is now and returns the new lock. It refuses
// versions outside the acceptance rules, which are edited by hand, on purpose.
func (f *Fetcher) Relock(ctx context.Context) (Lock, []Move, error) {
	apt, err := f.apt(ctx)
	if err != nil {
		return Lock{}, nil, err
	}
	f.Say("fetching the package lists of %v", f.Lock.Suites)
	if err := apt.Update(ctx); err != nil {
		return Lock{}, nil, err
	}
	fresh := f.Lock
	fresh.Sets = map[string]Set{}
	var moves []Move
	for name, set := range f.Lock.Sets {
		now, err := f.resolve(ctx, apt, set)
		if err != nil {
			return Lock{}, nil, fmt.Errorf("set %s: %w", name, err)
		}
		delta, err := f.Lock.Compare(set.Packages, now.Packages)
		moves = append(moves, delta...)
		if err != nil {
			return Lock{}, moves, fmt.Errorf("set %s: %w", name, err)
		}
		fresh.Sets[name] = now
	}
	return fresh, moves, nil
}

func (f *Fetcher) resolve(ctx context.Context, apt Apt, set Set) (Set, error) {
	packages, err := apt.Resolve(ctx, set.Release, set.Want...)
	if err != nil {
		return Set{}, err
	}
	if len(set.Only) > 0 {
		keep := map[string]bool{}
		for _, name := range set.Only {
			keep[name] = true
		}
		var kept []Package
		for _, p := range packages {
			if keep[p.Name] {
				kept = append(kept, p)
			}
		}
		packages = kept
	}
	set.Packages = packages
	return set, nil
}

func (f *Fetcher) apt(ctx context.Context) (Apt, error) {
	mirror, err := f.Mirror()
	if err != nil {
		return Apt{}, err
	}
	apt := Apt{Dir: filepath.Join(f.Cache, "apt"), Mirror: mirror, Suites: f.Lock.Suites, Arch: f.Lock.Architecture, Tools: f.Tools}
	return apt, apt.Prepare(ctx)
}

// DebPath is where the cache keeps a package.
func (f *Fetcher) DebPath(p Package) string {
	return filepath.Join(f.Cache, "debs", p.SHA256+".deb")
}

// Missing are the packages that are not in the cache. A file is only ever put there whole and checked, so its size
// is enough to look at.
func (f *Fetcher) Missing(packages []Package) []Package {
	var list []Package
	for _, p := range packages {
		if st, err := os.Stat(f.DebPath(p)); err != nil || st.Size() != p.Size {
			list = append(list, p)
		}
	}
	return list
}

func (f *Fetcher) download(ctx context.Context, apt Apt, packages []Package) error {
	if err := os.MkdirAll(filepath.Join(f.Cache, "debs"), 0o755); err != nil {
		return fmt.Errorf("create package cache: %w", err)
	}
	var total int64
	for _, p := range packages {
		total += p.Size
	}
	if len(packages) > 0 {
		f.Say("downloading %d packages, %s", len(packages), megabytes(total))
	}
	for i, p := range packages {
		f.Say("  [%d/%d] %s %s (%s)", i+1, len(packages), p.Name, p.Version, megabytes(p.Size))
		part := f.DebPath(p) + ".part"
		stop := f.watch(part, p)
		err := apt.Download(ctx, p, part)
		stop()
		if err != nil {
			return err
		}
		// apt has compared the hash already; the cache is shared and trusted for years, so it is compared here too.
		if err := checkSHA256(part, p.SHA256); err != nil {
			return fmt.Errorf("download %s: %w", p.Name, err)
		}
		if err := os.Rename(part, f.DebPath(p)); err != nil {
			return fmt.Errorf("keep %s: %w", p.Name, err)
		}
	}
	return nil
}

// watchEvery is how often a long download reports; short ones are over before.
const watchEvery = 5 * time.Second

// watch reports the growth of a file until the returned function is called.
func (f *Fetcher) watch(path string, p Package) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if st, err := os.Stat(path); err == nil {
					f.Say("        %s of %s", megabytes(st.Size()), megabytes(p.Size))
				}
			}
		}
	}()
	return func() { close(done); <-ended }
}

func megabytes(n int64) string {
	if n < 1e6 {
		return fmt.Sprintf("%d kB", n/1000)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

func checkSHA256(path, want string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("check SHA-256: %w", err)
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return fmt.Errorf("check SHA-256: %w", err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("SHA-256 is %s, expected %s", got, want)
	}
	return nil
}

// Unpack extracts one package into dir.
func (f *Fetcher) Unpack(ctx context.Context, p Package, dir string) error {
	if _, err := output(exec.CommandContext(ctx, f.Tools.DpkgDeb, "-x", f.DebPath(p), dir)); err != nil {
		return fmt.Errorf("unpack %s: %w", p.Name, err)
	}
	return nil
}

// UnpackCached extracts one package into the cache, once, and returns the folder. Bundles link to what is in it.
func (f *Fetcher) UnpackCached(ctx context.Context, p Package) (string, error) {
	dir := filepath.Join(f.Cache, "roots", p.SHA256)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", fmt.Errorf("unpack %s: %w", p.Name, err)
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return "", fmt.Errorf("unpack %s: %w", p.Name, err)
	}
	if err := f.Unpack(ctx, p, part); err != nil {
		return "", err
	}
	if err := os.Rename(part, dir); err != nil {
		return "", fmt.Errorf("unpack %s: %w", p.Name, err)
	}
	return dir, nil
}

// Hold takes the cache for this process, waiting for another one that fills it, and returns the function that lets
// it go.
func (f *Fetcher) Hold() (release func(), err error) {
	if err := os.MkdirAll(f.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("create cache: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(f.Cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Say("waiting for another build that uses the cache")
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			file.Close()
			return nil, fmt.Errorf("lock cache: %w", err)
		}
	}
	return func() { file.Close() }, nil
}
