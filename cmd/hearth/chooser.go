package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"hearth/backends"
	"hearth/backends/doctor"
	"hearth/backends/kfd"
	"hearth/backends/probe"
	"hearth/backends/survey"
	"hearth/backends/sysroot"
	"hearth/backends/vulkan"
	"hearth/configs"
	"hearth/engine"
	"hearth/engine/bundle"
	"hearth/models"
)

// Limits of the chooser's looks at the machine.
const (
	// placeDeadline bounds one look with all its probes. It does not depend on the request that asked first.
	placeDeadline = 5 * time.Minute
	// surveyAgain is how old a look must be before a model that found no place makes the chooser look again.
	surveyAgain = 30 * time.Second
)

// gpuChooser places models on the GPUs of this machine: HIP before Vulkan on the device that backends.Select picks, and
// the CPU last when the backend is left to hearth. A backend that cannot run there is left out before a model is loaded.
type gpuChooser struct {
	explicit *explicitChooser
	// proven looks at the machine and has each backend compute before it is offered; unproven is for people who name a
	// backend, who get it with a warning.
	proven, unproven *survey.Surveyor
	now              func() time.Time
	log              *slog.Logger

	mu     sync.Mutex
	last   *survey.Survey
	taken  time.Time
	places map[string][]survey.Candidate // confirmed since the last look, by device, backends and how they were confirmed
	told   map[string]bool               // warnings are given once
}

// Choose implements Chooser. Only one model is placed at a time: probes of one GPU would disturb each other.
func (c *gpuChooser) Choose(ctx context.Context, e models.Entry, run configs.Run) ([]Placement, error) {
	auto := run.Backend == "auto"
	noGPU := len(c.explicit.bundle.PluginsOf(bundle.KindHIP))+len(c.explicit.bundle.PluginsOf(bundle.KindVulkan)) == 0
	if noGPU || run.Backend == backends.CPU || !auto && len(c.explicit.env.DeviceVariables(run.Backend)) > 0 {
		return c.explicit.Choose(ctx, e, run) // who sets both backend and device variables is taken at their word
	}
	// The client that asked first may go away; its probes must not be taken for dead plugins then.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), placeDeadline)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	s, choice, err := c.choose(ctx, run)
	if err != nil {
		return c.without(ctx, s, e, run, err)
	}
	if auto && !slices.Contains(choice.Backends, backends.HIP) && choice.Device.HIP != nil && len(c.explicit.bundle.PluginsOf(bundle.KindHIP)) > 0 {
		c.warn("backend passed over", "backend", backends.HIP, "device", choice.Device.PCI, "name", choice.Device.Name, "reason", blockTexts(choice.Device.HIP.Blocked))
	}
	good, err := c.confirm(ctx, choice, auto)
	if err != nil {
		return nil, err
	}
	if len(good) == 0 {
		return nil, noDevice(e, errors.New("its probe failed, see the log"))
	}
	places := make([]Placement, 0, len(good))
	for _, g := range good {
		label := g.Backend
		if g.WantPCI != "" {
			label += " on " + string(g.WantPCI)
		}
		places = append(places, Placement{Backend: g.Backend, Device: g.Device, WantPCI: string(g.WantPCI), Env: workerVariables(g.Env), Label: label})
	}
	c.log.Info("device chosen", "model", e.Name, "device", places[0].Label, "name", choice.Device.Name, "why", choice.Why)
	return places, nil
}

// without answers when no device was found: with the CPU where the backend is left to hearth, loudly.
func (c *gpuChooser) without(ctx context.Context, s *survey.Survey, e models.Entry, run configs.Run, err error) ([]Placement, error) {
	if run.Backend != "auto" && s != nil && len(s.Devices) == 0 { // another vendor's GPU, or a software renderer: the plugin knows
		return c.explicit.Choose(ctx, e, run)
	}
	if none, ok := errors.AsType[*backends.NoDeviceError](err); ok && run.Backend == "auto" {
		c.warn("running on the CPU, no GPU can run models", "reason", none.Error(), "hint", "hearth doctor")
		return []Placement{{Backend: backends.CPU, Label: backends.CPU}}, nil
	}
	return nil, noDevice(e, err)
}

