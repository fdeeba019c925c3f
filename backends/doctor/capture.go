package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"hearth/backends/probe"
	"hearth/backends/sysroot"
	"hearth/backends/vulkan"
)

// CaptureOptions name what must not appear in an archive.
type CaptureOptions struct {
	Hosts, Users []string
	Comment      string // first line of the archive; one line
}

// maxLogLines bounds the kernel log in an archive.
const maxLogLines = 400

// Capture runs the checks and returns, beside the report, an archive of everything they looked at, redacted: the text
// that `hearth doctor --report` writes. Unpacked, it is a tree that `--root` takes and that gives the same report.
func Capture(ctx context.Context, env Env, opt CaptureOptions) (Report, sysroot.Archive, error) {
	rec := newRecorder(env.FS)
	red := newRedactor(opt.Hosts, opt.Users)
	var mu sync.Mutex
	var probes []TreeProbe
	if run := env.Probe; run != nil {
		env.Probe = func(ctx context.Context, backend string, extra []string) (probe.Result, error) {
			r, err := run(ctx, backend, extra)
			mu.Lock()
			defer mu.Unlock()
			probes = append(probes, treeProbe(red, backend, extra, r, err))
			return r, err
		}
	}
	env.FS = rec
	f := gather(ctx, env)
	report := judge(f)
	a := rec.archive(strings.TrimSpace(opt.Comment)+"\n", func(name string, data []byte) ([]byte, bool) {
		if v, ok := mesaOf(f.Inventory, name); ok { // what the checks took from the driver's megabytes
			return []byte("excerpt of the driver library: Mesa " + v.String() + "\n"), true
		}
		return red.file(name, data)
	})
	add := func(name string, data []byte) { a.Files = append(a.Files, sysroot.ArchiveFile{Name: name, Data: data}) }
	if list := RelevantEnviron(env.Environ); len(list) > 0 {
		add(TreeEnviron, []byte(red.text(strings.Join(list, "\n")+"\n")))
	}
	if f.logErr == nil {
		add(TreeKernelLog, []byte(red.logLines(f.log, maxLogLines)))
	}
	for _, part := range []struct {
		name  string
		value any
		have  bool
	}{{TreeBundle, redactedBundle(red, env.Bundle), env.Bundle != nil}, {TreeProbes, probes, len(probes) > 0}} {
		if !part.have {
			continue
		}
		b, err := json.MarshalIndent(part.value, "", " ")
		if err != nil {
			return report, a, fmt.Errorf("%s: %w", part.name, err)
		}
		add(part.name, append(b, '\n'))
	}
	return report, a, nil
}

// mesaOf says which Mesa a library is, when the inventory found out.
func mesaOf(inv vulkan.Inventory, library string) (vulkan.Version, bool) {
	for _, i := range inv.ICDs {
		if v, ok := i.Mesa.Get(); ok && i.Library == library {
			return v, true
		}
	}
	return vulkan.Version{}, false
}

func redactedBundle(red *redactor, b *Bundle) *Bundle {
	if b == nil {
		return nil
	}
	c := *b
	c.Name = red.text(c.Name)
	c.Missing = nil
	for _, m := range b.Missing {
		c.Missing = append(c.Missing, red.text(m))
	}
	c.Mesa.Manifest = red.text(c.Mesa.Manifest)
	return &c
}

// maxTreeStderr is how much of a probe's stderr an archive holds, in bytes.
const maxTreeStderr = 8 << 10

func treeProbe(red *redactor, backend string, extra []string, r probe.Result, err error) TreeProbe {
	p := TreeProbe{Backend: backend, Result: r}
	for _, kv := range extra {
		p.Env = append(p.Env, red.text(kv))
	}
	if err != nil {
		p.Error = red.text(err.Error())
	}
	stderr := r.Stderr
	if len(stderr) > maxTreeStderr {
		stderr = stderr[len(stderr)-maxTreeStderr:]
	}
	p.Stderr = red.text(stderr)
	p.Result.Errors = nil
	for _, e := range r.Errors {
		p.Result.Errors = append(p.Result.Errors, red.text(e))
	}
	for i, f := range r.Findings {
		if i == 0 {
			p.Result.Findings = nil
		}
		f.Evidence = red.text(f.Evidence)
		p.Result.Findings = append(p.Result.Findings, f)
	}
	return p
}
