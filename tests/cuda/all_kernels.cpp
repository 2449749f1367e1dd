// Every kernel of both machines, for g++ and the virtual runtime. Without optimisation they compile in
// seconds; the CPU's other instruction sets have the same bits (tests/test_bits.py).
#include "reduce_cpu.h"
#include "reduce_rows.cuh"

namespace fastreduce {

Kernel cuda_kernel(DType dtype, Op op) { return select(dtype, op, CudaKernel{}); }

Reduce select_baseline(DType dtype, Op op, int num_srcs) { return select(dtype, op, CpuKernel{num_srcs}); }
Reduce select_avx2(DType dtype, Op op, int num_srcs) { return select_baseline(dtype, op, num_srcs); }
Reduce select_avx512(DType dtype, Op op, int num_srcs) { return select_baseline(dtype, op, num_srcs); }

}  // namespace fastreduce
