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
	"hearth/backends/probe"
	"hearth/backends/survey"
	"hearth/backends/sysroot"
	"hearth/configs"
	"hearth/engine"
	"hearth/engine/bundle"
	"hearth/models"
)

// Limits of the chooser's looks at the machine.
const (
	// surveyDeadline bounds one look with all its probes. It does not depend on the request that asked first.
	surveyDeadline = 3 * time.Minute
	// surveyAgain is how old a look must be before a model that found no place makes the chooser look again.
	surveyAgain = 30 * time.Second
)

// gpuChooser places models on the GPUs of this machine: HIP before Vulkan on the device that backends.Select picks, and
// the CPU last when the backend is left to hearth. A backend that cannot run there is left out before anything is loaded.
type gpuChooser struct {
	explicit *explicitChooser
	look     func(ctx context.Context) *survey.Survey
	now      func() time.Time
	log      *slog.Logger

	mu    sync.Mutex
	last  *survey.Survey
	taken time.Time
	told  sync.Map // model name and reason -> struct{}: warnings are given once
}

// Choose implements Chooser.
func (c *gpuChooser) Choose(ctx context.Context, e models.Entry, run configs.Run) ([]Placement, error) {
	auto := run.Backend == "auto"
	if run.Backend == backends.CPU || !auto && len(c.explicit.env.DeviceVariables(run.Backend)) > 0 {
		return c.explicit.Choose(ctx, e, run) // a person who sets both backend and device variables is taken at their word
	}
	if len(c.explicit.bundle.PluginsOf(bundle.KindHIP))+len(c.explicit.bundle.PluginsOf(bundle.KindVulkan)) == 0 {
		return c.explicit.Choose(ctx, e, run)
	}
	s, choice, err := c.choose(ctx, run)
	if err != nil {
		if !auto && len(s.Devices) == 0 { // another vendor's GPU, or a software renderer: the plugin knows
			return c.explicit.Choose(ctx, e, run)
		}
		if none, ok := errors.AsType[*backends.NoDeviceError](err); ok && auto {
			c.warn(e.Name, "running on the CPU, no GPU can run models", "reason", none.Error(), "hint", "hearth doctor")
			return []Placement{{Backend: backends.CPU, Label: backends.CPU}}, nil
		}
		return nil, &engine.Error{
			Kind: engine.KindUnsupported, Message: fmt.Sprintf("model %q has no device to run on: %v", e.Name, err),
			Hint: "hearth devices lists the GPUs, hearth doctor says what keeps them from running models", Cause: err,
		}
	}
	places, err := c.placements(s, choice, auto)
	if err != nil {
		return nil, err
	}
	c.log.Info("device chosen", "model", e.Name, "device", places[0].Label, "why", choice.Why)
	if auto && places[0].Backend != backends.HIP && choice.Device.HIP != nil && len(c.explicit.bundle.PluginsOf(bundle.KindHIP)) > 0 {
		c.warn(e.Name, "hip is passed over", "device", choice.Device.Name, "reason", blockTexts(choice.Device.HIP.Blocked), "instead", places[0].Label)
	}
	return places, nil
}

// choose selects from the last look, and from a new one when that finds nothing.
func (c *gpuChooser) choose(ctx context.Context, run configs.Run) (*survey.Survey, backends.Choice, error) {
	opt := backends.SelectOptions{Selector: run.Device, Backend: run.Backend}
	s := c.survey(ctx, false)
	choice, err := backends.Select(c.devices(s, run.Backend), opt)
	if err != nil {
		s = c.survey(ctx, true)
		choice, err = backends.Select(c.devices(s, run.Backend), opt)
	}
	return s, choice, err
}

// devices are the rows to select from: backends that the bundle lacks are blocked, and with a backend asked for by name
// a failed probe is a warning in the log and no veto.
func (c *gpuChooser) devices(s *survey.Survey, backend string) []backends.Device {
	rows := slices.Clone(s.Devices)
	for i := range rows {
		d := &rows[i]
		if d.HIP != nil {
			face := *d.HIP
			face.Blocked = c.blocks(face.Blocked, backends.HIP, backend)
			d.HIP = &face
		}
		if d.Vulkan != nil {
			face := *d.Vulkan
			face.Blocked = c.blocks(face.Blocked, backends.Vulkan, backend)
			d.Vulkan = &face
		}
	}
	return rows
}

func (c *gpuChooser) blocks(list []backends.Block, face, asked string) []backends.Block {
	list = slices.Clone(list)
	if face == asked {
		list = slices.DeleteFunc(list, func(b backends.Block) bool {
			if b.Code != backends.BlockProbe {
				return false
			}
			c.warn(face, "the backend was asked for although its probe failed", "backend", face, "reason", b.Text)
			return true
		})
	}
	if len(c.explicit.bundle.PluginsOf(bundle.Kind(face))) == 0 {
		list = append(list, backends.Block{Code: backends.BlockNoAgent, Text: fmt.Sprintf("engine bundle %q has no %s plugin", c.explicit.bundle.Name, face)})
	}
	return list
}

