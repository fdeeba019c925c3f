package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"hearth/backends"
	"hearth/backends/doctor"
	"hearth/backends/probe"
	"hearth/backends/sysroot"
	"hearth/configs"
	"hearth/engine/bundle"
)

// Deadlines of the doctor. Reading takes 50 ms; a hung sysfs file must not take longer than a person waits.
const (
	doctorReadDeadline  = 2 * time.Second  // of one file
	doctorProbeDeadline = 45 * time.Second // of one plugin
)

// doctorFlags are the flags of one invocation.
type doctorFlags struct {
	root, report           string
	all, allowCPU, noProbe bool
}

func (a *app) doctorCmd() *cobra.Command {
	var f doctorFlags
	c := a.jsonFlag(&cobra.Command{
		Use:   "doctor",
		Short: "find out which layer between a GPU and a model is broken",
		Long: fmt.Sprintf(`Checks the six layers from the kernel driver to llama.cpp's plugins, containers and Vulkan drivers, and prints what
works, what is broken (the lowest broken layer first), why, and what to do. Plugins are started in child processes.

--report FILE writes a text archive of everything the checks read, with names, serial numbers and addresses taken out.
--root NAME checks a machine from such an archive or from a captured tree, and reads nothing else.

Exit codes: %d all is well, %d the worst is a warning, %d something is broken.`, doctor.ExitOK, doctor.ExitWarn, doctor.ExitFail),
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd, f) },
	})
	c.Flags().StringVar(&f.root, "root", "", "check the machine captured in this folder or --report archive")
	c.Flags().StringVar(&f.report, "report", "", "write a redacted archive to this file (- is standard output)")
	c.Flags().BoolVar(&f.all, "all", false, "show the checks that passed or were skipped too")
	c.Flags().BoolVar(&f.allowCPU, "allow-cpu", false, "a machine without an AMD GPU is fine")
	c.Flags().BoolVar(&f.noProbe, "no-probe", false, "do not start the engine's plugins")
	configs.AddFlags(c.Flags(), "engine.")
	return c
}

func (a *app) doctor(cmd *cobra.Command, f doctorFlags) (err error) {
	var env doctor.Env
	if f.root != "" {
		tree, free, oerr := sysroot.FSOf(f.root)
		if oerr != nil {
			return fmt.Errorf("open the captured machine: %w", oerr)
		}
		defer func() { err = errors.Join(err, free()) }()
		if env, err = doctor.FromTree(tree); err != nil {
			return fmt.Errorf("read the captured machine: %w", err)
		}
	} else {
		cfg, err := a.config(cmd)
		if err != nil {
			return err
		}
		if env, err = a.doctorEnv(cfg, !f.noProbe); err != nil {
			return err
		}
	}
	env.AllowCPU = f.allowCPU
	report, err := a.examine(cmd.Context(), env, f)
	if err != nil {
		return err
	}
	switch {
	case f.report == "-": // the archive has standard output
	case a.json:
		err = a.printJSON(report)
	default:
		err = report.WriteText(a.out, f.all)
	}
	if code := report.ExitCode(); err == nil && code != doctor.ExitOK {
		err = &exitError{code}
	}
	return err
}

// doctorHandler serves the same report to the page and to scripts on this machine.
func (a *app) doctorHandler(cfg *configs.Config) http.Handler {
	return doctor.Handler(func(ctx context.Context) (doctor.Report, error) {
		env, err := a.doctorEnv(cfg, true)
		if err != nil {
			return doctor.Report{}, err
		}
		env.AllowCPU = true // the server runs, on the CPU if need be
		return doctor.Run(ctx, env), nil
	})
}

