// The kernels that engine_test.cpp asks for, and no others: all of them take a minute to compile
// with sanitizers. One dtype for each kind of accumulator and each way to wrap or to round.
#include <cstdlib>

namespace fastreduce {
constexpr int kSimdBytes = 16;
}

#include "cpu/reduce_range.h"

namespace fastreduce {

Reduce select_baseline(DType dtype, Op op) {
  if (dtype == DType::f32 && (op == Op::sum || op == Op::avg)) return CpuKernel{}.make<float, Avg>();
  if (dtype == DType::i32 && op == Op::sum) return CpuKernel{}.make<uint32_t, Sum>();
  if (dtype == DType::i16 && op == Op::prod) return CpuKernel{}.make<uint16_t, Prod>();
#ifndef FEWEST_KERNELS
  if (dtype == DType::f64 && op == Op::max) return CpuKernel{}.make<double, Max>();
  if (dtype == DType::f16 && op == Op::sum) return CpuKernel{}.make<c10::Half, Avg>();
  if (dtype == DType::bf16 && op == Op::sum) return CpuKernel{}.make<c10::BFloat16, Avg>();
  if (dtype == DType::e5m2 && op == Op::sum) return CpuKernel{}.make<c10::Float8_e5m2, Avg>();
  if (dtype == DType::i64 && op == Op::prod) return CpuKernel{}.make<uint64_t, Prod>();
  if (dtype == DType::u8 && op == Op::bxor) return CpuKernel{}.make<uint8_t, BXor>();
#endif
  std::abort();
}

Reduce select_avx2(DType dtype, Op op) { return select_baseline(dtype, op); }
Reduce select_avx512(DType dtype, Op op) { return select_baseline(dtype, op); }

}  // namespace fastreduce
