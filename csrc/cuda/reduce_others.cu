#include "cuda/reduce_rows.cuh"

namespace fastreduce {

Kernel kernel_of_floats(DType dtype, Op op);

// The kernels for floats are in another file, so that both files compile at the same time.
Kernel cuda_kernel(DType dtype, Op op) {
  const Kernel found = kernel_of_floats(dtype, op);
  return found ? found : dispatch<Kernel>(joined(Integers{}, Floats8{}), dtype, op, CudaKernel{});
}

}  // namespace fastreduce
