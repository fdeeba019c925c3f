// Package fakegpu shows the real ROCm stack a GPU that does not exist, for tests. ROCr 7.2.4 and newer can run on a
// model of a GPU in place of a kernel driver (HSA_MODEL_TOPOLOGY, HSA_MODEL_LIB): this package writes the topology of a
// captured machine (backends/fixtures) and compiles the model, a C stub that retires queue packets without executing
// kernels. On top of it run the real HIP runtime, the real rocBLAS and llama.cpp's real HIP plugin: they enumerate,
// allocate, copy, load models and fail as on that GPU. What they compute is garbage.
//
// Limits of the stock ROCr: one GPU at a time (a second one fails an assertion), and RDNA3, RDNA4 and CDNA3 only (others
// need an ioctl that the model mode lacks). See Rig.
//
// Only tests call it, those that `make test-hip` runs with the HIP bundle and such a ROCr. The files of a Rig belong to
// one test; children started with its environment share nothing.
package fakegpu
