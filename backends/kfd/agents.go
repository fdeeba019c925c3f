package kfd

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"hearth/backends"
)

// Agents is what ROCr and HIP will list in one environment.
type Agents struct {
	// List is in ROCr's order, GPUs that an environment variable hides included.
	List []Agent `json:"list,omitempty"`
	// Fatal is why hsa_init fails and no GPU is listed at all; ROCr itself gives 0x1008 for each of these.
	Fatal error `json:"-"`
	// Notes are settings that do not do what they look like, for the doctor.
	Notes []string `json:"notes,omitempty"`
}

// Agent is one GPU in ROCr's list.
type Agent struct {
	Node     int `json:"node"`      // sysfs
	UserNode int `json:"user_node"` // compacted: what HSA_OVERRIDE_GFX_VERSION_<N> counts
	// Index is the place before any filter, what ROCR_VISIBLE_DEVICES counts. Unknown when ROCr drops the GPU, because an
	// override names a target that it does not know; the place stays taken.
	Index backends.Optional[int] `json:"rocr_index,omitzero"`
	// HIP is the ordinal after all filters; unknown when the environment hides the GPU, and Hidden says by what.
	HIP    backends.Optional[int] `json:"hip,omitzero"`
	Hidden string                 `json:"hidden,omitempty"`
	// GFX is what ROCr reports. Override is the value that made it so.
	GFX      string `json:"gfx"`
	Override string `json:"override,omitempty"`
}

// Errors of Agents.Fatal, beside those of device nodes.
var (
	ErrNoKFD     = errors.New("the kernel shows no KFD topology")
	ErrOverride  = errors.New("the value is not MAJOR.MINOR.STEPPING")
	ErrEmptyItem = errors.New("an empty item ends the process in ROCr")
)

// Agents works out ROCr's agents and HIP's ordinals as ROCr 6.4 and 7.2 with HIP 6.4 and 7.2 were measured to do it:
// nodes in KFD order with masked ones left out, then ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES or
// CUDA_VISIBLE_DEVICES on what is left. GPU_DEVICE_ORDINAL has no effect on HIP.
func (s System) Agents(environ backends.Environ) Agents {
	var a Agents
	if v, ok := environ.Lookup("GPU_DEVICE_ORDINAL"); ok {
		a.Notes = append(a.Notes, fmt.Sprintf("GPU_DEVICE_ORDINAL=%s has no effect on HIP", v))
	}
	if _, ok := environ.Lookup(overrideKey + "_0"); ok {
		a.Notes = append(a.Notes, overrideKey+"_0 counts KFD nodes, and node 0 is a CPU: the first GPU of a one-socket machine is _1")
	}
	if len(s.Nodes) == 0 {
		a.Fatal = ErrNoKFD
		return a
	}
	if !s.KFD.OK() {
		a.Fatal = fmt.Errorf("%s: %w", s.KFD.Path, s.KFD.Err)
		return a
	}
	a.List, a.Fatal = s.userNodes(environ)
	if a.Fatal != nil {
		a.List = nil
		return a
	}
	visible, err := a.filterROCR(environ, s)
	if err != nil {
		a.List, a.Fatal = nil, err
		return a
	}
	a.filterHIP(environ, visible, s)
	return a
}

// userNodes compacts the nodes as libhsakmt does. A node is skipped when reading its gpu_id gives EPERM (a cgroup masks
// it) or its render node is missing (ENOENT) or refused by a cgroup (EPERM). Any other failure ends hsa_init for all GPUs:
// one render node with the wrong group takes every GPU away.
func (s System) userNodes(environ backends.Environ) ([]Agent, error) {
	var list []Agent
	user := 0
	for _, n := range s.Nodes {
		id, ok := n.GPUID.Get()
		if !ok {
			err := gpuIDError(n)
			if backends.ErrnoOf(err) == syscall.EPERM {
				continue
			}
			return nil, fmt.Errorf("KFD node %d: %w", n.Number, err)
		}
		if id != 0 && !n.Render.OK() {
			switch errno := backends.ErrnoOf(n.Render.Err); {
			case errno == syscall.ENOENT || errno == syscall.EPERM:
				continue
			case n.Render.Path == "":
				return nil, fmt.Errorf("KFD node %d has no drm_render_minor", n.Number)
			}
			return nil, fmt.Errorf("%s: %w", n.Render.Path, n.Render.Err)
		}
		if n.IsGPU() {
			agent, err := agentOf(n, user, environ)
			if err != nil {
				return nil, err
			}
			list = append(list, agent)
		}
		user++
	}
	for i := range list {
		if list[i].Hidden == "" {
			list[i].Index = backends.Some(i)
		}
	}
	return list, nil
}

func gpuIDError(n Node) error {
	for _, p := range n.Problems {
		if strings.HasSuffix(p.Path, "/gpu_id") {
			return p.Err
		}
	}
	return errors.New("gpu_id is unknown")
}

const overrideKey = "HSA_OVERRIDE_GFX_VERSION"

func agentOf(n Node, user int, environ backends.Environ) (Agent, error) {
	a := Agent{Node: n.Number, UserNode: user, GFX: n.GFX()}
	key := overrideKey + "_" + strconv.Itoa(user)
	value, ok := environ.Lookup(key)
	if !ok {
		key = overrideKey
		value, ok = environ.Lookup(key)
	}
	if !ok {
		return a, nil
	}
	gfx, err := parseOverride(value)
	if err != nil {
		return a, fmt.Errorf("%s=%s: %w", key, value, err)
	}
	a.Override, a.GFX = value, gfx
	if !knownISA(gfx) {
		a.Hidden = fmt.Sprintf("%s=%s names a target that ROCr does not know", key, value)
	}
	return a, nil
}

