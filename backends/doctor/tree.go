package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"hearth/backends"
	"hearth/backends/probe"
	"hearth/backends/sysroot"
)

// Files of a captured tree that hold what is no file on the machine. `hearth doctor --report` writes them.
const (
	TreeEnviron   = ".hearth/environ"     // one KEY=value a line
	TreeBundle    = ".hearth/bundle.json" // Bundle
	TreeKernelLog = ".hearth/kernel.log"  // the lines about GPUs
	TreeProbes    = ".hearth/probes.json" // []TreeProbe
)

// TreeProbe is a plugin's child as it was seen on the captured machine.
type TreeProbe struct {
	Backend string       `json:"backend"`
	Env     []string     `json:"env,omitempty"` // the additions it was started with
	Error   string       `json:"error,omitempty"`
	Result  probe.Result `json:"result"`
	Stderr  string       `json:"stderr,omitempty"` // its last lines
}

// FromTree makes the Env of a captured tree: environment, bundle, kernel log and probes come from the tree, never from
// the machine that looks at it. A part that the tree lacks stays unknown; one that does not parse is an error.
func FromTree(fsys sysroot.FS) (Env, error) {
	env := Env{FS: fsys}
	if b, err := fsys.ReadFile(TreeEnviron); err == nil {
		for line := range strings.Lines(string(b)) {
			if line = strings.TrimRight(line, "\r\n"); strings.Contains(line, "=") {
				env.Environ = append(env.Environ, line)
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return env, err
	}
	if err := readJSON(fsys, TreeBundle, &env.Bundle); err != nil {
		return env, err
	}
	for _, name := range []string{TreeKernelLog, "var/log/dmesg"} { // the second: what some distributions leave there
		if _, err := fsys.Stat(name); err == nil {
			env.KernelLog = func(context.Context) (string, error) {
				b, err := fsys.ReadFile(name)
				return string(b), err
			}
			break
		}
	}
	var probes []TreeProbe
	if err := readJSON(fsys, TreeProbes, &probes); err != nil {
		return env, err
	}
	if len(probes) > 0 {
		env.Probe = replay(probes)
	}
	return env, nil
}

func readJSON(fsys sysroot.FS, name string, into any) error {
	b, err := fsys.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// errNotCaptured is what replaying a probe gives that was not run on the captured machine.
var errNotCaptured = errors.New("this start of the plugin was not captured")

// replay answers probes with what was captured.
func replay(probes []TreeProbe) func(context.Context, string, []string) (probe.Result, error) {
	return func(_ context.Context, backend string, env []string) (probe.Result, error) {
		for _, p := range probes {
			if p.Backend != backend || strings.Join(p.Env, "\n") != strings.Join(env, "\n") {
				continue
			}
			if p.Error != "" {
				return probe.Result{}, errors.New(p.Error)
			}
			r := p.Result
			r.Stderr = p.Stderr
			// The table may have learnt since.
			r.Findings = probe.Diagnose(p.Stderr + "\n" + strings.Join(r.Errors, "\n"))
			return r, nil
		}
		return probe.Result{}, fmt.Errorf("%s %s: %w", backend, strings.Join(env, " "), errNotCaptured)
	}
}

// relevant says whether a variable belongs in a report: those that choose, disguise or tune GPUs, and search paths.
func relevant(key string) bool {
	for _, prefix := range []string{"ROCR_", "HIP_", "HSA_", "HSAKMT_", "CUDA_VISIBLE", "GPU_", "GGML_", "AMD_", "ROCBLAS_", "HIPBLASLT_", "ROCM_",
		"VK_", "RADV_", "MESA_", "DRI_PRIME", "LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_DATA", "XDG_CONFIG", "ACO_", "KUBERNETES_SERVICE_HOST",
		"APPTAINER_NAME", "SINGULARITY_NAME", "NODEVICE_SELECT", "HEARTH_"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return key == "HOME"
}

// RelevantEnviron keeps the variables that the doctor looks at.
func RelevantEnviron(environ backends.Environ) backends.Environ {
	var out backends.Environ
	for _, kv := range environ {
		if key, _, ok := strings.Cut(kv, "="); ok && relevant(key) && !strings.Contains(key, "TOKEN") && !strings.Contains(key, "KEY") {
			out = append(out, kv)
		}
	}
	return out
}
