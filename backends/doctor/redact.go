package doctor

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// redactor takes out of a report what says who and where: host and user names, home folders, serial numbers, hardware
// addresses, file system ids, container ids. Serials are replaced by made-up ones, the same for the same serial, so
// that "two GPUs with different serials" stays visible. What is not known to be needed is dropped, not searched.
type redactor struct {
	names   []*regexp.Regexp
	with    []string
	serials map[uint64]uint64
}

// firstSerial is the first made-up serial: not zero, and recognisable in a report.
const firstSerial = 0xfeed000000000001

// newRedactor hides the given names of hosts and users. Short names are hidden too, as whole words.
func newRedactor(hosts, users []string) *redactor {
	r := &redactor{serials: map[uint64]uint64{}}
	add := func(list []string, with string) {
		for _, n := range list {
			if n = strings.TrimSpace(n); n == "" || n == "root" || n == "localhost" {
				continue
			}
			r.names = append(r.names, regexp.MustCompile(`(?i)(^|[^A-Za-z0-9])`+regexp.QuoteMeta(n)+`($|[^A-Za-z0-9])`))
			r.with = append(r.with, "${1}"+with+"${2}")
		}
	}
	add(hosts, "host")
	add(users, "user")
	return r
}

// serial gives a made-up number for a real one; 0 stays 0, which means that there is none.
func (r *redactor) serial(v uint64) uint64 {
	if v == 0 || v >= firstSerial && v < firstSerial+1<<16 {
		return v
	}
	if _, ok := r.serials[v]; !ok {
		r.serials[v] = firstSerial + uint64(len(r.serials))
	}
	return r.serials[v]
}

// text redacts free text: log lines, variables, error messages.
func (r *redactor) text(s string) string {
	s = regexp.MustCompile(`(/home|/Users|/var/home)/[^/\s:"']+`).ReplaceAllString(s, "$1/user")
	for i, re := range r.names {
		for range 2 { // neighbours share a separator
			s = re.ReplaceAllString(s, r.with[i])
		}
	}
	s = regexp.MustCompile(`(?i)GPU-([0-9a-f]{16})`).ReplaceAllStringFunc(s, func(m string) string {
		v, err := strconv.ParseUint(m[4:], 16, 64)
		if err != nil {
			return m
		}
		return fmt.Sprintf("GPU-%016x", r.serial(v))
	})
	s = regexp.MustCompile(`(?i)\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`).ReplaceAllString(s, "00:00:00:00:00:00")
	s = regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`).ReplaceAllString(s, "00000000-0000-0000-0000-000000000000")
	s = regexp.MustCompile(`(?i)(serial(?:[ _-]?number)?\s*[:=]\s*)\S+`).ReplaceAllString(s, "${1}0")
	return s
}

// file redacts one file of the tree by what it is; false drops it.
func (r *redactor) file(name string, data []byte) ([]byte, bool) {
	text := string(data)
	switch base := path.Base(name); {
	case base == "unique_id":
		v, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if err != nil {
			return data, true // N/A and the like
		}
		return fmt.Appendf(nil, "%016x\n", r.serial(v)), true
	case base == "serial_number" || base == "product_number" || base == "fru_id":
		return []byte("0\n"), true
	case base == "properties" && strings.Contains(name, "/topology/"):
		return []byte(r.properties(text)), true
	case name == "proc/cmdline":
		return []byte(kernelParameters(text)), true
	case name == "proc/self/status":
		return []byte(keepLines(text, "Uid:", "Gid:", "Groups:", "Seccomp:")), true
	case name == "etc/group":
		return []byte(groupFile(text)), true
	case name == "proc/1/cgroup":
		return []byte(cgroupFile(text)), true
	case name == "run/.containerenv" || name == ".dockerenv":
		return nil, true
	case strings.HasPrefix(name, "sys/"), name == "proc/meminfo", name == "proc/devices", name == "proc/self/uid_map",
		name == "proc/sys/kernel/osrelease", name == "run/systemd/container":
		return data, true
	case strings.HasPrefix(name, ".hearth/"):
		return nil, false // written by the report itself
	}
	return []byte(r.text(text)), true
}

// properties replaces the serials among KFD's keys.
func (r *redactor) properties(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 2 && (f[0] == "unique_id" || f[0] == "hive_id") {
			if v, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				line = fmt.Sprintf("%s %d\n", f[0], r.serial(v))
			}
		}
		b.WriteString(line)
	}
	return b.String()
}

// kernelParameters keeps the parameters that bear on GPUs.
func kernelParameters(text string) string {
	var keep []string
	for _, p := range strings.Fields(text) {
		key, value, _ := strings.Cut(p, "=")
		module, _, _ := strings.Cut(key, ".")
		switch {
		case slices.Contains([]string{"amdgpu", "ttm", "radeon", "iommu", "amd_iommu", "intel_iommu", "pci", "pcie_aspm", "pcie_acs_override", "pcie_ports",
			"nomodeset", "mem_encrypt", "vfio-pci", "vfio_pci", "drm"}, module):
			keep = append(keep, p)
		case (key == "modprobe.blacklist" || key == "module_blacklist") && strings.Contains(value, "amdgpu"):
			keep = append(keep, key+"=amdgpu")
		}
	}
	if len(keep) == 0 {
		keep = []string{"quiet"} // the file was readable and held nothing of note
	}
	return strings.Join(keep, " ") + "\n"
}

func keepLines(text string, prefixes ...string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// groupFile keeps the names that device nodes are given to, without members.
func groupFile(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if p := strings.Split(line, ":"); len(p) >= 3 && slices.Contains([]string{"root", "video", "render", "kfd", "users"}, p[0]) {
			fmt.Fprintf(&b, "%s:x:%s:\n", p[0], p[2])
		}
	}
	return b.String()
}

// cgroupFile keeps the word that tells the kind of container.
func cgroupFile(text string) string {
	for _, word := range []string{"kubepods", "docker", "libpod", "lxc"} {
		if strings.Contains(text, word) {
			return "0::/" + word + "\n"
		}
	}
	return "0::/\n"
}

// logLines keeps the kernel messages about GPUs, the last most of them.
func (r *redactor) logLines(text string, most int) string {
	about := regexp.MustCompile(`(?i)amdgpu|kfd|\[drm|radeon|\bttm\b|gfxhub|mmhub|iommu|firmware load for|atomics|renderD|vfio`)
	var keep []string
	for line := range strings.Lines(text) {
		if about.MatchString(line) {
			keep = append(keep, strings.TrimRight(r.text(line), "\r\n"))
		}
	}
	if len(keep) > most {
		keep = keep[len(keep)-most:]
	}
	return strings.Join(keep, "\n") + "\n"
}