// examine runs the checks and, when asked, writes the archive.
func (a *app) examine(ctx context.Context, env doctor.Env, f doctorFlags) (doctor.Report, error) {
	if f.report == "" {
		return doctor.Run(ctx, env), nil
	}
	opt := doctor.CaptureOptions{Comment: fmt.Sprintf("Captured by hearth %s doctor --report on %s.", version(), a.now().UTC().Format("2006-01-02"))}
	if host, err := os.Hostname(); err == nil {
		opt.Hosts = append(opt.Hosts, host)
		short, _, _ := strings.Cut(host, ".")
		opt.Hosts = append(opt.Hosts, short)
	}
	for _, key := range []string{"USER", "LOGNAME", "SUDO_USER"} {
		if v, ok := backends.Environ(a.env).Lookup(key); ok {
			opt.Users = append(opt.Users, v)
		}
	}
	if home, ok := backends.Environ(a.env).Lookup("HOME"); ok {
		opt.Users = append(opt.Users, filepath.Base(home))
	}
	report, archive, err := doctor.Capture(ctx, env, opt)
	if err != nil {
		return report, err
	}
	text := archive.Format()
	if f.report == "-" {
		_, err = a.out.Write(text)
		return report, err
	}
	if err := renameio.WriteFile(f.report, text, 0o644); err != nil {
		return report, fmt.Errorf("write the report: %w", err)
	}
	a.notef("hearth: wrote %s (%s); read it before you share it\n", f.report, size(int64(len(text))))
	return report, nil
}

// doctorEnv is this machine: the host's files, the environment, the bundle in use and, with withProbe, its plugins.
func (a *app) doctorEnv(cfg *configs.Config, withProbe bool) (doctor.Env, error) {
	env := doctor.Env{KernelLog: doctor.HostKernelLog, Environ: backends.Environ(a.env), VulkanDriver: cfg.Engine.VulkanDriver}
	var err error
	if env.FS, err = a.deviceRoot(cfg); err != nil {
		return env, err
	}
	b, err := a.bundle(cfg)
	if err != nil { // the checks say so, and what it means
		env.NoBundle = err.Error()
		return env, nil
	}
	// The bundle lies on this machine, whichever machine's devices are looked at.
	env.Bundle = doctor.InspectBundle(sysroot.Host(), env.Environ, bundleFiles(b))
	if withProbe {
		env.Probe = func(ctx context.Context, backend string, extra []string) (probe.Result, error) {
			return probePlugin(ctx, b, env.Environ, bundle.Kind(backend), extra)
		}
	}
	return env, nil
}

// hostRoot is this machine, with a deadline on each file.
func hostRoot() sysroot.FS {
	return sysroot.Bounded(sysroot.Host(), sysroot.Limits{Timeout: doctorReadDeadline})
}

// bundleFiles says where the doctor finds the bundle's parts.
func bundleFiles(b bundle.Bundle) doctor.BundleFiles {
	files := doctor.BundleFiles{
		Name: b.Name, LlamaVersion: b.LlamaVersion, GGMLVersion: b.GGMLVersion, Source: string(b.Source),
		LibraryDirs: b.LibraryDirs(), VulkanManifests: b.VulkanDriverFiles(),
	}
	for _, p := range b.Plugins {
		files.Plugins = append(files.Plugins, doctor.PluginFile{Kind: string(p.Kind), Path: b.Path(p.Path)})
	}
	return files
}

// probePlugin starts a plugin of the bundle in a child, without the variables that hide or disguise GPUs, and with extra
// ones.
func probePlugin(ctx context.Context, b bundle.Bundle, environ backends.Environ, kind bundle.Kind, extra []string) (probe.Result, error) {
	plugins := b.PluginsOf(kind)
	if len(plugins) == 0 {
		return probe.Result{}, fmt.Errorf("engine bundle %q has no %s plugin", b.Name, kind)
	}
	c := b.Command("hearth-engine", "devices", "--plugin", plugins[0].Path, "--gemm")
	env := append(backends.Unfiltered(environ), "GGML_NO_BACKTRACE=1")
	env = append(append(env, c.Env...), extra...)
	return probe.Run(ctx, probe.Command{Path: c.Path, Argv: c.Argv, Env: env}, doctorProbeDeadline)
}
