// Package doctor finds out which layer between an AMD GPU and a model is broken, and says what to do about it. It owns
// a table of checks over the six layers (kernel, ROCr, HIP, code objects, libraries, llama.cpp plugins), containers and
// WSL, and Vulkan; the Report they give; and the archive that turns a user's machine into a test fixture.
//
// Run gathers facts first, through one sysroot.FS and the values in Env, and then judges them: checks are pure functions
// of the facts, so a captured tree gives the same report as the machine it came from. Nothing is read outside the root.
// cmd/hearth prints reports (`hearth doctor`), and Handler serves them on loopback.
//
// A check whose ground is gone is skipped with a pointer to the check that failed, so that the first failure in the
// report is the one to repair. Run may be called from several goroutines; a Report is a value.
package doctor
