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
#define FASTREDUCE_UNROLL _Pragma("GCC unroll 8")
#define FASTREDUCE_NO_UNROLL _Pragma("GCC unroll 1")
#endif

namespace fastreduce {
namespace {

// The four operations below work on V elements that a thread holds in registers. An engine that has
// better ones for its type of pointer overloads them. `load` starts a load and returns what `widen`
// reads later; for plain pointers that is the pointer itself, because CPUs start loads early on their own.
template <class Src>
C10_HOST_DEVICE C10_ALWAYS_INLINE Src load(Src src) {
  return src;
}

template <int V, class T, class A>
C10_HOST_DEVICE C10_ALWAYS_INLINE void widen(const T* src, A (&acc)[V]) {
  for (int v = 0; v < V; ++v) acc[v] = static_cast<A>(src[v]);
}

template <int V, class T, class A>
C10_HOST_DEVICE C10_ALWAYS_INLINE void narrow(const A (&acc)[V], T* values) {
  for (int v = 0; v < V; ++v) values[v] = static_cast<T>(acc[v]);
}

template <int V, class T>
C10_HOST_DEVICE C10_ALWAYS_INLINE void store(const T (&values)[V], T* dst) {
  std::memcpy(dst, values, sizeof values);
}

// Folds the sources first .. first + N - 1, as far as they are below `num_srcs`, into acc. All loads are started
// before the first one is waited for.
template <class O, int V, int N, class Srcs, class A>
C10_HOST_DEVICE C10_ALWAYS_INLINE void fold_in(const Srcs& srcs, int num_srcs, int first, int64_t at, A (&acc)[V]) {
  decltype(load(srcs[0] + at)) loaded[N]{};  // compilers cannot see that what is not loaded is not used
  FASTREDUCE_UNROLL
  for (int s = 0; s < N; ++s)
    if (first + s < num_srcs) loaded[s] = load(srcs[first + s] + at);
  FASTREDUCE_UNROLL
  for (int s = 0; s < N; ++s) {
    if (first + s >= num_srcs) break;
    if (first + s == 0) {
      widen<V>(loaded[s], acc);
      continue;
    }
    A next[V];
    widen<V>(loaded[s], next);
    for (int v = 0; v < V; ++v) acc[v] = O::fold(acc[v], next[v]);
  }
}

// How many sources are loaded at a time if their number is not known at compile time. One for float8, whose
// conversions take longer than its loads.
template <class T>
constexpr int kLoadsAtATime = is_float8<T> ? 1 : 4;

// Reduces one vector of V elements. K and D are the numbers of sources and destinations if they are known at compile
// time, else 0; srcs[i] and dsts[i] are pointers of any kind. All loads come before the stores, so a destination may
// be one of the sources. `divisor` matters for averages only.
template <class T, class O, int K, int D, int V, class Srcs, class Dsts>
C10_HOST_DEVICE C10_ALWAYS_INLINE void reduce_vector(const Srcs& srcs, int num_srcs, const Dsts& dsts, int num_dsts,
                                                     int64_t at, int divisor) {
  Accumulator<T> acc[V];
  if constexpr (K > 0) {
    fold_in<O, V, K>(srcs, K, 0, at, acc);
  } else {
    for (int v = 0; v < V; ++v) acc[v] = {};  // the first source overwrites it; compilers cannot know
    FASTREDUCE_NO_UNROLL
    for (int s = 0; s < num_srcs; s += kLoadsAtATime<T>) fold_in<O, V, kLoadsAtATime<T>>(srcs, num_srcs, s, at, acc);
  }
  if constexpr (O::divides)
    if (divisor != 1)
      for (int v = 0; v < V; ++v) acc[v] = acc[v] / static_cast<Accumulator<T>>(divisor);
  T result[V];
  narrow<V>(acc, result);
  if constexpr (D > 0) {
    FASTREDUCE_UNROLL
    for (int d = 0; d < D; ++d) store<V>(result, dsts[d] + at);
  } else {
    for (int d = 0; d < num_dsts; ++d) store<V>(result, dsts[d] + at);
  }
}

}  // namespace
}  // namespace fastreduce
