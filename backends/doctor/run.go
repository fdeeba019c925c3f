package doctor

import (
	"context"
	"fmt"
	"strings"

	"hearth/backends"
	"hearth/backends/probe"
)

// row is one line of the table.
type row struct {
	id    string
	layer probe.Layer
	title string
	// needs are checks that must not have failed (or been skipped) for this one to mean anything.
	needs []string
	// symptoms, without run: ids of the symptom table that this check looks for. where says in which text.
	symptoms []string
	where    where
	run      func(f *facts) outcome
	// cause, fix and source are the row's own; a symptom or a check that knows better replaces them.
	cause, fix, source string
}

// where is the text that a row's symptoms are looked for in.
type where int

const (
	inKernelLog where = iota // the kernel log
	inHIPProbe               // stderr of the HIP plugin's child
	inVkProbe                // stderr of the Vulkan plugin's child
)

// Run looks at the machine and judges it. It always returns a report; ctx bounds the reads and the probes.
func Run(ctx context.Context, env Env) Report {
	return judge(gather(ctx, env))
}

// judge runs the table over the facts.
func judge(f *facts) Report {
	r := Report{Schema: 1, Checks: []Check{}, Devices: f.Devices}
	if r.Devices == nil {
		r.Devices = []backends.Device{}
	}
	done := map[string]Status{}
	for _, row := range table() {
		c := row.check(f, done)
		done[c.ID] = c.Status
		r.Checks = append(r.Checks, c)
	}
	for _, layer := range probe.Layers() {
		if r.Broken == "" && layerStatus(r.Checks, layer) == Fail {
			r.Broken = layer
		}
	}
	r.Works = f.works()
	r.Verdict = verdict(&r, f)
	return r
}

func (w *row) check(f *facts, done map[string]Status) Check {
	c := Check{ID: w.id, Layer: w.layer, Title: w.title}
	var o outcome
	if need := w.unmet(done); need != "" {
		o = skipped("see " + need)
	} else if w.run != nil {
		o = w.run(f)
	} else {
		o = w.look(f)
	}
	c.Status, c.Evidence = o.status, o.evidence
	if c.Status == Fail || c.Status == Warn {
		c.Cause, c.Fix, c.Source = first(o.cause, w.cause), first(o.fix, w.fix), first(o.source, w.source)
	}
	return c
}

// unmet returns the first needed check that failed or was itself skipped.
func (w *row) unmet(done map[string]Status) string {
	for _, n := range w.needs {
		if s := done[n]; s == Fail || s == Skip {
			return n
		}
	}
	return ""
}

// look searches the row's text for its symptoms.
func (w *row) look(f *facts) outcome {
	var list []probe.Finding
	switch w.where {
	case inKernelLog:
		if f.logErr != nil {
			return unknown(f.logErr.Error())
		}
		list = f.logged
	case inHIPProbe, inVkProbe:
		backend := backends.HIP
		if w.where == inVkProbe {
			backend = backends.Vulkan
		}
		if err := f.ProbeErrs[backend]; err != nil {
			return unknown("the plugin was not started: " + err.Error())
		}
		r, ok := f.Probes[backend]
		if !ok {
			return skipped(f.noProbe(backend))
		}
		list = r.Findings
	}
	hit, ok := symptom(list, w.symptoms...)
	if !ok {
		return good("")
	}
	evidence := hit.Evidence
	if hit.Count > 1 {
		evidence = fmt.Sprintf("%s (and %d more such lines)", evidence, hit.Count-1)
	}
	o := outcome{status: Fail, evidence: evidence, cause: hit.Cause, fix: hit.Fix, source: hit.Source}
	if hit.Harmless {
		o.status = Warn
	}
	if w.where == inKernelLog && !fatalInLog(hit.ID) {
		o.status = Warn // it happened once since the boot; the GPU may be well again
	}
	return o
}

// fatalInLog says that a line of the kernel log speaks of now and not of a moment that has passed.
func fatalInLog(id string) bool {
	switch id {
	case "kernel-firmware", "kernel-atomics", "kernel-kfd-unsupported", "kernel-cwsr":
		return true
	}
	return false
}

