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
	"hearth/backends/survey"
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
	places map[string]tried // since the last look, by device, backends and how they were confirmed
	told   map[string]bool  // warnings are given once

	passedMu sync.Mutex // apart from mu, which is held while plugins are started
	passed   map[string]passedOver
}

// tried is what a confirmation gave.
type tried struct {
	good []survey.Candidate
	bad  []survey.Rejected
}

// passedOver is what a model lost when it was placed.
type passedOver struct {
	reason string
	count  int
}

// passedOver says why the model does not run on the best backend, "" when it does, and how often it was placed so.
func (c *gpuChooser) passedOver(model string) (reason string, count int) {
	c.passedMu.Lock()
	defer c.passedMu.Unlock()
	p := c.passed[model]
	return p.reason, p.count
}

// note remembers a placement for passedOver.
func (c *gpuChooser) note(model, reason string) {
	c.passedMu.Lock()
	defer c.passedMu.Unlock()
	p := c.passed[model]
	if p.reason = reason; reason != "" {
		p.count++
	}
	c.passed[model] = p
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
	var lost []string
	if auto && !slices.Contains(choice.Backends, backends.HIP) && choice.Device.HIP != nil && len(c.explicit.bundle.PluginsOf(bundle.KindHIP)) > 0 {
		lost = append(lost, "hip: "+blockTexts(choice.Device.HIP.Blocked))
		c.warn("backend passed over", "backend", backends.HIP, "device", choice.Device.PCI, "name", choice.Device.Name, "reason", blockTexts(choice.Device.HIP.Blocked))
	}
	t, err := c.confirm(ctx, choice, auto)
	if err != nil {
		return nil, err
	}
	good := t.good
	for _, b := range t.bad {
		lost = append(lost, b.Backend+": "+b.Reason)
	}
	c.note(e.Name, strings.Join(lost, "; "))
	if len(good) == 0 {
		return nil, noDevice(e, errors.New("its probe failed, see the log"))
	}
	places := make([]Placement, 0, len(good))
	for _, g := range good {
		label := g.Backend
		if g.WantPCI != "" {
			label += " on " + string(g.WantPCI)
		}
		places = append(places, Placement{Backend: g.Backend, Device: g.Device, WantPCI: string(g.WantPCI), Env: workerVariables(g.Env), Label: label, Free: g.Free})
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
		if len(none.Rejected) > 0 { // a machine without a GPU has lost nothing
			c.note(e.Name, none.Error())
		}
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
	c.last, c.taken, c.places = &s, c.now(), map[string]tried{}
	return c.last, nil
}

// confirm has the backends of a choice tried, once for each look: a GPU full of models would fail a second time.
func (c *gpuChooser) confirm(ctx context.Context, choice backends.Choice, auto bool) (tried, error) {
	key := fmt.Sprint(choice.Device.PCI, choice.Device.Index, choice.Backends, auto)
	if t, ok := c.places[key]; ok {
		return t, nil
	}
	override := ""
	if choice.Device.HIP != nil {
		override = choice.Device.HIP.Override
	}
	s := c.unproven
	if auto {
		s = c.proven
	}
	good, bad, err := s.Confirm(ctx, choice, override, auto)
	if err != nil {
		return tried{}, fmt.Errorf("try the backends: %w", err)
	}
	c.places[key] = tried{good, bad}
	return c.places[key], nil
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
