// Package backends says which accelerators a machine has and which of them may run a model: one Device row per
// physical GPU, keyed by its PCI address, with a HIP face and a Vulkan face; the rules that pick one (Select), the
// environment a worker needs to see exactly that one (WorkerEnv), and how much memory it may plan with (BudgetFor).
//
// Everything here is a plain value: nothing reads a file, the environment or a clock. backends/kfd fills rows from
// the kernel, backends/vulkan adds Vulkan faces, backends/codeobject answers whether a HIP library has code for a row,
// and cmd, engine/supervisor and server read the result. Values are safe to copy and safe for concurrent reads.
//
// Two habits hold in all packages below this one. Unknown is not zero: a number that could not be read is an empty
// Optional. And a failed read is not a failed discovery: it is a Problem beside the rows, for the doctor to show.
package backends
