// Package kfd reads what the amdgpu kernel driver says about AMD GPUs: the KFD topology, the PCI and DRM nodes in
// sysfs, and who may open them; and it works out which ordinals ROCr and HIP will give them in a given environment. It
// is pure Go, loads nothing, talks to no driver, and works on a captured machine as it does on a live one.
//
// cmd, backends/doctor and backends/probe call Read once and then ask the System. Reading and parsing are apart: the
// parse functions take bytes. A System is a value; it may be read from several goroutines.
package kfd
