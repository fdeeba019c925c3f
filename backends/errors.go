package backends

import (
	"fmt"
	"strings"
)

// AmbiguousError says that a selector fits several devices. Candidates are in list order.
type AmbiguousError struct {
	Selector   string
	Candidates []Device
}

// Error lists the candidates with a selector that names each alone.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("device %q is ambiguous, it fits %s", e.Selector, describe(e.Candidates))
}

// NotFoundError says that a selector fits no device. Known are the devices there are.
type NotFoundError struct {
	Selector string
	Known    []Device
}

// Error lists what there is.
func (e *NotFoundError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("device %q not found, this machine shows no GPU", e.Selector)
	}
	return fmt.Sprintf("device %q not found, there is %s", e.Selector, describe(e.Known))
}

// UnusableError says that a device exists and cannot run a model, through Backend or, when that is empty, at all.
type UnusableError struct {
	Device  Device
	Backend string
	Blocks  []Block
}

// Error gives the reasons in order.
func (e *UnusableError) Error() string {
	how := ""
	if e.Backend != "" {
		how = " through " + e.Backend
	}
	reasons := make([]string, len(e.Blocks))
	for i, b := range e.Blocks {
		reasons[i] = b.Text
	}
	if len(reasons) == 0 {
		reasons = []string{"no backend sees it"}
	}
	return fmt.Sprintf("device %d (%s) cannot run a model%s: %s", e.Device.Index, e.Device.Name, how, strings.Join(reasons, "; "))
}

// NoDeviceError says that no device can run a model. Rejected are the ones that were looked at.
type NoDeviceError struct{ Rejected []*UnusableError }

// Error gives one reason for each device.
func (e *NoDeviceError) Error() string {
	if len(e.Rejected) == 0 {
		return "no GPU found"
	}
	parts := make([]string, len(e.Rejected))
	for i, r := range e.Rejected {
		parts[i] = r.Error()
	}
	return "no usable GPU: " + strings.Join(parts, "; ")
}

func describe(devices []Device) string {
	parts := make([]string, len(devices))
	for i, d := range devices {
		parts[i] = fmt.Sprintf("%d: %s (%s)", d.Index, d.Name, d.PCI)
	}
	return strings.Join(parts, ", ")
}