func (f *facts) noProbe(backend string) string {
	switch {
	case !f.env.Bundle.Has(backend):
		return "the engine bundle has no " + backend + " plugin"
	case f.env.Probe == nil:
		return "plugins were not started"
	case backend == backends.HIP && f.Agents.Fatal != nil:
		return "ROCr cannot start"
	case backend == backends.Vulkan && f.Choice.Driver == "":
		return "there is no Vulkan driver"
	}
	return "there is no GPU"
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func layerStatus(checks []Check, layer probe.Layer) Status {
	worst := OK
	for _, c := range checks {
		if c.Layer != layer {
			continue
		}
		if c.Status == Fail {
			return Fail
		}
		if c.Status == Warn {
			worst = Warn
		}
	}
	return worst
}

// noBundle is said of a captured machine without its bundle.
const noBundle = "no engine bundle is known"

// works says what can run a model now.
func (f *facts) works() []Working {
	var out []Working
	for _, d := range f.Devices {
		out = append(out, f.hipWorks(d), f.vulkanWorks(d))
	}
	cpu := Working{Backend: backends.CPU, Works: true}
	switch {
	case f.env.NoBundle != "":
		cpu.Works, cpu.Why = false, "no engine bundle: run make engine"
	case f.env.Bundle == nil:
		cpu.Why = noBundle
	}
	return append(out, cpu)
}

func (f *facts) hipWorks(d backends.Device) Working {
	w := Working{Backend: backends.HIP, Device: d.Name, PCI: d.PCI}
	switch {
	case d.HIP == nil:
		w.Why = "KFD does not list this GPU"
	case !d.HIP.Usable():
		w.Why = blockTexts(d.HIP.Blocked)
	case f.env.Bundle == nil:
		w.Why = noBundle
	case !f.env.Bundle.Has(backends.HIP):
		w.Why = "the engine bundle has no hip plugin (HEARTH_HIP=ON)"
	default:
		w.Works = true
		if _, ok := f.Probes[backends.HIP]; !ok {
			w.Why = "not tried"
		}
	}
	return w
}

func (f *facts) vulkanWorks(d backends.Device) Working {
	w := Working{Backend: backends.Vulkan, Device: d.Name, PCI: d.PCI}
	_, probed := f.Probes[backends.Vulkan]
	switch {
	case f.env.Bundle == nil:
		w.Why = noBundle
	case !f.env.Bundle.Has(backends.Vulkan):
		w.Why = "the engine bundle has no vulkan plugin"
	case f.Choice.Driver == "":
		w.Why = first(f.Choice.Reason, "no Vulkan driver")
	case probed && d.Vulkan == nil:
		w.Why = "no Vulkan driver lists this GPU"
	case d.Vulkan != nil && !d.Vulkan.Usable():
		w.Why = blockTexts(d.Vulkan.Blocked)
	case d.RenderNode == "":
		w.Why = "the GPU has no render node"
	case f.env.FS.Access(strings.TrimPrefix(d.RenderNode, "/")) != nil:
		w.Why = d.RenderNode + " cannot be opened"
	default:
		w.Works = true
		if !probed {
			w.Why = "not tried"
		}
	}
	return w
}

// vulkanCovers says that Vulkan can stand in for HIP on a device, as far as is known without trying.
func (f *facts) vulkanCovers(d backends.Device) bool { return f.vulkanWorks(d).Works }

func blockTexts(blocks []backends.Block) string {
	texts := make([]string, len(blocks))
	for i, b := range blocks {
		texts[i] = b.Text
	}
	return strings.Join(texts, "; ")
}

// verdict is the report in one sentence.
func verdict(r *Report, f *facts) string {
	fails, warns := 0, 0
	var lead *Check
	for _, layer := range probe.Layers() {
		for i := range r.Checks {
			c := &r.Checks[i]
			if c.Layer == layer && c.Status == Fail && lead == nil {
				lead = c
			}
		}
	}
	for _, c := range r.Checks {
		switch c.Status {
		case Fail:
			fails++
		case Warn:
			warns++
		}
	}
	switch {
	case lead != nil:
		return fmt.Sprintf("%s; the first broken layer is %q: %s", count(fails, "problem"), lead.Layer, first(lead.Cause, lead.Title))
	case !f.HasGPU():
		return "layer 1 (kernel) is absent: there is no AMD GPU. Models run on the CPU"
	case warns > 0:
		return fmt.Sprintf("no layer is broken, %s", count(warns, "warning"))
	}
	return "every layer is in order"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
