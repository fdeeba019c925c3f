package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"

	"hearth/engine"
	"hearth/engine/llama"
	"hearth/engine/worker"
)

// Opener loads models with the plugins of one engine bundle.
type Opener struct {
	CPUPlugins []string          // paths of the CPU variants
	GPUPlugins map[string]string // backend ("hip", "vulkan") -> path
	BLASPlugin string            // path; "": the bundle has none
	Log        *slog.Logger
}

// registryNames are ggml's names of the backends.
func registryName(backend string) string {
	return map[string]string{"hip": "ROCm", "vulkan": "Vulkan", "cpu": "CPU"}[backend]
}

// Runtime starts llama.cpp with the plugin of one backend ("cpu": none).
func (o *Opener) Runtime(backend string) (*llama.Runtime, error) {
	cfg := llama.Config{CPUPlugins: o.CPUPlugins, Logger: o.Log}
	if backend != "cpu" {
		path := o.GPUPlugins[backend]
		if path == "" {
			return nil, &engine.Error{
				Kind: engine.KindUnavailable, Message: fmt.Sprintf("this engine has no %s plugin", backend),
				Hint: "build the bundle with it, or choose another backend",
			}
		}
		cfg.GPUPlugin = path
	}
	rt, err := llama.Open(cfg)
	if err != nil {
		return nil, &engine.Error{Kind: engine.KindUnavailable, Message: fmt.Sprintf("the %s backend cannot be loaded", backend), Cause: err}
	}
	return rt, nil
}

// Open implements worker.Opener.
func (o *Opener) Open(ctx context.Context, spec engine.LoadSpec, progress func(string, float64)) (worker.Model, error) {
	if spec.Backend == "" {
		spec.Backend = "cpu"
	}
	// Before any library is loaded: the commonest mistakes need no GPU to be found.
	if err := checkFile(spec.Path); err != nil {
		return nil, err
	}
	rt, err := o.Runtime(spec.Backend)
	if err != nil {
		return nil, err
	}
	m, err := o.load(ctx, rt, spec, progress)
	if err != nil {
		_ = rt.Close()
		return nil, err
	}
	return m, nil
}

func checkFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &engine.Error{Kind: engine.KindNotFound, Message: "the model's file is not there", Field: "path", Cause: err}
	}
	if err != nil {
		return &engine.Error{Kind: engine.KindInvalid, Message: "the model's file cannot be read", Field: "path", Cause: err}
	}
	defer f.Close()
	var magic [4]byte
	if n, _ := f.Read(magic[:]); n < 4 || string(magic[:]) != "GGUF" {
		return &engine.Error{Kind: engine.KindInvalid, Message: "the model's file is not a GGUF file", Field: "path"}
	}
	return nil
}

func (o *Opener) load(ctx context.Context, rt *llama.Runtime, spec engine.LoadSpec, progress func(string, float64)) (*model, error) {
	dev, err := chooseDevice(rt, &spec)
	if err != nil {
		return nil, err
	}
	mp := llama.ModelParams{Load: loadMode(&spec), Progress: func(f float64) { progress("weights", f) }}
	if spec.Backend != "cpu" {
		mp.Devices, mp.GPULayers = []string{dev.Name}, spec.GPULayers
	}
	lm, err := rt.LoadModel(ctx, spec.Path, mp)
	if err != nil {
		return nil, loadError(ctx, spec.Backend, err)
	}
	m := &model{rt: rt, m: lm, spec: spec, blas: o.BLASPlugin, log: o.Log}
	if err := m.init(dev, progress); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// loadMode is how the weights get into memory.
func loadMode(s *engine.LoadSpec) llama.LoadMode {
	switch {
	case s.MMap && s.MLock:
		return llama.LoadMMapMLock
	case s.MMap:
		return llama.LoadMMap
	case s.MLock:
		return llama.LoadMLock
	default:
		return llama.LoadRead
	}
}

// chooseDevice finds the device that the spec means and refuses any other.
func chooseDevice(rt *llama.Runtime, spec *engine.LoadSpec) (llama.Device, error) {
	devices, err := rt.Devices()
	if err != nil {
		return llama.Device{}, &engine.Error{Kind: engine.KindUnavailable, Message: "the devices cannot be listed", Cause: err}
	}
	want := registryName(spec.Backend)
	var found []llama.Device
	for _, d := range devices {
		if d.Backend == want && d.Type != llama.DeviceAccel && (spec.Device == "" || d.Name == spec.Device) {
			found = append(found, d)
		}
	}
	if spec.WantPCI != "" {
		pci := strings.ToLower(spec.WantPCI)
		i := slices.IndexFunc(found, func(d llama.Device) bool { return d.PCI == pci })
		if i < 0 {
			return llama.Device{}, &engine.Error{
				Kind: engine.KindUnavailable, Message: fmt.Sprintf("the %s backend does not see the device %s", spec.Backend, pci),
				Cause: fmt.Errorf("it sees %s", deviceList(devices)),
			}
		}
		return found[i], nil
	}
	if len(found) == 0 {
		name := spec.Device
		if name == "" {
			name = "any device"
		}
		return llama.Device{}, &engine.Error{
			Kind: engine.KindUnavailable, Message: fmt.Sprintf("the %s backend does not see %s", spec.Backend, name),
			Cause: fmt.Errorf("it sees %s", deviceList(devices)),
		}
	}
	return found[0], nil
}

func deviceList(devices []llama.Device) string {
	var out []string
	for _, d := range devices {
		out = append(out, fmt.Sprintf("%s (%s, %s)", d.Name, d.Description, d.PCI))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

// loadError says what the caller can do about a failed load. On the CPU a file that does not load is a bad file; on a
// GPU it may as well be the memory, so it is worth trying elsewhere.
func loadError(ctx context.Context, backend string, err error) error {
	switch {
	case ctx.Err() != nil:
		return &engine.Error{Kind: engine.KindCancelled, Message: "the load was cancelled", Cause: context.Cause(ctx)}
	case errors.Is(err, llama.ErrOutOfMemory):
		return &engine.Error{Kind: engine.KindUnavailable, Message: "there is not enough memory for the model", Cause: err}
	case errors.Is(err, llama.ErrModelLoad) && backend == "cpu":
		return &engine.Error{Kind: engine.KindInvalid, Message: "the model's file cannot be loaded", Field: "path", Cause: err}
	default:
		return &engine.Error{Kind: engine.KindUnavailable, Message: "the model cannot be loaded on this backend", Cause: err}
	}
}