// placements turns a choice into environments, one for each backend, and the CPU behind them when nobody insists.
func (c *gpuChooser) placements(s *survey.Survey, choice backends.Choice, auto bool) ([]Placement, error) {
	var out []Placement
	d := choice.Device
	for _, b := range choice.Backends {
		if b == backends.CPU {
			out = append(out, Placement{Backend: b, Label: b})
			continue
		}
		override := ""
		if d.HIP != nil {
			override = d.HIP.Override
		}
		env, err := backends.WorkerEnv(nil, d, b, override)
		if err != nil {
			return nil, &engine.Error{Kind: engine.KindInternal, Message: "the worker's environment cannot be made", Cause: err}
		}
		switch b {
		case backends.Vulkan:
			env = append(env, s.Choice.Env...)
			if s.Choice.Driver == "host" {
				env = append(env, c.explicit.env.DeviceVariables(b)...) // VK_DRIVER_FILES is where the driver was found
			}
		case backends.HIP:
			for _, key := range []string{"HSA_MODEL_TOPOLOGY", "HSA_MODEL_LIB"} { // a modelled GPU, in tests
				if v := c.explicit.env.Get(key); v != "" {
					env = append(env, key+"="+v)
				}
			}
		}
		label := b
		if d.PCI != "" {
			label += " on " + string(d.PCI)
		}
		out = append(out, Placement{Backend: b, WantPCI: string(d.PCI), Env: env, Label: label})
	}
	if auto && out[len(out)-1].Backend != backends.CPU {
		out = append(out, Placement{Backend: backends.CPU, Label: backends.CPU})
	}
	return out, nil
}

// survey returns the last look at the machine, or takes one: the first time, and again when the last one is old enough.
func (c *gpuChooser) survey(ctx context.Context, again bool) *survey.Survey {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && (!again || c.now().Sub(c.taken) < surveyAgain) {
		return c.last
	}
	// The client that asked first may go away; its probes must not be taken for dead plugins then.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), surveyDeadline)
	defer cancel()
	c.last, c.taken = c.look(ctx), c.now()
	return c.last
}

// warn says something once for each model.
func (c *gpuChooser) warn(model, message string, fields ...any) {
	if _, seen := c.told.LoadOrStore(fmt.Sprint(model, message, fields), struct{}{}); !seen {
		c.log.Warn(message, append([]any{"model", model}, fields...)...)
	}
}

func blockTexts(blocks []backends.Block) string {
	texts := make([]string, len(blocks))
	for i, b := range blocks {
		texts[i] = b.Text
	}
	return strings.Join(texts, "; ")
}

// surveyEnv is what a look at this machine takes: its files, the environment, the bundle and how to start its plugins.
func (a *app) surveyEnv(cfg *configs.Config, b bundle.Bundle) (survey.Env, error) {
	env := survey.Env{Environ: backends.Environ(a.env), VulkanDriver: cfg.Engine.VulkanDriver}
	root, err := a.deviceRoot(cfg)
	if err != nil {
		return env, err
	}
	env.FS = root
	// The bundle lies on this machine, whichever machine's devices are looked at.
	env.Bundle = survey.InspectBundle(sysroot.Host(), env.Environ, bundleFiles(b))
	env.Probe = func(ctx context.Context, backend string, extra []string) (probe.Result, error) {
		return probePlugin(ctx, b, env.Environ, bundle.Kind(backend), extra)
	}
	return env, nil
}

// deviceRoot is where devices are looked for: this machine, or the folder in the settings.
func (a *app) deviceRoot(cfg *configs.Config) (sysroot.FS, error) {
	if cfg.Engine.SysRoot == "" {
		return hostRoot(), nil
	}
	root, err := sysroot.Open(cfg.Engine.SysRoot)
	if err != nil {
		return nil, fmt.Errorf("open engine.sys_root: %w", err)
	}
	return root, nil
}

// chooser places models on GPUs.
func (a *app) chooser(cfg *configs.Config, b bundle.Bundle, log *slog.Logger) (Chooser, error) {
	env, err := a.surveyEnv(cfg, b)
	if err != nil {
		return nil, err
	}
	return &gpuChooser{
		explicit: &explicitChooser{env: a.env, bundle: b, log: log}, now: a.now, log: log,
		look: func(ctx context.Context) *survey.Survey { return survey.Take(ctx, env) },
	}, nil
}
