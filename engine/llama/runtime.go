package llama

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"log/slog"
	"strings"
	"unsafe"
)

// Config says which plugins a process loads.
type Config struct {
	// CPUPlugins are paths of libggml-cpu-*.so variants; the one that scores
	// highest on this CPU is loaded. At least one is needed.
	CPUPlugins []string
	// GPUPlugin is the path of libggml-hip.so or libggml-vulkan.so; "" for
	// none. A process holds at most one for its lifetime.
	GPUPlugin string
	// Logger receives llama.cpp's log (its info as slog debug) and leak
	// reports. nil discards them.
	Logger *slog.Logger
}

// Runtime is the loaded library. llama.cpp keeps its plugin registry and log
// callback per process, so there should be one; opening another later, with the
// same plugins, works and takes over the log.
type Runtime struct {
	lease
	log  *slog.Logger
	pump *logPump
	cpu  string
}

// Open starts the library and loads the plugins. Errors: ErrPlugin (with the
// loader's words), ErrGPUPlugin, ErrRange for an empty CPUPlugins.
func Open(cfg Config) (*Runtime, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if len(cfg.CPUPlugins) == 0 {
		return nil, fail("open", ErrRange, "no CPU plugin given")
	}
	pump, err := startLog(log)
	if err != nil {
		return nil, err
	}
	r := &Runtime{log: log, pump: pump}
	if err := r.loadPlugins(cfg); err != nil {
		pump.stop()
		return nil, err
	}
	track(&r.lease, r, "runtime", log)
	return r, nil
}

func (r *Runtime) loadPlugins(cfg Config) error {
	best, err := bestPlugin(cfg.CPUPlugins)
	if err != nil {
		return err
	}
	r.cpu = best
	if err := loadPlugin(best, false); err != nil {
		return err
	}
	if cfg.GPUPlugin == "" {
		return nil
	}
	return loadPlugin(cfg.GPUPlugin, true)
}

// bestPlugin returns the path with the highest score on this CPU.
func bestPlugin(paths []string) (string, error) {
	best, top := "", C.int(0)
	var errs []error
	for _, p := range paths {
		var score C.int
		var e C.hs_err
		cp := C.CString(p)
		rc := C.hs_plugin_score(cp, &score, &e)
		C.free(unsafe.Pointer(cp))
		if rc != C.HS_OK {
			errs = append(errs, shimError("open "+p, ErrPlugin, rc, &e))
			continue
		}
		if score > top {
			best, top = p, score
		}
	}
	if best == "" {
		return "", errors.Join(append(errs, fail("open", ErrPlugin, "no CPU plugin runs on this CPU"))...)
	}
	return best, nil
}

func loadPlugin(path string, gpu bool) error {
	var e C.hs_err
	cp := C.CString(path)
	defer C.free(unsafe.Pointer(cp))
	return shimError("load plugin "+path, ErrPlugin, C.hs_plugin_load(cp, C.bool(gpu), &e), &e)
}

// Close detaches the log. Plugins stay loaded: their runtimes do not survive
// being unloaded, and a process that wants their memory back exits.
func (r *Runtime) Close() error {
	if r.release() {
		r.pump.stop()
	}
	return nil
}

// CPUPlugin returns the path of the CPU plugin that was chosen.
func (r *Runtime) CPUPlugin() string { return r.cpu }

// LogDropped counts the log records lost because Go did not read them fast enough.
func (r *Runtime) LogDropped() uint64 { return uint64(C.hs_log_dropped()) }

// Version of llama.cpp and ggml, e.g. "0.7.0" and "0.27.0".
func Version() (llama, ggml string) {
	return C.GoString(C.hs_llama_version()), C.GoString(C.hs_ggml_version())
}

// MaxSeqs is the compile-time limit on sequence ids of a context, 256.
func MaxSeqs() int { return int(C.hs_max_seqs()) }

// DeviceType says what kind of memory and processor a device is.
type DeviceType int

// Values follow ggml_backend_dev_type.
const (
	DeviceCPU   DeviceType = iota
	DeviceGPU              // own memory
	DeviceIGPU             // shares the host's memory
	DeviceAccel            // helps the CPU backend (BLAS, AMX)
	DeviceMeta
)

func (t DeviceType) String() string {
	names := [...]string{"cpu", "gpu", "igpu", "accel", "meta"}
	if t < 0 || int(t) >= len(names) {
		return "unknown"
	}
	return names[t]
}

// Device is one device of the loaded plugins.
type Device struct {
	Name        string // "CPU", "ROCm0", "Vulkan0"
	Description string
	Backend     string // "CPU", "ROCm", "Vulkan"
	Type        DeviceType
	PCI         string // lower case "0000:03:00.0", "" when unknown
	MemoryFree  uint64 // bytes, at the time of the call
	MemoryTotal uint64 // bytes
}

// Devices lists the devices in the order of the registry. It asks the drivers
// for the free memory, which can take milliseconds.
func (r *Runtime) Devices() ([]Device, error) {
	n := int(C.hs_device_count())
	out := make([]Device, 0, n)
	for i := range n {
		var d C.hs_device
		var e C.hs_err
		if rc := C.hs_device_get(C.int(i), &d, &e); rc != C.HS_OK {
			return nil, shimError("devices", ErrException, rc, &e)
		}
		out = append(out, Device{
			Name: C.GoString(&d.name[0]), Description: C.GoString(&d.desc[0]), Backend: C.GoString(&d.backend[0]),
			Type: DeviceType(d._type), PCI: strings.ToLower(C.GoString(&d.pci[0])),
			MemoryFree: uint64(d.mem_free), MemoryTotal: uint64(d.mem_total),
		})
	}
	return out, nil
}
