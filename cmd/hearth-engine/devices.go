package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hearth/engine/llama"
)

// exitNoPlugin is the exit code of devices when the plugin did not load.
const exitNoPlugin = 3

// line is one line of what devices prints. Each is written before the step that may end the process, so that whoever
// reads a dead child's output sees how far it came.
type line struct {
	Schema       int         `json:"schema,omitempty"`
	Event        string      `json:"event"`
	PID          int         `json:"pid,omitempty"`
	Plugin       string      `json:"plugin,omitempty"`
	LlamaVersion string      `json:"llama_version,omitempty"`
	GGMLVersion  string      `json:"ggml_version,omitempty"`
	Registry     string      `json:"registry,omitempty"`
	Devices      *int        `json:"devices,omitempty"`
	Device       *deviceLine `json:"device,omitempty"`
	Stage        string      `json:"stage,omitempty"`
	Message      string      `json:"message,omitempty"`
}

// deviceLine describes one device of the plugin.
type deviceLine struct {
	Index       int    `json:"index"`
	Name        string `json:"name"`
	Description string `json:"description"`
	Type        string `json:"type"`
	PCI         string `json:"pci_id"` // lower-case address, "" when the backend does not say
	MemoryFree  uint64 `json:"memory_free"`
	MemoryTotal uint64 `json:"memory_total"`
}

func put(w io.Writer, l line) { putJSON(w, l) }

// putJSON writes one line with one write.
func putJSON(w io.Writer, l any) {
	b, err := json.Marshal(l)
	if err != nil {
		return // only strings and numbers in there
	}
	_, _ = w.Write(append(b, '\n'))
}

// devices loads one plugin and lists what it sees, in NDJSON.
func devices(_ context.Context, in *invocation) int {
	fs := flag.NewFlagSet("devices", flag.ContinueOnError)
	plugin := fs.String("plugin", "", "path of the plugin (libggml-hip.so, libggml-vulkan.so, libggml-cpu-*.so)")
	only := fs.String("device", "", "name of the only device to list")
	gemm := fs.Bool("gemm", false, "multiply matrices on each device and check the product")
	if code, done := in.parse(fs); done {
		return code
	}
	if *plugin == "" {
		fmt.Fprintln(in.stderr, "hearth-engine: devices needs --plugin")
		return exitUsage
	}
	log, err := in.logger("debug") // ggml's own words are evidence here
	if err != nil {
		return in.fail(err)
	}
	l, g := llama.Version()
	put(in.stdout, line{Schema: 1, Event: "start", PID: os.Getpid(), Plugin: *plugin, LlamaVersion: l, GGMLVersion: g})
	refuse := func(stage string, err error, code int) int {
		put(in.stdout, line{Event: "error", Stage: stage, Message: err.Error()})
		return code
	}
	cfg := llama.Config{Logger: log}
	isCPU := strings.HasPrefix(filepath.Base(*plugin), "libggml-cpu")
	if isCPU {
		cfg.CPUPlugins = []string{*plugin}
	} else {
		cfg.GPUPlugin = *plugin
		if cfg.CPUPlugins, err = filepath.Glob(filepath.Join(filepath.Dir(*plugin), "libggml-cpu-*.so")); err != nil {
			return refuse("load", err, exitNoPlugin)
		}
	}
	rt, err := llama.Open(cfg)
	if err != nil {
		return refuse("load", err, exitNoPlugin)
	}
	defer rt.Close()
	all, err := rt.Devices()
	if err != nil {
		return refuse("enumerate", err, exitFailed)
	}
	all = slices.DeleteFunc(all, func(d llama.Device) bool {
		return (d.Backend == "CPU") != isCPU || *only != "" && d.Name != *only
	})
	n := len(all)
	loaded := line{Event: "loaded", Devices: &n}
	if n > 0 {
		loaded.Registry = all[0].Backend
	}
	put(in.stdout, loaded)
	for i, d := range all {
		put(in.stdout, line{Event: "device", Device: &deviceLine{
			Index: i, Name: d.Name, Description: d.Description, Type: d.Type.String(), PCI: d.PCI,
			MemoryFree: d.MemoryFree, MemoryTotal: d.MemoryTotal,
		}})
	}
	if *gemm {
		for _, d := range all {
			multiply(in.stdout, rt, d.Name)
		}
	}
	put(in.stdout, line{Event: "done"})
	return exitOK
}

// gemmLine is one half of a matrix product: begun, or done.
type gemmLine struct {
	Event    string   `json:"event"` // "gemm"
	Device   string   `json:"device"`
	Case     string   `json:"case"`
	State    string   `json:"state"` // "start" or "done"
	OK       *bool    `json:"ok,omitempty"`
	MaxError *float64 `json:"max_error,omitempty"` // relative, see llama.Gemm
	Millis   *float64 `json:"ms,omitempty"`
}

// multiply runs one product for each kind of kernel that models use: rocBLAS's and the plugin's own for quantised weights.
func multiply(w io.Writer, rt *llama.Runtime, device string) {
	for _, typ := range []string{"f16", "f32", "q4_K"} {
		l := gemmLine{Event: "gemm", Device: device, Case: typ, State: "start"}
		putJSON(w, l)
		g, err := rt.Gemm(device, typ)
		if err != nil {
			put(w, line{Event: "error", Stage: "gemm", Message: err.Error()})
			continue
		}
		ok, rel, ms := g.OK(), min(g.Error, math.MaxFloat32), g.Took.Seconds()*1000 // JSON has no infinity
		l.State, l.OK, l.MaxError, l.Millis = "done", &ok, &rel, &ms
		putJSON(w, l)
	}
}
