package probe

import (
	"regexp"
	"strconv"
	"strings"
)

// addVulkanLines copies what only ggml-vulkan's own log says about a device: its driver, whether its memory is the
// system's, and which matrix instructions it has. The line reads
//
//	ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: 1 | ... | matrix cores: KHR_coopmat
//
// where the number is the position in the plugin's list. (ggml 0.27.0.) The worker may have wrapped it into a log line.
func addVulkanLines(devices []Device, stderr string) {
	if !strings.Contains(stderr, "ggml_vulkan: ") {
		return
	}
	re := regexp.MustCompile(`ggml_vulkan: (\d+) = ([^\n]*?) \(([^()\n]*)\) \| ([^"\n]*)`)
	for _, m := range re.FindAllStringSubmatch(stderr, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		for i := range devices {
			d := &devices[i]
			if d.Index != n || !strings.HasPrefix(d.Name, "Vulkan") {
				continue
			}
			d.Driver = m[3]
			for field := range strings.SplitSeq(m[4], "|") {
				k, v, _ := strings.Cut(strings.TrimSpace(field), ":")
				switch v = strings.TrimSpace(v); k {
				case "uma":
					d.UMA = v == "1"
				case "matrix cores":
					d.MatrixCores = v
				}
			}
		}
	}
}
