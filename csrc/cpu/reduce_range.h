// The kernel body over ranges of CPU memory, for one instruction set (see reduce.h).
#pragma once

#include "cpu/kernels.h"
#include "reduce.h"

namespace fastreduce {
namespace {

template <class T, class O, int K, int D>
C10_ALWAYS_INLINE void reduce_range(const T* const* srcs, int num_srcs, T* const* dsts, int num_dsts, int64_t elems,
                                    int divisor) {
  // Two cache lines per source for 16-bit floats, whose conversions need independent work; one line for the rest.
  // Measured on Zen 5, 2026-11-21: more spills registers, less runs at a third of the speed.
  constexpr int V = (sizeof(T) == 2 && !std::is_integral_v<T> ? 128 : 64) / sizeof(T);
  int64_t at = 0;
  for (; at + V <= elems; at += V) reduce_vector<T, O, K, D, V>(srcs, num_srcs, dsts, num_dsts, at, divisor);
  for (; at < elems; ++at) reduce_vector<T, O, K, D, 1>(srcs, num_srcs, dsts, num_dsts, at, divisor);
}

// With K known at compile time, the pointers are copied to a local array, which the compiler keeps in registers.
template <class T, class O, int K>
void reduce(const std::byte* const* srcs, int num_srcs, std::byte* const* dsts, int num_dsts, int64_t elems,
            int divisor) {
  auto all_srcs = reinterpret_cast<const T* const*>(srcs);
  auto all_dsts = reinterpret_cast<T* const*>(dsts);
  if constexpr (K == 0) {
    reduce_range<T, O, 0, 0>(all_srcs, num_srcs, all_dsts, num_dsts, elems, divisor);
  } else {
    const T* src[K];
    std::copy_n(all_srcs, K, src);
    if (num_dsts == K) {
      T* dst[K];
      std::copy_n(all_dsts, K, dst);
      reduce_range<T, O, K, K>(src, K, dst, K, elems, divisor);
    } else {
      reduce_range<T, O, K, 0>(src, K, all_dsts, num_dsts, elems, divisor);
    }
  }
}

template <class T>
void copy(const std::byte* const* srcs, int, std::byte* const* dsts, int num_dsts, int64_t elems, int) {
  for (int d = 0; d < num_dsts; ++d)
    if (dsts[d] != srcs[0]) std::memcpy(dsts[d], srcs[0], elems * sizeof(T));
}

// Chooses by the number of sources: up to 8 each number has its own code, if that is worth its size.
template <bool unrolled>
struct CpuKernel {
  int num_srcs;

  template <class T, class Operation>
  Reduce make() const {
    // One kernel for sum and avg: for a sum, a branch per vector skips the division. (Not on GPUs, where the division
    // would take registers from the loads.)
    using O = std::conditional_t<std::is_same_v<Operation, Sum> && !is_integer<T>, Avg, Operation>;
    if (num_srcs == 1) return copy<T>;
    if constexpr (unrolled && pays_unrolled<T, O>) {
      switch (num_srcs) {
        case 2: return reduce<T, O, 2>;
        case 3: return reduce<T, O, 3>;
        case 4: return reduce<T, O, 4>;
        case 5: return reduce<T, O, 5>;
        case 6: return reduce<T, O, 6>;
        case 7: return reduce<T, O, 7>;
        case 8: return reduce<T, O, 8>;
      }
    }
    return reduce<T, O, 0>;
  }
};

}  // namespace
}  // namespace fastreduce
