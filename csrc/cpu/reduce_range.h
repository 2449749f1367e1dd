// The kernel body over ranges of CPU memory, for one instruction set (see reduce.h).
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"
#include "reduce.h"

namespace fastreduce {
namespace {

// How many registers of one source are reduced at a time. Float8 spends its time in conversions. With these numbers,
// one loop for any number of sources took 0.91 to 1.06 of the time of separate code for 2, 3, ... 8 sources (geometric
// mean of 54 cases of float32, bfloat16 and float16, 64 KiB to 8 MiB, 2 to 8 ranks; 2 Xeon cores with AVX-512,
// 2026-11-22).
template <class T>
constexpr int kRegisters = is_float8<T>                      ? 1
                           : is_integer<T> || sizeof(T) == 2 ? 2
                                                             : 4;

template <class T, class O>
void reduce(const std::byte* const* srcs, int num_srcs, std::byte* const* dsts, int num_dsts, int64_t elems,
            int divisor) {
  if (num_srcs == 1) {
    for (int d = 0; d < num_dsts; ++d)
      if (dsts[d] != srcs[0]) std::memcpy(dsts[d], srcs[0], elems * sizeof(T));
    return;
  }
  using Part = Simd<Accumulator<T>>;
  constexpr int V = kRegisters<T> * kSimdBytes / sizeof(T);
  const auto src = reinterpret_cast<const T* const*>(srcs);
  const auto dst = reinterpret_cast<T* const*>(dsts);
  int64_t at = 0;
  for (; at + V <= elems; at += V) reduce_vector<T, O, 0, V, Part>(src, num_srcs, dst, num_dsts, at, divisor);
  for (; at < elems; ++at) reduce_vector<T, O, 0, 1>(src, num_srcs, dst, num_dsts, at, divisor);
}

struct CpuKernel {
  template <class T, class O>
  Reduce make() const {
    return reduce<T, O>;
  }
};

}  // namespace
}  // namespace fastreduce
