// Package survey takes one look at a machine and an engine bundle and puts together what the packages around it know:
// the GPUs of the kernel (kfd), which of them the bundle's HIP plugin has code for (codeobject), the Vulkan drivers and
// which one workers use (vulkan), and what the plugins say when they are started (probe). The result is a list of devices
// that backends.Select can choose from.
//
// cmd/hearth takes a survey before it places a model; backends/doctor judges one. Take may be called from several
// goroutines; a Survey is only read once it is made.
package survey