func noDevice(e models.Entry, err error) error {
	return &engine.Error{
		Kind: engine.KindUnsupported, Message: fmt.Sprintf("model %q has no device to run on: %v", e.Name, err),
		Hint: "hearth devices lists the GPUs, hearth doctor says what keeps them from running models", Cause: err,
	}
}

// choose selects from the last look, and from a new one when that finds nothing.
func (c *gpuChooser) choose(ctx context.Context, run configs.Run) (*survey.Survey, backends.Choice, error) {
	opt := backends.SelectOptions{Selector: run.Device, Backend: run.Backend}
	for _, again := range []bool{false, true} {
		s, err := c.survey(ctx, again)
		if err != nil {
			return nil, backends.Choice{}, err
		}
		choice, err := backends.Select(s.Devices, opt)
		if err == nil || again {
			return s, choice, err
		}
	}
	return nil, backends.Choice{}, nil // not reached
}

// survey returns the last look at the machine, or takes one: the first time, and again when the last one is old enough.
func (c *gpuChooser) survey(ctx context.Context, again bool) (*survey.Survey, error) {
	if c.last != nil && (!again || c.now().Sub(c.taken) < surveyAgain) {
		return c.last, nil
	}
	s, err := c.proven.Look(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the machine: %w", err)
	}
	c.last, c.taken, c.places = &s, c.now(), map[string][]survey.Candidate{}
	return c.last, nil
}

// confirm has the backends of a choice tried, once for each look: a GPU full of models would fail a second time.
func (c *gpuChooser) confirm(ctx context.Context, choice backends.Choice, auto bool) ([]survey.Candidate, error) {
	key := fmt.Sprint(choice.Device.PCI, choice.Device.Index, choice.Backends, auto)
	if good, ok := c.places[key]; ok {
		return good, nil
	}
	override := ""
	if choice.Device.HIP != nil {
		override = choice.Device.HIP.Override
	}
	s := c.unproven
	if auto {
		s = c.proven
	}
	good, _, err := s.Confirm(ctx, choice, override, auto)
	if err != nil {
		return nil, fmt.Errorf("try the backends: %w", err)
	}
	c.places[key] = good
	return good, nil
}

// warn says something once.
func (c *gpuChooser) warn(message string, fields ...any) {
	if key := fmt.Sprint(message, fields); !c.told[key] {
		c.told[key] = true
		c.log.Warn(message, fields...)
	}
}

// workerVariables keeps what belongs into a worker's environment beside the supervisor's own list: which GPUs it sees,
// through which driver.
func workerVariables(env backends.Environ) []string {
	var out []string
	for _, kv := range env {
		key, _, _ := strings.Cut(kv, "=")
		switch key {
		case "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES",
			"HSA_MODEL_TOPOLOGY", "HSA_MODEL_LIB": // the last two: a modelled GPU, in tests
			out = append(out, kv)
		default:
			if strings.HasPrefix(key, "HSA_OVERRIDE_GFX_VERSION") {
				out = append(out, kv)
			}
		}
	}
	return out
}

func blockTexts(blocks []backends.Block) string {
	texts := make([]string, len(blocks))
	for i, b := range blocks {
		texts[i] = b.Text
	}
	return strings.Join(texts, "; ")
}

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
	choice, err := a.vulkanDriver(ctx, cfg, root, b)
	if err != nil {
		return nil, nil, err
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
	proven = survey.New(c)
	c.Unproven = true
	return proven, survey.New(c), nil
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
func (a *app) chooser(ctx context.Context, cfg *configs.Config, b bundle.Bundle, log *slog.Logger) (Chooser, error) {
	proven, unproven, err := a.surveyors(ctx, cfg, b, log)
	if err != nil {
		return nil, err
	}
	return &gpuChooser{
		explicit: &explicitChooser{env: a.env, bundle: b, log: log}, proven: proven, unproven: unproven, now: a.now, log: log, told: map[string]bool{},
	}, nil
}
