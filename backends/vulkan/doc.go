// Package vulkan says which Vulkan drivers a machine has and which GPUs they show. It owns three questions:
//
//   - Discover: which driver manifests (ICDs) and implicit layers the Vulkan loader would use, by its own search rules,
//     read below a root without loading anything;
//   - Enumerate: which devices they show, by a probe child (the drivers are loaded there, where they may crash);
//   - Decide: whether a worker uses the host's Mesa or the one in the engine bundle (vulkan_driver: auto|host|bundle).
//
// cmd, engine/supervisor's resolver and backends/doctor call it. There is no shared state.
package vulkan
