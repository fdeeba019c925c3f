// Package probe loads an engine plugin where it may die: in a child process with a deadline. A HIP plugin can hang in
// its runtime's start, abort inside rocBLAS or be killed by a GPU fault, so nobody else in hearth loads one to look at it.
//
// It owns three things: the child (process group, deadline, the last 64 KiB of its stderr), the line protocol that
// `hearth-engine devices` speaks, and the symptom table that turns the texts of the ROCm and Vulkan stack into a cause
// and a fix. The supervisor uses the table (Diagnose) on dying workers, backends/doctor uses all of it.
//
// Everything here is a function over values; calls share nothing and may run at the same time.
package probe
