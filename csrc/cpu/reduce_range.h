// The kernel body over ranges of CPU memory, for one instruction set (see reduce.h).
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"
#include "reduce.h"

namespace fastreduce {
namespace {

// K: as reduce_vector's. How many registers of one source are reduced at a time. What is converted takes twice as many
// for its sums, and float8 spends its time in conversions. 4 where a loop goes over the sources: with 2, integers took
// up to 1.3 times as long in cache. With code of its own 2 are as fast there, and from memory they took 0.81 to 1.02 of
// the time (float32 and float64; 2 virtual cores of an AMD EPYC, family 26 model 2, 2026-11-30).
template <class T, int K>
constexpr int kRegisters = is_float8<T>                                  ? 1
                           : K == 0 && std::is_same_v<T, Accumulator<T>> ? 4
                                                                         : 2;

template <class T, class O, int K>
void reduce_range(const T* const* srcs, int num_srcs, T* const* dsts, int num_dsts, int64_t elems, int divisor) {
  using Part = Simd<Accumulator<T>>;
  constexpr int V = kRegisters<T, K> * kSimdBytes / sizeof(T);
  int64_t at = 0;
  for (; at + V <= elems; at += V) reduce_vector<T, O, K, V, Part>(srcs, num_srcs, dsts, num_dsts, at, divisor);
  for (; at < elems; ++at) reduce_vector<T, O, 0, 1>(srcs, num_srcs, dsts, num_dsts, at, divisor);
}

// K sources into as many destinations. The pointers are copied, or every store could have changed them.
template <class T, class O, int K>
void reduce_fixed(const T* const* srcs, T* const* dsts, int64_t elems, int divisor) {
  const T* src[K];
  T* dst[K];
  std::memcpy(src, srcs, sizeof src);
  std::memcpy(dst, dsts, sizeof dst);
  reduce_range<T, O, K>(src, K, dst, K, elems, divisor);
}

template <class T, class O>
void reduce(const std::byte* const* srcs, int num_srcs, std::byte* const* dsts, int num_dsts, int64_t elems,
            int divisor) {
  if (num_srcs == 1) {
    for (int d = 0; d < num_dsts; ++d)
      if (dsts[d] != srcs[0]) std::memcpy(dsts[d], srcs[0], elems * sizeof(T));
    return;
  }
  const auto src = reinterpret_cast<const T* const*>(srcs);
  const auto dst = reinterpret_cast<T* const*>(dsts);
  if constexpr (pays_unrolled<T, O>) {
    switch (num_srcs == num_dsts ? num_srcs : 0) {
      case 2: return reduce_fixed<T, O, 2>(src, dst, elems, divisor);
      case 3: return reduce_fixed<T, O, 3>(src, dst, elems, divisor);
      case 4: return reduce_fixed<T, O, 4>(src, dst, elems, divisor);
      case 8: return reduce_fixed<T, O, 8>(src, dst, elems, divisor);
    }
  }
  reduce_range<T, O, 0>(src, num_srcs, dst, num_dsts, elems, divisor);
}

struct CpuKernel {
  template <class T, class O>
  Reduce make() const {
    return reduce<T, O>;
  }
};

}  // namespace
}  // namespace fastreduce
