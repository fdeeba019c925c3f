// Package prefix owns two pure data structures behind the scheduler in engine/batch, its only caller: Cells, a mirror
// of llama.cpp's KV cells that knows after every operation exactly what the library knows and does not tell, and
// Tree, a radix tree over tokens that knows which sequence ids hold which prefixes.
//
// Neither has a goroutine, lock, clock or I/O; a value belongs to one goroutine.
package prefix
