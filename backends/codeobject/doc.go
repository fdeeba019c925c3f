// Package codeobject says which GPUs a HIP library has kernels for, without loading it: it reads the ELF file's
// .hip_fatbin section, plain or compressed, and lists the targets of its offload bundles. It also reads which gfx targets
// rocBLAS and hipBLASLt have kernel files for, from the file names. Support and Apply turn both into a verdict for a GPU.
//
// A missing code object shows at the first kernel only ("invalid device function"), and a missing rocBLAS file ends the
// process, so cmd, engine/supervisor and backends/doctor ask here before a worker starts. Files are read through
// io.ReaderAt and every offset is checked; nothing is mapped or executed, and of compressed bundles only the head is
// decompressed. Values are safe for concurrent reads.
package codeobject
