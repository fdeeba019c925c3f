package doctor

import (
	"hearth/backends"
	"hearth/backends/probe"
)

// Status is the outcome of a check.
type Status string

// Statuses. Unknown means that the answer could not be read, which is not the same as good or bad.
const (
	OK      Status = "ok"
	Warn    Status = "warn"
	Fail    Status = "fail"
	Skip    Status = "skip"
	Unknown Status = "unknown"
)

// Check is one row of a report. Cause, Fix and Source are filled when the status is warn or fail.
type Check struct {
	ID       string      `json:"id"`
	Layer    probe.Layer `json:"layer"`
	Title    string      `json:"title"`
	Status   Status      `json:"status"`
	Evidence string      `json:"evidence,omitempty"` // what was seen, or why the check was skipped
	Cause    string      `json:"cause,omitempty"`
	Fix      string      `json:"fix,omitempty"`
	Source   string      `json:"source,omitempty"` // issue numbers, or "measured" with versions
}

// Report is the result of all checks.
type Report struct {
	Schema  int    `json:"schema"` // 1
	Verdict string `json:"verdict"`
	// Broken is the first layer with a failed check; empty when none failed.
	Broken probe.Layer `json:"broken_layer,omitempty"`
	// Works says for each backend what can be used at this moment.
	Works   []Working         `json:"works"`
	Devices []backends.Device `json:"devices"`
	Checks  []Check           `json:"checks"`
}

// Working is one backend on one device, or the CPU.
type Working struct {
	Backend string       `json:"backend"` // backends.HIP, Vulkan or CPU
	Device  string       `json:"device,omitempty"`
	PCI     backends.PCI `json:"pci,omitempty"`
	Works   bool         `json:"works"`
	Why     string       `json:"why,omitempty"` // why not; or what is known only in part
}

// Exit codes of `hearth doctor`, apart from those of a command that failed itself.
const (
	ExitOK   = 0  // nothing is wrong
	ExitWarn = 10 // the worst status is warn
	ExitFail = 20 // the worst status is fail
)

// Worst is the worst status in the report; skip and unknown count as ok.
func (r *Report) Worst() Status {
	worst := OK
	for _, c := range r.Checks {
		switch c.Status {
		case Fail:
			return Fail
		case Warn:
			worst = Warn
		}
	}
	return worst
}

// ExitCode is the exit status for the report.
func (r *Report) ExitCode() int {
	switch r.Worst() {
	case Fail:
		return ExitFail
	case Warn:
		return ExitWarn
	}
	return ExitOK
}

// Find returns the check with an id, nil when there is none.
func (r *Report) Find(id string) *Check {
	for i := range r.Checks {
		if r.Checks[i].ID == id {
			return &r.Checks[i]
		}
	}
	return nil
}

// outcome is what a check function says.
type outcome struct {
	status             Status
	evidence           string
	cause, fix, source string // replace the row's, when a check knows better
}

func good(evidence string) outcome    { return outcome{status: OK, evidence: evidence} }
func bad(evidence string) outcome     { return outcome{status: Fail, evidence: evidence} }
func warning(evidence string) outcome { return outcome{status: Warn, evidence: evidence} }
func skipped(why string) outcome      { return outcome{status: Skip, evidence: why} }
func unknown(why string) outcome      { return outcome{status: Unknown, evidence: why} }

// because replaces the row's cause and fix.
func (o outcome) because(cause, fix string) outcome {
	o.cause, o.fix = cause, fix
	return o
}

// from replaces the row's source.
func (o outcome) from(source string) outcome {
	o.source = source
	return o
}
