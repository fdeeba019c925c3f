// Package survey puts the parts of backends together: which GPUs there are, which backends could run on each, and, for a
// device that was chosen, which of them really do. Look reads files and, for Vulkan, lists devices in a child; Confirm
// runs one matrix product through each candidate in a child of its own, in the very environment a worker would get.
//
// cmd calls it before a model is placed and hands the Candidates to engine/supervisor, in order: HIP, Vulkan, CPU until
// measurements say otherwise. Whatever is passed over is logged and stays in the result with its reason; nothing falls
// back in silence. A Surveyor may be used from several goroutines; results are values.
package survey

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hearth/backends"
	"hearth/backends/codeobject"
	"hearth/backends/kfd"
	"hearth/backends/probe"
	"hearth/backends/sysroot"
	"hearth/backends/vulkan"
)

// Config of a Surveyor.
type Config struct {
	// Root is the machine. Required.
	Root sysroot.FS
	// Environ is hearth's own environment; variables that filter GPUs decide which are offered, and none reaches a child.
	Environ backends.Environ
	// HIPPlugin and VulkanPlugin are the engine bundle's plugins, absolute; empty when it has none.
	HIPPlugin, VulkanPlugin string
	// LibraryDirs are where the bundle's libraries lie, absolute; rocBLAS's kernel files are looked for beside them.
	LibraryDirs []string
	// VulkanEnv chooses the Vulkan driver ("VK_DRIVER_FILES=..."), as vulkan.Decide says. May be empty.
	VulkanEnv []string
	// Command is how to start the engine with arguments: program, arguments, and what it needs in its environment. Without
	// it nothing is started: Vulkan devices stay unknown, and Confirm confirms nothing.
	Command func(args ...string) probe.Command
	// Unproven takes a backend without having it compute: for people who know better than the check, and for GPUs that are
	// modelled and compute nothing. The child must still start and sit on the right GPU. Each use is logged.
	Unproven bool
	// Deadline bounds each child; 0 is probe.DefaultDeadline.
	Deadline time.Duration
	// Run starts a child; nil is probe.Run.
	Run func(context.Context, probe.Command, time.Duration) (probe.Result, error)
	// Logger hears of every candidate that is passed over. Required.
	Logger *slog.Logger
}

// Surveyor looks at one machine with one engine bundle.
type Surveyor struct{ cfg Config }

// New makes a Surveyor.
func New(cfg Config) *Surveyor {
	if cfg.Run == nil {
		cfg.Run = probe.Run
	}
	return &Surveyor{cfg: cfg}
}

// Survey is what Look found.
type Survey struct {
	Devices []backends.Device `json:"devices"`
	System  kfd.System        `json:"system"`
	// Library is what the HIP plugin says about its code, nil when there is no plugin or it cannot be read.
	Library *codeobject.Library `json:"library,omitempty"`
	// Vulkan is the child that listed Vulkan devices, nil when none ran.
	Vulkan *probe.Result `json:"vulkan,omitempty"`
	// Notes say what could not be found out.
	Notes []string `json:"notes,omitempty"`
}

// Look lists the machine's GPUs with all that speaks against each of their faces. The error is ctx's alone: a plugin
// that cannot be read or a child that dies is a note and a block.
func (s *Surveyor) Look(ctx context.Context) (Survey, error) {
	sys, err := kfd.Read(ctx, s.cfg.Root)
	if err != nil {
		return Survey{}, err
	}
	out := Survey{System: sys, Devices: sys.Devices(s.cfg.Environ)}
	s.code(&out)
	s.vulkan(ctx, &out)
	return out, ctx.Err()
}

// code judges the HIP faces by the plugin's code objects and rocBLAS's files.
func (s *Surveyor) code(out *Survey) {
	if s.cfg.HIPPlugin == "" {
		out.Devices = blockHIP(out.Devices, backends.Block{Code: backends.BlockNoCode, Text: "the engine bundle has no HIP plugin"})
		return
	}
	lib, err := inspect(s.cfg.HIPPlugin)
	if err != nil {
		out.Notes = append(out.Notes, fmt.Sprintf("the HIP plugin cannot be read: %v", err))
		lib.Unknown = err.Error()
	} else {
		out.Library = &lib
	}
	out.Devices = codeobject.Apply(out.Devices, lib, s.blas(lib, out))
}

// blas finds rocBLAS's kernel files; nil when the plugin does not use rocBLAS, or when they are not where they should be.
func (s *Surveyor) blas(lib codeobject.Library, out *Survey) codeobject.KernelFiles {
	if !slices.ContainsFunc(lib.Needed, func(n string) bool { return strings.HasPrefix(n, "librocblas.") || strings.HasPrefix(n, "libhipblas.") }) {
		return nil
	}
	dirs := make([]string, len(s.cfg.LibraryDirs))
	for i, d := range s.cfg.LibraryDirs {
		dirs[i] = strings.TrimPrefix(filepath.ToSlash(filepath.Clean(d)), "/")
	}
	override, _ := s.cfg.Environ.Lookup("ROCBLAS_TENSILE_LIBPATH")
	// The bundle lies on this machine, whichever machine the root is.
	files, _, err := codeobject.FindKernelFiles(sysroot.Host(), dirs, "rocblas", override)
	if err != nil {
		out.Notes = append(out.Notes, fmt.Sprintf("rocBLAS's kernel files: %v", err))
		return nil
	}
	return files
}

func inspect(name string) (lib codeobject.Library, err error) {
	f, err := os.Open(name)
	if err != nil {
		return codeobject.Library{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return codeobject.Library{}, err
	}
	return codeobject.Inspect(f, info.Size())
}

func blockHIP(rows []backends.Device, b backends.Block) []backends.Device {
	rows = slices.Clone(rows)
	for i := range rows {
		if rows[i].HIP != nil {
			face := *rows[i].HIP
			face.Blocked = append(slices.Clone(face.Blocked), b)
			rows[i].HIP = &face
		}
	}
	return rows
}

// vulkan lists Vulkan's devices in a child.
func (s *Surveyor) vulkan(ctx context.Context, out *Survey) {
	if s.cfg.VulkanPlugin == "" || s.cfg.Command == nil {
		return
	}
	found, err := vulkan.Enumerate(ctx, func(ctx context.Context, extra []string) (probe.Result, error) {
		return s.child(ctx, append(backends.Unfiltered(s.cfg.Environ), extra...), "--plugin", s.cfg.VulkanPlugin)
	})
	if err != nil {
		out.Notes = append(out.Notes, fmt.Sprintf("Vulkan's devices cannot be listed: %v", err))
		return
	}
	out.Vulkan = &found.First
	if !found.First.OK() {
		out.Notes = append(out.Notes, "the Vulkan plugin failed while it listed its devices: "+found.First.Why())
		for i := range found.List {
			found.List[i].Face.Blocked = append(found.List[i].Face.Blocked, backends.Block{Code: backends.BlockProbe, Text: found.First.Why()})
		}
	}
	out.Devices = backends.MergeVulkan(out.Devices, found.List)
}

// child runs `hearth-engine devices` in env.
func (s *Surveyor) child(ctx context.Context, env backends.Environ, args ...string) (probe.Result, error) {
	c := s.cfg.Command(append([]string{"devices"}, args...)...)
	c.Env = slices.Concat(env, s.cfg.VulkanEnv, c.Env)
	return s.cfg.Run(ctx, c, s.cfg.Deadline)
}
