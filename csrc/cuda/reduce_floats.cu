#include "cuda/reduce_rows.cuh"

namespace fastreduce {

Kernel kernel_of_floats(DType dtype, Op op) { return dispatch<Kernel>(Floats{}, dtype, op, CudaKernel{}); }

}  // namespace fastreduce
