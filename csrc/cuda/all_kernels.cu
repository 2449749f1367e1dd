#include "cuda/reduce_rows.cuh"

namespace fastreduce {

Kernel cuda_kernel(DType dtype, Op op) { return dispatch<Kernel>(dtype, op, CudaKernel{}); }

}  // namespace fastreduce
