// A few of the CUDA kernels, for g++ and the virtual runtime: all of them take minutes to compile.
#include <cstdlib>

#include "cuda/reduce_rows.cuh"

namespace fastreduce {

Kernel cuda_kernel(DType dtype, Op op) {
  if (dtype == DType::f32 && (op == Op::sum || op == Op::avg)) return CudaKernel{}.make<float, Avg>();
  if (dtype == DType::bf16 && op == Op::sum) return CudaKernel{}.make<c10::BFloat16, Avg>();
  if (dtype == DType::f64 && op == Op::max) return CudaKernel{}.make<double, Max>();
  if (dtype == DType::i64 && op == Op::prod) return CudaKernel{}.make<uint64_t, Prod>();
  if (dtype == DType::u8 && (op == Op::sum || op == Op::bxor))
    return op == Op::sum ? CudaKernel{}.make<uint8_t, Sum>() : CudaKernel{}.make<uint8_t, BXor>();
  std::abort();
}

}  // namespace fastreduce
