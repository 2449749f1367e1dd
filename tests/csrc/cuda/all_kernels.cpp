// Every kernel of both machines, for g++ and the virtual runtime. With -DONLY=T those of one dtype, and
// of bytes, with which peers.cpp proves its pairs. Without optimisation they compile in seconds. The
// CPU's other instruction sets have the same bits (tests/test_bits.py).
namespace fastreduce {
constexpr int kSimdBytes = 16;
}

#include "cpu/reduce_range.h"
#include "cuda/reduce_rows.cuh"

namespace fastreduce {
namespace {

template <class T>
#ifdef ONLY
constexpr bool wanted = std::is_same_v<Unsigned<T>, Unsigned<ONLY>> || std::is_same_v<T, uint8_t>;
#else
constexpr bool wanted = true;
#endif

template <class Made, class Maker>
struct Wanted {
  Maker maker;
  template <class T, class O>
  Made make() const {
    if constexpr (wanted<T>)
      return maker.template make<T, O>();
    else
      return nullptr;
  }
};

}  // namespace

Kernel cuda_kernel(DType dtype, Op op) { return dispatch<Kernel>(dtype, op, Wanted<Kernel, CudaKernel>{}); }

Reduce select_baseline(DType dtype, Op op) { return dispatch<Reduce>(dtype, op, Wanted<Reduce, CpuKernel>{}); }
Reduce select_avx2(DType dtype, Op op) { return select_baseline(dtype, op); }
Reduce select_avx512(DType dtype, Op op) { return select_baseline(dtype, op); }

}  // namespace fastreduce
