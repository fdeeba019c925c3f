package doctor

import (
	"bufio"
	"fmt"
	"io"

	"hearth/backends/probe"
)

// WriteText prints the report for people: the verdict, what works, then layer by layer what is wrong, the first broken
// layer first. all prints the checks that passed or were skipped as well.
func (r *Report) WriteText(w io.Writer, all bool) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s\n\n", r.Verdict)
	for _, x := range r.Works {
		fmt.Fprintf(b, "  %-3s  %-6s  %s\n", yesNo(x.Works), x.Backend, describeWorking(x))
	}
	layers := probe.Layers()
	for _, l := range layers { // what is broken goes before what is merely odd
		if layerStatus(r.Checks, l) == Fail {
			r.writeLayer(b, l, all)
		}
	}
	for _, l := range layers {
		if layerStatus(r.Checks, l) != Fail {
			r.writeLayer(b, l, all)
		}
	}
	if !all {
		fmt.Fprintf(b, "\n%s\n", r.tally())
	}
	return b.Flush() // the first write error sticks and comes back here
}

func yesNo(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

func describeWorking(x Working) string {
	s := x.Device
	if x.PCI != "" {
		s += " at " + string(x.PCI)
	}
	if x.Why != "" {
		if s != "" {
			s += ": "
		}
		s += x.Why
	}
	return s
}

// writeLayer prints a layer's checks that matter; nothing when there are none.
func (r *Report) writeLayer(b *bufio.Writer, layer probe.Layer, all bool) {
	header := false
	for _, c := range r.Checks {
		if c.Layer != layer || !all && c.Status != Fail && c.Status != Warn {
			continue
		}
		if !header {
			fmt.Fprintf(b, "\n%s\n", layerTitle(layer))
			header = true
		}
		fmt.Fprintf(b, "  %-7s  %s [%s]\n", c.Status, c.Title, c.ID)
		line := func(name, text string) {
			if text != "" {
				fmt.Fprintf(b, "           %-6s %s\n", name, text)
			}
		}
		line("seen", c.Evidence)
		line("cause", c.Cause)
		line("fix", c.Fix)
		line("source", c.Source)
	}
}

// layerTitle is the heading of a layer.
func layerTitle(l probe.Layer) string {
	switch l {
	case probe.LayerKernel:
		return "layer 1: kernel (amdgpu, KFD, firmware, permissions)"
	case probe.LayerContainer:
		return "container, WSL"
	case probe.LayerROCr:
		return "layer 2: ROCr"
	case probe.LayerHIP:
		return "layer 3: HIP"
	case probe.LayerGFX:
		return "layer 4: code objects and their compiler"
	case probe.LayerLibs:
		return "layer 5: libraries (rocBLAS, hipBLASLt)"
	case probe.LayerPlugin:
		return "layer 6: llama.cpp plugins"
	case probe.LayerVulkan:
		return "Vulkan"
	}
	return string(l)
}

func (r *Report) tally() string {
	n := map[Status]int{}
	for _, c := range r.Checks {
		n[c.Status]++
	}
	return fmt.Sprintf("%d checks: %d ok, %d warn, %d fail, %d skipped, %d unknown (--all shows each)",
		len(r.Checks), n[OK], n[Warn], n[Fail], n[Skip], n[Unknown])
}
