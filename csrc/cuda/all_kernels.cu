// All kernels in one file: in two, the headers would be read twice for each architecture, which took longer than
// compiling two files at the same time saved (2 cores, CUDA 13.2, 2026-11-22).
#include "cuda/reduce_rows.cuh"

namespace fastreduce {

Kernel cuda_kernel(DType dtype, Op op) { return dispatch<Kernel>(dtype, op, CudaKernel{}); }

}  // namespace fastreduce
