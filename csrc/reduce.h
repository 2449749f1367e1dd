// The kernel body: dsts <- op(srcs) over a range, for the CPU and for CUDA. All arithmetic on user data is here and
// in ops.h. Like ops.h it has internal linkage, because it is compiled once for each instruction set.
//
// Sources are folded in the order given, starting from the first one's value, so the bits do not
// depend on the size, the tiling or the vector width.
#pragma once

#include <cstring>

#include "ops.h"

// g++ and nvcc have different pragmas to unroll a loop, or not to.
#ifdef __CUDACC__
#define FASTREDUCE_UNROLL _Pragma("unroll")
#define FASTREDUCE_NO_UNROLL _Pragma("unroll 1")
#else
#define FASTREDUCE_UNROLL _Pragma("GCC unroll 16")
#define FASTREDUCE_NO_UNROLL _Pragma("GCC unroll 1")
#endif

namespace fastreduce {
namespace {

// Elements that fill a register, at any address. With memcpy in its place g++ 12 moves 16 bytes through two general
// registers.
template <class Part>
struct __attribute__((packed, may_alias)) Anywhere {
  Part part;
};

// The operations below work on the elements that a thread holds in registers: an array of `Part`, which is one element
// or several side by side. An engine that has better operations for its type of pointer or part overloads them. `load`
// starts a load and returns what `widen` reads later; for plain pointers that is the pointer itself, because CPUs start
// loads early on their own.
template <class Src>
C10_HOST_DEVICE C10_ALWAYS_INLINE Src load(Src src) {
  return src;
}

template <class T, class Part, int N>
C10_HOST_DEVICE C10_ALWAYS_INLINE void widen(const T* src, Part (&acc)[N]) {
  using A = Accumulator<T>;
  constexpr int kElems = sizeof(Part) / sizeof(A);
  if constexpr (std::is_same_v<T, Part>) {
    std::memcpy(acc, src, sizeof acc);
  } else if constexpr (std::is_same_v<T, A>) {
    FASTREDUCE_UNROLL
    for (int n = 0; n < N; ++n) acc[n] = reinterpret_cast<const Anywhere<Part>*>(src + n * kElems)->part;
  } else {
    for (int v = 0; v < N * kElems; ++v) reinterpret_cast<A*>(acc)[v] = static_cast<A>(src[v]);
  }
}

template <class Part, int N, class T, int V>
C10_HOST_DEVICE C10_ALWAYS_INLINE void narrow(const Part (&acc)[N], T (&values)[V]) {
  for (int v = 0; v < V; ++v) values[v] = static_cast<T>(reinterpret_cast<const Accumulator<T>*>(acc)[v]);
}

template <class Part, int N, class T>
C10_HOST_DEVICE C10_ALWAYS_INLINE void store(const Part (&values)[N], T* dst) {
  if constexpr (std::is_same_v<T, Part>) {
    std::memcpy(dst, values, sizeof values);
  } else {
    FASTREDUCE_UNROLL
    for (int n = 0; n < N; ++n)
      reinterpret_cast<Anywhere<Part>*>(dst + n * (sizeof(Part) / sizeof(T)))->part = values[n];
  }
}

// See FlippedMin; `which`: kTopBit, kOtherBits, both or none.
template <class O, class A, int N>
C10_HOST_DEVICE C10_ALWAYS_INLINE void flip_bits(int which, A (&acc)[N]) {
  if constexpr (O::flips) {
    using Bits = std::conditional_t<is_integer<A>, A, std::conditional_t<sizeof(A) == 4, uint32_t, uint64_t>>;
    constexpr Bits kTop = Bits{1} << (8 * sizeof(A) - 1);
    const Bits mask = (which & kTopBit ? kTop : 0) | (which & kOtherBits ? static_cast<Bits>(~kTop) : 0);
    FASTREDUCE_UNROLL
    for (int n = 0; n < N; ++n) {
      Bits bits;
      std::memcpy(&bits, &acc[n], sizeof bits);
      bits ^= mask;
      std::memcpy(&acc[n], &bits, sizeof bits);
    }
  }
}

// Folds the sources first .. first + S - 1, as far as they are below `num_srcs`, into acc. All loads are started
// before the first one is waited for.
template <class O, int S, class Srcs, class Part, int N>
C10_HOST_DEVICE C10_ALWAYS_INLINE void fold_in(const Srcs& srcs, int num_srcs, int first, int64_t at, int parameter,
                                               Part (&acc)[N]) {
  decltype(load(srcs[0] + at)) loaded[S]{};  // compilers cannot see that what is not loaded is not used
  FASTREDUCE_UNROLL
  for (int s = 0; s < S; ++s)
    if (first + s < num_srcs) loaded[s] = load(srcs[first + s] + at);
  FASTREDUCE_UNROLL
  for (int s = 0; s < S; ++s) {
    if (first + s >= num_srcs) break;
    if (first + s == 0) {
      widen(loaded[s], acc);
      flip_bits<O>(parameter, acc);
      continue;
    }
    Part next[N];
    widen(loaded[s], next);
    flip_bits<O>(parameter, next);
    FASTREDUCE_UNROLL
    for (int n = 0; n < N; ++n) acc[n] = O::fold(acc[n], next[n]);
  }
}

// How many sources are loaded, and how many destinations stored, by instructions of their own if their number is not
// known at compile time. CPUs see strides in the addresses of each single instruction (the "stride prefetchers" of
// AMD's and Intel's optimization manuals), so they cannot fetch ahead for one that goes from source to source, or from
// destination to destination: sums of 4 and 8 buffers in memory took 1.1 to 2.6 times as long with it as with 4, and 8
// were no better (float32 and bfloat16, 2 virtual cores of an AMD EPYC, family 26 model 2, 2026-11-30). GPUs have 4
// loads in flight (predicted). One load for float8, whose conversions take longer.
template <class T>
constexpr int kLoadsAtATime = is_float8<T> ? 1 : 4;
template <class Dst>
constexpr int kStoresAtATime = std::is_pointer_v<Dst> ? 4 : 1;

// Whether separate code for some numbers of sources and as many destinations is worth its size. All others take a loop.
// Not for types and operations that are rarely used with much data, and not for float8.
template <class T, class O>
constexpr bool pays_unrolled = !is_integer<T> && !is_float8<T> && !std::is_same_v<O, Prod>;

// Reduces one vector of V elements. K is the number of sources if it is known at compile time, else 0; srcs[i] and
// dsts[i] are pointers of any kind. All loads come before the stores, so a destination may be one of the sources.
// `parameter` is the divisor of an average, which is 1 before its sum is complete, or FlippedMin's flipped_bits.
template <class T, class O, int K, int V, class Part = Accumulator<T>, class Srcs, class Dsts>
C10_HOST_DEVICE C10_ALWAYS_INLINE void reduce_vector(const Srcs& srcs, int num_srcs, const Dsts& dsts, int num_dsts,
                                                     int64_t at, int parameter) {
  using A = Accumulator<T>;
  constexpr int N = V * sizeof(A) / sizeof(Part);
  Part acc[N];
  if constexpr (K > 0) {
    fold_in<O, K>(srcs, K, 0, at, parameter, acc);
  } else {
    FASTREDUCE_UNROLL
    for (int n = 0; n < N; ++n) acc[n] = Part{};  // the first source overwrites it; compilers cannot know
    constexpr int S = kLoadsAtATime<T>;
    FASTREDUCE_NO_UNROLL
    for (int s = 0; s < num_srcs; s += S) fold_in<O, S>(srcs, num_srcs, s, at, parameter, acc);
  }
  if constexpr (O::divides)
    if (parameter != 1) {
      FASTREDUCE_UNROLL
      for (int n = 0; n < N; ++n) acc[n] = acc[n] / static_cast<A>(parameter);
    }
  flip_bits<O>(parameter, acc);
  const auto store_all = [&](const auto& values) {
    constexpr int D = kStoresAtATime<decltype(dsts[0] + at)>;
    for (int d = 0; d < num_dsts; d += D) {
      store(values, dsts[d] + at);
      FASTREDUCE_UNROLL
      for (int i = 1; i < D; ++i)
        if (d + i < num_dsts) store(values, dsts[d + i] + at);
    }
  };
  if constexpr (std::is_same_v<T, A>) {
    store_all(acc);
  } else {
    T values[V];
    narrow(acc, values);
    store_all(values);
  }
}

}  // namespace
}  // namespace fastreduce
