package main

import (
	"context"
	"fmt"
	"log/slog"

	"hearth/backends"
	"hearth/backends/doctor"
	"hearth/backends/kfd"
	"hearth/backends/probe"
	"hearth/backends/survey"
	"hearth/backends/sysroot"
	"hearth/backends/vulkan"
	"hearth/configs"
	"hearth/engine/bundle"
)

// deviceRoot is where devices are looked for: this machine, or the captured one in the settings.
func (a *app) deviceRoot(cfg *configs.Config) (sysroot.FS, error) {
	if cfg.Engine.SysRoot == "" {
		return hostRoot(), nil
	}
	root, _, err := sysroot.FSOf(cfg.Engine.SysRoot) // kept for the process' life
	if err != nil {
		return nil, fmt.Errorf("open engine.sys_root: %w", err)
	}
	return root, nil
}

// surveyors look at this machine with a bundle.
func (a *app) surveyors(ctx context.Context, cfg *configs.Config, b bundle.Bundle, log *slog.Logger) (proven, unproven *survey.Surveyor, err error) {
	root, err := a.deviceRoot(cfg)
	if err != nil {
		return nil, nil, err
	}
	c, err := a.surveyConfig(ctx, cfg, root, b, log)
	if err != nil {
		return nil, nil, err
	}
	proven = survey.New(c)
	c.Unproven = true
	return proven, survey.New(c), nil
}

// surveyConfig is how to look at a machine with a bundle.
func (a *app) surveyConfig(ctx context.Context, cfg *configs.Config, root sysroot.FS, b bundle.Bundle, log *slog.Logger) (survey.Config, error) {
	choice, err := a.vulkanDriver(ctx, cfg, root, b)
	if err != nil {
		return survey.Config{}, err
	}
	log.Debug("Vulkan driver", "driver", choice.Driver, "reason", choice.Reason)
	c := survey.Config{
		Root: root, Environ: backends.Environ(a.env), LibraryDirs: b.LibraryDirs(), VulkanEnv: choice.Env, Logger: log,
		Command: func(args ...string) probe.Command {
			c := b.Command("hearth-engine", args...)
			return probe.Command{Path: c.Path, Argv: c.Argv, Env: c.Env}
		},
	}
	if p := b.PluginsOf(bundle.KindHIP); len(p) > 0 {
		c.HIPPlugin = p[0].Path
	}
	if p := b.PluginsOf(bundle.KindVulkan); len(p) > 0 {
		c.VulkanPlugin = p[0].Path
	}
	return c, nil
}

// vulkanDriver decides between the host's Vulkan driver and the bundle's. A setting that cannot be followed is an error.
func (a *app) vulkanDriver(ctx context.Context, cfg *configs.Config, root sysroot.FS, b bundle.Bundle) (vulkan.Choice, error) {
	sys, err := kfd.Read(ctx, root)
	if err != nil {
		return vulkan.Choice{}, fmt.Errorf("read devices: %w", err)
	}
	var gfx []string
	for _, d := range sys.Devices(backends.Environ(a.env)) {
		gfx = append(gfx, d.GFX)
	}
	mesa := doctor.InspectBundle(sysroot.Host(), backends.Environ(a.env), doctor.BundleFiles{VulkanManifests: b.VulkanDriverFiles(), LibraryDirs: b.LibraryDirs()}).Mesa
	return vulkan.Decide(cfg.Engine.VulkanDriver, vulkan.Discover(root, backends.Environ(a.env)), mesa, gfx)
}

// chooser places models on GPUs.
func (a *app) chooser(ctx context.Context, cfg *configs.Config, b bundle.Bundle, log *slog.Logger) (*gpuChooser, error) {
	proven, unproven, err := a.surveyors(ctx, cfg, b, log)
	if err != nil {
		return nil, err
	}
	return &gpuChooser{
		explicit: &explicitChooser{env: a.env, bundle: b, log: log}, proven: proven, unproven: unproven, now: a.now, log: log,
		told: map[string]bool{}, passed: map[string]passedOver{},
	}, nil
}
