package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"hearth/backends"
	"hearth/backends/sysroot"
	"hearth/backends/vulkan"
	"hearth/configs"
	"hearth/engine"
	"hearth/engine/bundle"
	"hearth/engine/supervisor"
	"hearth/models"
	"hearth/models/gguf"
)

// Chooser decides where a model runs. The first Placement is tried first, the others when it fails.
type Chooser interface {
	Choose(ctx context.Context, e models.Entry, run configs.Run) ([]Placement, error)
}

// Placement is one way to run a model: a backend, its device, and the environment that makes the worker see just that.
type Placement struct {
	Backend string // "hip", "vulkan" or "cpu"
	Device  string // the backend's name for the device; empty: its only one
	WantPCI string // address the device must have after load; empty: any
	Env     []string
	Label   string // for people, such as "vulkan on 0000:03:00.0"
	// Free is what the backend called free on the device when it was probed, in bytes.
	Free backends.Optional[uint64]
}

// resolver makes plans for the worker pool out of the store, the settings and the engine bundle.
type resolver struct {
	store   *models.Store
	cfg     *configs.Config
	bundle  bundle.Bundle
	chooser Chooser
	planner *planner
	log     *slog.Logger
}

// Resolve implements supervisor.Resolver.
func (r *resolver) Resolve(ctx context.Context, name string) (supervisor.Plan, error) {
	e, err := r.store.Resolve(name)
	if err != nil {
		return supervisor.Plan{}, storeError(name, err)
	}
	// The file may have changed since it was added; a worker that dies on it would say less.
	f, err := gguf.Open(e.Path())
	if err != nil {
		r.log.Error("model file is unusable", "model", e.Name, "err", err)
		return supervisor.Plan{}, damaged(e, err)
	}
	run, err := r.cfg.RunFor(append([]string{e.Name}, e.Aliases...)...)
	if err != nil {
		return supervisor.Plan{}, err
	}
	spec, err := loadSpec(e, run)
	if err != nil {
		return supervisor.Plan{}, err
	}
	places, err := r.chooser.Choose(ctx, e, run)
	if err != nil {
		return supervisor.Plan{}, err
	}
	plans := make([]supervisor.Plan, 0, len(places))
	for _, p := range places {
		s := spec
		s.Backend, s.Device, s.WantPCI = p.Backend, p.Device, p.WantPCI
		needs, err := r.planner.plan(ctx, f, int(e.Summary.ContextLength), run, p, &s)
		if err != nil {
			return supervisor.Plan{}, err
		}
		plans = append(plans, supervisor.Plan{Label: p.Label, Spec: s, Env: p.Env, Launch: r.launcher(p.Env), Needs: needs})
	}
	plan := plans[0]
	plan.Fallbacks = plans[1:]
	return plan, nil
}

// launcher starts hearth-engine of the bundle, with the variables of a placement.
func (r *resolver) launcher(env []string) func(args ...string) supervisor.Command {
	b := r.bundle.WithLibraryPath(driverDirs(sysroot.Host(), env)...)
	return func(args ...string) supervisor.Command {
		return supervisor.Command(b.Command("hearth-engine", append(args, "--bundle", b.Dir)...))
	}
}

// driverDirs are the folders of Vulkan drivers that env names by a manifest with a path in it: a Mesa outside the
// system's library folders, whose own libraries lie beside it.
func driverDirs(fsys sysroot.FS, env []string) []string {
	var dirs []string
	for _, kv := range env {
		key, files, _ := strings.Cut(kv, "=")
		if key != "VK_DRIVER_FILES" && key != "VK_ICD_FILENAMES" && key != "VK_ADD_DRIVER_FILES" {
			continue
		}
		for _, f := range filepath.SplitList(files) {
			icd, err := vulkan.ReadManifest(fsys, f)
			if err != nil || icd.Library == "" || !strings.Contains(icd.LibraryName, "/") {
				continue // the Vulkan loader says what is wrong with it
			}
			if d := "/" + path.Dir(icd.Library); !slices.Contains(dirs, d) {
				dirs = append(dirs, d)
			}
		}
	}
	return dirs
}