// parseOverride reads "11.0.0". ROCr takes three decimal numbers as scanf does, with blanks and a sign before each, and
// nothing after them.
func parseOverride(value string) (string, error) {
	parts := strings.Split(value, ".")
	if len(parts) != 3 {
		return "", ErrOverride
	}
	var n [3]uint64
	for i, most := range []uint64{63, 255, 255} {
		digits := strings.TrimLeft(parts[i], " \t\n\v\f\r")
		negative := strings.HasPrefix(digits, "-")
		if negative || strings.HasPrefix(digits, "+") {
			digits = digits[1:]
		}
		v, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || v > most || negative && v > 0 { // a negative number wraps around and is too large
			return "", ErrOverride
		}
		n[i] = v
	}
	return fmt.Sprintf("gfx%d%x%x", n[0], n[1], n[2]), nil
}

// knownISA says whether ROCr 7.2 has the target in its table of instruction sets.
func knownISA(gfx string) bool {
	switch gfx {
	case "gfx801", "gfx802", "gfx803", "gfx805", "gfx810", "gfx940", "gfx941", "gfx942", "gfx950",
		"gfx908", "gfx90a", "gfx1250":
		return true
	}
	return backends.GFXGeneric(gfx) != ""
}

// filterROCR applies ROCR_VISIBLE_DEVICES and returns the positions in List that stay visible, in the order it asks for.
func (a *Agents) filterROCR(environ backends.Environ, s System) ([]int, error) {
	var visible []int
	value, ok := environ.Lookup("ROCR_VISIBLE_DEVICES")
	if value != "" { // empty hides all
		tokens := strings.Split(strings.TrimSuffix(value, ","), ",") // a comma at the end starts no item
		for _, token := range tokens[:min(len(tokens), len(a.List))] {
			token = strings.ToUpper(strings.TrimSpace(token))
			if token == "" {
				return nil, fmt.Errorf("ROCR_VISIBLE_DEVICES=%s: %w", value, ErrEmptyItem)
			}
			i := rocrToken(token, a.List, s)
			if i < 0 || slices.Contains(visible, i) {
				break // the first bad or repeated item ends the list
			}
			visible = append(visible, i)
		}
	}
	for i := range a.List {
		switch {
		case !ok:
			visible = append(visible, i)
		case !slices.Contains(visible, i) && a.List[i].Hidden == "":
			a.List[i].Hidden = "ROCR_VISIBLE_DEVICES=" + value
		}
	}
	// A GPU with an unknown target takes an index and is then dropped without a word.
	return slices.DeleteFunc(visible, func(i int) bool { return a.List[i].Hidden != "" }), nil
}

// rocrToken returns the position in list that an upper-case item of ROCR_VISIBLE_DEVICES means, -1 for none: a number in
// C's notation, or a prefix of exactly one UUID. GPUs without a serial have no UUID to match.
func rocrToken(token string, list []Agent, s System) int {
	if !strings.HasPrefix(token, "G") {
		// Go's notation differs from C's in underscores and 0o.
		n, err := strconv.ParseInt(strings.ToLower(token), 0, 64)
		index := int32(n) // ROCr keeps the low half
		if err != nil || strings.ContainsAny(token, "_O") || index < 0 || int(index) >= len(list) {
			return -1
		}
		return int(index)
	}
	const shortest, longest = len("GPU-0"), len("GPU-0123456789abcdef")
	if len(token) < shortest || len(token) > longest {
		return -1
	}
	found := -1
	for i := range list {
		if uuid := s.uuidOfNode(list[i].Node); uuid != "" && strings.HasPrefix(strings.ToUpper(uuid), token) {
			if found >= 0 {
				return -1
			}
			found = i
		}
	}
	return found
}

func (s System) uuidOfNode(number int) string {
	for _, n := range s.Nodes {
		if n.Number == number {
			return n.UUID()
		}
	}
	return ""
}

// filterHIP applies HIP's own variable to what ROCr left, and numbers the result. Indices count the filtered list, which
// is why ROCR_VISIBLE_DEVICES=1 with HIP_VISIBLE_DEVICES=1 leaves nothing.
func (a *Agents) filterHIP(environ backends.Environ, visible []int, s System) {
	key := "HIP_VISIBLE_DEVICES"
	value, ok := environ.Lookup(key)
	if !ok {
		key = "CUDA_VISIBLE_DEVICES"
		value, ok = environ.Lookup(key)
	}
	if !ok {
		for ordinal, i := range visible {
			a.List[i].HIP = backends.Some(ordinal)
		}
		return
	}
	if _, both := environ.Lookup("ROCR_VISIBLE_DEVICES"); both {
		a.Notes = append(a.Notes, "ROCR_VISIBLE_DEVICES and "+key+" are both set: the second counts what the first leaves")
	}
	ordinal := 0
	for _, token := range strings.Split(value, ",") {
		i := hipToken(token, a.List, visible, s)
		if i < 0 {
			break
		}
		if agent := &a.List[visible[i]]; !agent.HIP.Known() { // repeated items count once
			agent.HIP = backends.Some(ordinal)
			ordinal++
		}
	}
	for _, i := range visible {
		if !a.List[i].HIP.Known() {
			a.List[i].Hidden = key + "=" + value
		}
	}
}

// hipToken is rocrToken for HIP, which takes plain decimal numbers and UUIDs from "GPU-" on, in lower case.
func hipToken(token string, list []Agent, visible []int, s System) int {
	if strings.HasPrefix(token, "GPU-") {
		return slices.IndexFunc(visible, func(i int) bool { return strings.HasPrefix(s.uuidOfNode(list[i].Node), token) })
	}
	n, err := strconv.Atoi(token)
	if err != nil || strconv.Itoa(n) != token || n < 0 || n >= len(visible) {
		return -1
	}
	return n
}
