package debian

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Tools are the programs that the fetcher runs. Tests put scripts in their place.
type Tools struct {
	AptGet, AptCache, AptConfig, AptHelper, Dpkg, DpkgDeb string
	// Env is the environment apt runs in (PATH, proxies).
	Env []string
}

// SystemTools are apt's and dpkg's own programs, run in the given environment.
func SystemTools(env []string) Tools {
	return Tools{Env: env, AptGet: "apt-get", AptCache: "apt-cache", AptConfig: "apt-config",
		AptHelper: "/usr/lib/apt/apt-helper", Dpkg: "dpkg", DpkgDeb: "dpkg-deb"}
}

// Apt is apt with a configuration, package lists and an (empty) package status of its own below Dir.
type Apt struct {
	Dir    string // absolute; created by Prepare
	Mirror Mirror
	Suites []string
	Arch   string
	Tools  Tools
}

func (a Apt) configFile() string { return filepath.Join(a.Dir, "apt.conf") }

// Prepare writes the private configuration. From the machine's configuration only the Acquire settings (proxies,
// certificates, retries) are kept: its hooks are about the system's package state, which is not touched here.
func (a Apt) Prepare(ctx context.Context) error {
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "etc"} {
		if err := os.MkdirAll(filepath.Join(a.Dir, d), 0o755); err != nil {
			return fmt.Errorf("prepare private apt: %w", err)
		}
	}
	acquire, err := a.machineAcquire(ctx)
	if err != nil {
		return err
	}
	if err := a.checkArch(ctx); err != nil {
		return err
	}
	var conf strings.Builder
	conf.WriteString(acquire)
	set := func(key, value string) { fmt.Fprintf(&conf, "%s %q;\n", key, value) }
	set("APT::Architecture", a.Arch)
	conf.WriteString("#clear APT::Architectures;\n")
	set("APT::Architectures::", a.Arch)
	set("APT::Install-Recommends", "false")
	set("APT::Get::List-Cleanup", "true")
	set("APT::Sandbox::User", "") // the lists belong to whoever runs this
	set("Acquire::Languages", "none")
	set("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false")
	set("Acquire::IndexTargets::deb::CNF::DefaultEnabled", "false")
	set("Dir::State", filepath.Join(a.Dir, "state"))
	set("Dir::State::status", filepath.Join(a.Dir, "status"))
	set("Dir::Cache", filepath.Join(a.Dir, "cache"))
	set("Dir::Etc::sourcelist", filepath.Join(a.Dir, "etc/sources.list"))
	set("Dir::Etc::sourceparts", "/dev/null")
	set("Dir::Etc::preferences", "/dev/null")
	set("Dir::Etc::preferencesparts", "/dev/null")
	set("Dir::Etc::parts", "/dev/null")
	set("Dir::Etc::main", "/dev/null")
	var list strings.Builder
	for _, suite := range a.Suites {
		fmt.Fprintf(&list, "deb [arch=%s signed-by=%s] %s %s main\n", a.Arch, a.Mirror.Keyring, a.Mirror.URI, suite)
	}
	for path, text := range map[string]string{a.configFile(): conf.String(), filepath.Join(a.Dir, "status"): "",
		filepath.Join(a.Dir, "etc/sources.list"): list.String()} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("prepare private apt: %w", err)
		}
	}
	return nil
}

func (a Apt) machineAcquire(ctx context.Context) (string, error) {
	out, err := output(exec.CommandContext(ctx, a.Tools.AptConfig, "dump", "Acquire"))
	if err != nil {
		return "", fmt.Errorf("read apt configuration: %w", err)
	}
	var keep strings.Builder
	for line := range strings.Lines(string(out)) {
		// Index targets are apt's own table, which it builds again.
		if strings.HasPrefix(line, "Acquire::") && !strings.HasPrefix(line, "Acquire::IndexTargets") {
			keep.WriteString(line)
		}
	}
	return keep.String(), nil
}

func (a Apt) checkArch(ctx context.Context) error {
	out, err := output(exec.CommandContext(ctx, a.Tools.Dpkg, "--print-architecture"))
	if err != nil {
		return fmt.Errorf("ask dpkg for the architecture: %w", err)
	}
	if arch := strings.TrimSpace(string(out)); arch != a.Arch {
		return fmt.Errorf("engine.lock covers %s, this machine is %s; use HEARTH_ENGINE=system or source", a.Arch, arch)
	}
	return nil
}

