package backends

import (
	"fmt"
	"strconv"
	"strings"
)

// PCI is a PCI address in the one spelling that KFD, sysfs, HIP and Vulkan can all be brought to: lower case
// "domain:bus:device.function", such as "0000:03:00.0". It is the key of a Device row. Empty: unknown.
type PCI string

// PCIOf builds an address from KFD's `domain` and `location_id` (bus<<8 | device<<3 | function).
func PCIOf(domain, location uint32) PCI {
	return PCI(fmt.Sprintf("%04x:%02x:%02x.%x", domain, location>>8&0xff, location>>3&0x1f, location&7))
}

// ParsePCI reads "0000:03:00.0", "03:00.0" (domain 0) or "0000:03:00" (function 0), in either case. Domains may be
// wider than four digits, as they are behind a volume management device.
func ParsePCI(s string) (PCI, error) {
	bad := fmt.Errorf("%q is not a PCI address such as 0000:03:00.0", s)
	fields := strings.Split(strings.ToLower(strings.TrimSpace(s)), ":")
	function := "0"
	last := len(fields) - 1
	if dev, fn, ok := strings.Cut(fields[last], "."); ok {
		fields[last], function = dev, fn
	} else if len(fields) == 2 {
		return "", bad // "03:00" could be many things
	}
	if len(fields) == 2 {
		fields = append([]string{"0"}, fields...)
	}
	if len(fields) != 3 {
		return "", bad
	}
	var n [4]uint64
	for i, f := range []struct {
		text string
		bits int
		max  uint64
	}{{fields[0], 32, 1<<32 - 1}, {fields[1], 16, 0xff}, {fields[2], 16, 0x1f}, {function, 16, 7}} {
		v, err := strconv.ParseUint(f.text, 16, f.bits)
		if err != nil || v > f.max {
			return "", bad
		}
		n[i] = v
	}
	return PCI(fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])), nil
}

// Less orders addresses by their numbers.
func (p PCI) Less(q PCI) bool {
	if len(p) != len(q) { // a longer domain is a larger one
		return len(p) < len(q)
	}
	return p < q
}
