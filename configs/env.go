package configs

import (
	"path/filepath"
	"strconv"
	"strings"
)

// Environ is a process environment, "KEY=VALUE" each, as os.Environ gives it. Later entries win.
type Environ []string

// Get returns a variable, "" when it is unset or empty: both mean "not set" here.
func (e Environ) Get(key string) string {
	for i := len(e) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(e[i], key+"="); ok {
			return v
		}
	}
	return ""
}

// Color says whether a terminal may get colours and cursor movement (NO_COLOR, TERM=dumb).
func (e Environ) Color() bool { return e.Get("NO_COLOR") == "" && e.Get("TERM") != "dumb" }

// NotifySocket is where systemd wants to hear that the service is ready; empty when it does not run us.
func (e Environ) NotifySocket() string { return e.Get("NOTIFY_SOCKET") }

// base folders by the XDG base directory specification, with hearth's own subfolder.
func (e Environ) base(name string, uid int) string {
	home := e.Get("HOME")
	xdg := func(key, fallback string) string {
		if v := e.Get(key); filepath.IsAbs(v) { // the specification says to ignore relative ones
			return filepath.Join(v, "hearth")
		}
		if home == "" {
			return ""
		}
		return filepath.Join(home, fallback, "hearth")
	}
	switch name {
	case "config":
		return xdg("XDG_CONFIG_HOME", ".config")
	case "data":
		return xdg("XDG_DATA_HOME", ".local/share")
	case "cache":
		return xdg("XDG_CACHE_HOME", ".cache")
	case "state":
		return xdg("XDG_STATE_HOME", ".local/state")
	case "runtime":
		if v := e.Get("XDG_RUNTIME_DIR"); filepath.IsAbs(v) {
			return filepath.Join(v, "hearth")
		}
		tmp := e.Get("TMPDIR")
		if tmp == "" {
			tmp = "/tmp"
		}
		return filepath.Join(tmp, "hearth-"+strconv.Itoa(uid))
	}
	return ""
}

// expand replaces a leading $data, $cache, $state, $runtime, $config or ~ in a folder.
func (e Environ) expand(s string, uid int) string {
	if rest, ok := strings.CutPrefix(s, "~/"); ok && e.Get("HOME") != "" {
		return filepath.Join(e.Get("HOME"), rest)
	}
	if !strings.HasPrefix(s, "$") {
		return s
	}
	name, rest, _ := strings.Cut(s[1:], "/")
	base := e.base(name, uid)
	if base == "" {
		return "" // no HOME: Validate says which folder is missing
	}
	return filepath.Join(base, rest)
}

// DeviceVariables are the settings, "KEY=VALUE", by which a person narrows the devices of a backend.
func (e Environ) DeviceVariables(backend string) []string {
	var keys []string
	switch backend {
	case "hip":
		keys = []string{"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"}
	case "vulkan":
		keys = []string{"GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES", "VK_ICD_FILENAMES"}
	}
	var out []string
	for _, k := range keys {
		if v := e.Get(k); v != "" {
			out = append(out, k+"="+v)
		}
	}
	return out
}
