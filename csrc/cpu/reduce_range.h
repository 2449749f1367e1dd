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

// How far ahead each source is fetched. CPUs do so by themselves, but not well from many sources at a time. With it,
// calls took 0.79 of the time (geometric mean of float32 and bfloat16 on 2, 4 and 8 ranks, 16 KiB to 64 MiB, three runs
// in turn, buffers of 256 MiB in turn; 0.54 to 1.08, the least with bfloat16 on 8 ranks). 0.5, 1 and 4 KiB were worse
// by 1 to 4 % (2 virtual cores of an AMD EPYC, family 26 model 2, 2026-11-30).
constexpr int kAheadBytes = 2048;
constexpr int kFetchBytes = 64;  // of a cache line

template <int kBytes, class T>
C10_ALWAYS_INLINE void fetch_ahead(const T* const* src, int num_srcs, int64_t at) {
  FASTREDUCE_NO_UNROLL
  for (int s = 0; s < num_srcs; ++s) {
    const char* const begin = reinterpret_cast<const char*>(src[s] + at) + kAheadBytes;
    FASTREDUCE_UNROLL
    for (int byte = 0; byte < kBytes; byte += kFetchBytes) __builtin_prefetch(begin + byte);
  }
}

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
  for (; at + V <= elems; at += V) {
    fetch_ahead<V * sizeof(T)>(src, num_srcs, at);
    reduce_vector<T, O, 0, V, Part>(src, num_srcs, dst, num_dsts, at, divisor);
  }
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
