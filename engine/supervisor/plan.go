package supervisor

import (
	"context"
	"slices"
	"strings"

	"hearth/engine"
)

// Command is a program to start: the file to execute, its arguments with the program's name first, and variables it
// needs beside those that the Plan sets. An engine bundle provides it.
type Command struct {
	Path string
	Argv []string
	Env  []string
}

// Plan is one way to run a model.
type Plan struct {
	// Label names the plan in logs and Status, such as "vulkan on 0000:03:00.0".
	Label string
	Spec  engine.LoadSpec
	// Launch returns the command that runs hearth-engine with these arguments. The supervisor asks for
	// "serve --socket PATH"; whatever else the engine has to know (its bundle) Launch adds.
	Launch func(args ...string) Command
	// Env lists KEY=VALUE for this worker. Device selection (ROCR_VISIBLE_DEVICES, GGML_VK_VISIBLE_DEVICES,
	// VK_DRIVER_FILES) reaches a worker only through it.
	Env []string
	// Needs says how much memory the model takes, per device; empty when unknown.
	Needs []Need
	// Fallbacks are tried in order when this plan does not load, or faults too often. Their own Fallbacks are ignored.
	Fallbacks []Plan
}

// Need is memory that a model takes on one device. Device is a key that the Config.Capacity function knows.
type Need struct {
	Device string
	Bytes  uint64
}

// Resolver knows models by name. Resolve is called without locks held and may read files. Its error goes to the client:
// an *engine.Error of KindNotFound for an unknown name.
type Resolver interface {
	Resolve(ctx context.Context, name string) (Plan, error)
}

// all is the plan followed by its fallbacks.
func (p *Plan) all() []Plan {
	return append([]Plan{*p}, p.Fallbacks...)
}

// inherited lists the variables that a worker takes over from hearth's own environment. Everything else stays outside:
// a stray HSA_OVERRIDE_GFX_VERSION, LD_LIBRARY_PATH or *_VISIBLE_DEVICES is how the wrong GPU gets used.
// The XDG and MESA variables decide where drivers keep compiled shaders, the Vulkan loader finds drivers by XDG_DATA_*.
func inherited(key string) bool {
	switch key {
	case "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR",
		"XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS",
		"MESA_SHADER_CACHE_DIR", "MESA_SHADER_CACHE_MAX_SIZE", "MESA_SHADER_CACHE_DISABLE",
		"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES":
		return true
	}
	return strings.HasPrefix(key, "LC_")
}

// environment is the whole environment of a worker: what it inherits from base, the fixed settings, the launcher's and
// the plan's own variables. A later one replaces an earlier one of the same name.
func environment(base []string, plan *Plan, cmd *Command) []string {
	var out []string
	set := func(kv string) {
		key, _, ok := strings.Cut(kv, "=")
		if !ok || key == "" {
			return
		}
		out = slices.DeleteFunc(out, func(have string) bool { return strings.HasPrefix(have, key+"=") })
		out = append(out, kv)
	}
	if plan.Spec.Backend != "cpu" && plan.Spec.Backend != "" && plan.Spec.GPULayers != 0 {
		// With the layers on a GPU the OpenMP team only waits; spinning it would take cores from everybody. On the CPU it must
		// spin: on two quiet cores SmolLM2 decodes 99 tok/s with a spinning team and 36 with a waiting one. (Beside other busy
		// processes it is the other way round, 11 and 50: whoever has those sets OMP_WAIT_POLICY=passive for hearth.)
		set("OMP_WAIT_POLICY=passive")
	}
	for _, kv := range base {
		if key, _, _ := strings.Cut(kv, "="); inherited(key) {
			set(kv)
		}
	}
	// ggml would start gdb for a backtrace when it aborts, which takes seconds and sometimes hangs.
	set("GGML_NO_BACKTRACE=1")
	// A dying Go program prints the stack of every goroutine, which would push ggml's last words out of the kept stderr.
	set("GOTRACEBACK=single")
	for _, kv := range cmd.Env {
		set(kv)
	}
	for _, kv := range plan.Env {
		set(kv)
	}
	return out
}