// storeError words a failed look-up for clients.
func storeError(name string, err error) error {
	nf, ok := errors.AsType[*models.NotFoundError](err)
	if !ok {
		return &engine.Error{Kind: engine.KindInternal, Message: "the model store cannot be read", Cause: err}
	}
	e := &engine.Error{Kind: engine.KindNotFound, Field: "model", Message: fmt.Sprintf("model %q not found, try pulling it first", name)}
	if e.Hint = "hearth pull fetches models, hearth list shows those that are here"; len(nf.Close) > 0 {
		e.Hint = "did you mean " + strings.Join(nf.Close, " or ") + "?"
	}
	return e
}

// damaged is for a file that was fine when it was added.
func damaged(e models.Entry, err error) error {
	return &engine.Error{
		Kind: engine.KindInternal, Message: fmt.Sprintf("the file of model %q cannot be used: %v", e.Name, err),
		Hint: "fetch it again with hearth pull --force", Cause: err,
	}
}

// loadSpec translates settings.
func loadSpec(e models.Entry, run configs.Run) (engine.LoadSpec, error) {
	mode, ok := map[gguf.Kind]string{gguf.KindChat: "chat", gguf.KindEmbedding: "embedding", gguf.KindRerank: "rerank"}[e.Summary.Kind]
	if !ok {
		return engine.LoadSpec{}, &engine.Error{Kind: engine.KindUnsupported, Field: "model",
			Message: fmt.Sprintf("%q is no text model but a file of kind %s", e.Name, e.Summary.Kind)}
	}
	return engine.LoadSpec{
		Name: e.Name, Path: e.Path(), GPULayers: run.GPULayers, Context: run.Context, Cells: run.Cells,
		MaxSequences: run.MaxSequences, Chunk: run.Chunk, Threads: run.Threads, FlashAttention: run.FlashAttention,
		KVTypeK: run.KVTypeK, KVTypeV: run.KVTypeV, KVLayout: run.KVLayout, MMap: run.MMap, MLock: run.MLock,
		Mode: mode, ITLTarget: run.ITLTarget, QueueLimit: run.QueueLimit, TenantCache: run.TenantCache,
		HostCache: int64(run.HostCache), WindowCache: run.WindowCache, CPUBLAS: run.CPUBLAS,
	}, nil
}

// explicitChooser takes the backend from the settings and the CPU without one. It says loudly, once a model, that a GPU
// was not looked for.
type explicitChooser struct {
	env    configs.Environ
	bundle bundle.Bundle
	log    *slog.Logger
	warned sync.Map // model name -> struct{}
}

// Choose implements Chooser.
func (c *explicitChooser) Choose(_ context.Context, e models.Entry, run configs.Run) ([]Placement, error) {
	kind := bundle.Kind(run.Backend)
	if run.Backend == "auto" {
		kind = bundle.KindCPU
		if _, seen := c.warned.LoadOrStore(e.Name, struct{}{}); !seen {
			c.log.Warn("running on the CPU, the engine bundle has no GPU backend",
				"model", e.Name, "bundle", c.bundle.Name, "backends", backendsOf(c.bundle))
		}
	}
	if len(c.bundle.PluginsOf(kind)) == 0 {
		return nil, &engine.Error{Kind: engine.KindUnsupported, Message: fmt.Sprintf("engine bundle %q has no %s backend", c.bundle.Name, kind),
			Hint: "hearth engine list shows the bundles and their backends"}
	}
	p := Placement{Backend: string(kind), Device: run.Device, Label: string(kind)}
	if run.Device != "" {
		p.Label += " on " + run.Device
	}
	// The person chose the backend, so what they say about its devices counts too.
	p.Env = c.env.DeviceVariables(run.Backend)
	if kind == bundle.KindVulkan && !hasKey(p.Env, "VK_DRIVER_FILES") {
		if files := c.bundle.VulkanDriverFiles(); len(files) > 0 {
			p.Env = append(p.Env, "VK_ADD_DRIVER_FILES="+strings.Join(files, ":"))
		}
	}
	return []Placement{p}, nil
}

func hasKey(env []string, key string) bool {
	for _, kv := range env {
		if strings.HasPrefix(kv, key+"=") {
			return true
		}
	}
	return false
}