func (a Apt) command(ctx context.Context, tool string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, tool, args...)
	// C messages, because some of them are read below.
	cmd.Env = append(slices.Clone(a.Tools.Env), "APT_CONFIG="+a.configFile(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	return cmd
}

// Update downloads the package lists of the suites and lets apt check their signatures.
func (a Apt) Update(ctx context.Context) error {
	cmd := a.command(ctx, a.Tools.AptGet, "-q", "update", "--error-on=any")
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("fetch the archive's package lists: %w", err)
	}
	return nil
}

// Resolve returns the closure of want as apt would install it on an empty system, sorted by name. release may name a
// suite to prefer.
func (a Apt) Resolve(ctx context.Context, release string, want ...string) ([]Package, error) {
	args := []string{"install", "--simulate", "--no-install-recommends"}
	if release != "" {
		args = append(args, "-t", release)
	}
	out, err := output(a.command(ctx, a.Tools.AptGet, append(args, want...)...))
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", strings.Join(want, " "), err)
	}
	picks := parseSimulation(string(out))
	if len(picks) == 0 {
		return nil, fmt.Errorf("resolve %s: apt names no package", strings.Join(want, " "))
	}
	out, err = output(a.command(ctx, a.Tools.AptCache, append([]string{"show", "--no-all-versions"}, picks...)...))
	if err != nil {
		return nil, fmt.Errorf("look up packages: %w", err)
	}
	packages, err := parseRecords(bytes.NewReader(out))
	if err != nil {
		return nil, err
	}
	if len(packages) != len(picks) {
		return nil, fmt.Errorf("look up packages: apt resolved %d and described %d", len(picks), len(packages))
	}
	return packages, nil
}

// parseSimulation reads lines like "Inst libc6 (2.43-7 Debian:unstable [amd64])" into "libc6=2.43-7".
func parseSimulation(text string) []string {
	var picks []string
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Inst ")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(rest, " ")
		rest = rest[strings.IndexByte(rest, '(')+1:]
		version, _, ok := strings.Cut(rest, " ")
		if ok && name != "" && version != "" {
			picks = append(picks, name+"="+version)
		}
	}
	return picks
}

// parseRecords reads the stanzas of apt-cache show.
func parseRecords(r io.Reader) ([]Package, error) {
	var packages []Package
	var p Package
	flush := func() error {
		if p.Name == "" {
			return nil
		}
		if p.Version == "" || p.Filename == "" || !isSHA256(p.SHA256) || p.Size <= 0 {
			return fmt.Errorf("package record of %s lacks a version, file name, size or SHA-256", p.Name)
		}
		packages = append(packages, p)
		p = Package{}
		return nil
	}
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		line := scan.Text()
		if line == "" {
			if err := flush(); err != nil {
				return nil, err
			}
			continue
		}
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Filename":
			p.Filename = value
		case "SHA256":
			p.SHA256 = value
		case "Size":
			size, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("size of %s: %w", p.Name, err)
			}
			p.Size = size
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("read package records: %w", err)
	}
	if err := flush(); err != nil {
		return nil, err
	}
	slices.SortFunc(packages, func(x, y Package) int { return strings.Compare(x.Name, y.Name) })
	return packages, nil
}

// Download fetches one file of the mirror to target with apt's own transports (and so its proxies and
// certificates); apt refuses a file whose SHA-256 differs.
func (a Apt) Download(ctx context.Context, p Package, target string) error {
	uri := a.Mirror.URI + "/" + p.Filename
	if _, err := output(a.command(ctx, a.Tools.AptHelper, "download-file", uri, target, "SHA256:"+p.SHA256)); err != nil {
		return fmt.Errorf("download %s %s: %w", p.Name, p.Version, err)
	}
	return nil
}

// commandError carries the last lines a failed program wrote.
type commandError struct {
	program, said string
	err           error
}

func (e *commandError) Error() string {
	if e.said == "" {
		return fmt.Sprintf("%s: %v", e.program, e.err)
	}
	return fmt.Sprintf("%s: %v: %s", e.program, e.err, e.said)
}

func (e *commandError) Unwrap() error { return e.err }

// output runs cmd and returns its standard output. The error of a failed run has the end of what it wrote.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is not here (HEARTH_ENGINE=debian needs apt and dpkg): %w", cmd.Path, err)
	}
	said := strings.TrimSpace(stderr.String())
	if said == "" {
		said = strings.TrimSpace(stdout.String())
	}
	const keep = 600 // bytes: apt's last three or four lines
	if len(said) > keep {
		said = "..." + said[len(said)-keep:]
	}
	return nil, &commandError{program: filepath.Base(cmd.Path), said: strings.ReplaceAll(said, "\n", "; "), err: err}
}
