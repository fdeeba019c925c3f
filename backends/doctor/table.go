package doctor

// table returns all checks in the order in which they are made: a check stands after those it needs. It is data; the
// functions it names judge facts and read nothing but device nodes' permissions, which are facts as well.
func table() []row {
	var all []row
	for _, part := range [][]row{kernelRows(), kernelLogRows(), containerRows(), rocrRows(), hipRows(), gfxRows(), libRows(), pluginRows(), vulkanRows()} {
		all = append(all, part...)
	}
	return all
}

// Fixes that several checks give.
const (
	fixGroups = "sudo usermod -aG render,video $USER, then log in again (a service: SupplementaryGroups=render video)"
	fixVulkan = "use the Vulkan backend, which does not need this"
)
