package probe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Device is one device of a plugin, as the plugin itself describes it.
type Device struct {
	Index       int    `json:"index"` // position in the plugin's list, from 0
	Name        string `json:"name"`  // "ROCm0", "Vulkan0", "CPU"
	Description string `json:"description"`
	Type        string `json:"type"` // "cpu", "gpu", "igpu", "accel", "meta" or "unknown"
	// PCIID is the lower-case PCI address; empty when the driver does not say (llvmpipe, CPU).
	PCIID       string `json:"pci_id"`
	MemoryFree  uint64 `json:"memory_free"`  // bytes
	MemoryTotal uint64 `json:"memory_total"` // bytes
	Caps        Caps   `json:"caps"`
	// Driver and MatrixCores come from the line that ggml-vulkan prints about a device; empty for other plugins.
	Driver      string `json:"driver,omitempty"`       // "radv", "AMD open-source driver", "llvmpipe"
	MatrixCores string `json:"matrix_cores,omitempty"` // "KHR_coopmat", "NV_coopmat2" or "none"
	UMA         bool   `json:"uma,omitempty"`          // device memory is system memory
}

// Caps are ggml's device capabilities.
type Caps struct {
	Async             bool `json:"async"`
	HostBuffer        bool `json:"host_buffer"`
	BufferFromHostPtr bool `json:"buffer_from_host_ptr"`
	Events            bool `json:"events"`
}

// Gemm is the outcome of one matrix product on one device.
type Gemm struct {
	Device   string  `json:"device"`
	Case     string  `json:"case"` // "f16", "f32", "q4_K"
	Done     bool    `json:"done"` // it came back; false: the child died or stopped in it
	OK       bool    `json:"ok"`   // the values were right
	MaxError float64 `json:"max_error"`
	Millis   float64 `json:"ms"`
}

// Stage is how far a child came.
type Stage string

// Stages in order.
const (
	StageSpawn     Stage = "spawn"     // the child did not speak yet
	StageLoad      Stage = "load"      // it is loading the plugin
	StageEnumerate Stage = "enumerate" // the plugin is loaded, devices are being listed
	StageGemm      Stage = "gemm"      // a matrix product was begun
	StageDone      Stage = "done"      // it said that it finished
)

// event is one line of the child.
type event struct {
	Schema       int     `json:"schema"`
	Event        string  `json:"event"`
	LlamaVersion string  `json:"llama_version"`
	GGMLVersion  string  `json:"ggml_version"`
	Registry     string  `json:"registry"`
	Case         string  `json:"case"`
	State        string  `json:"state"`
	OK           bool    `json:"ok"`
	MaxError     float64 `json:"max_error"`
	Millis       float64 `json:"ms"`
	Stage        string  `json:"stage"`
	Message      string  `json:"message"`
}

// protoSchema is the version of the line protocol that this reader knows.
const protoSchema = 1

// maxDevices bounds what a child may list: more is a broken child, not a machine.
const maxDevices = 256

// transcript is what the lines of a child add up to.
type transcript struct {
	stage                   Stage
	llama, ggml, registry   string
	devices                 []Device
	gemms                   []Gemm
	errors                  []string
	newer                   bool // the child speaks a newer schema
	badLines, unknownEvents int
}

// parseTranscript reads a child's stdout. It never fails: lines that are not JSON are counted (a library that prints
// to stdout must not hide the devices), unknown events and fields are skipped.
func parseTranscript(out []byte) transcript {
	t := transcript{stage: StageSpawn}
	for line := range bytes.Lines(out) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var raw struct {
			event
			Device json.RawMessage `json:"device"` // an object in "device" lines, a name in "gemm" lines
		}
		if line[0] != '{' || json.Unmarshal(line, &raw) != nil {
			t.badLines++
			continue
		}
		t.apply(&raw.event, raw.Device)
	}
	return t
}

func (t *transcript) apply(e *event, device json.RawMessage) {
	switch e.Event {
	case "start":
		t.stage, t.llama, t.ggml = StageLoad, e.LlamaVersion, e.GGMLVersion
		t.newer = e.Schema > protoSchema
	case "loaded":
		t.stage, t.registry = StageEnumerate, e.Registry
	case "device":
		var d Device
		if json.Unmarshal(device, &d) != nil || d.Name == "" || len(t.devices) >= maxDevices {
			t.badLines++
			return
		}
		d.PCIID = strings.ToLower(d.PCIID)
		t.devices = append(t.devices, d)
	case "gemm":
		t.stage = StageGemm
		t.applyGemm(e, device)
	case "error":
		t.errors = append(t.errors, fmt.Sprintf("%s: %s", e.Stage, e.Message))
	case "done":
		t.stage = StageDone
	default:
		t.unknownEvents++
	}
}

// applyGemm pairs the "start" and "done" lines of one product.
func (t *transcript) applyGemm(e *event, device json.RawMessage) {
	var name string
	if json.Unmarshal(device, &name) != nil || name == "" {
		t.badLines++
		return
	}
	switch e.State {
	case "start":
		if len(t.gemms) < 16*maxDevices {
			t.gemms = append(t.gemms, Gemm{Device: name, Case: e.Case})
		}
	case "done":
		for i := len(t.gemms) - 1; i >= 0; i-- {
			if g := &t.gemms[i]; g.Device == name && g.Case == e.Case {
				g.Done, g.OK, g.MaxError, g.Millis = true, e.OK, e.MaxError, e.Millis
				return
			}
		}
		t.badLines++
	default:
		t.badLines++
	}
}
