// The kernel body: dsts <- op(srcs) over a range. All arithmetic on user data is in this file.
//
// Everything here has internal linkage on purpose: the header is compiled once per instruction set
// (reduce_*.cpp), and one copy must never be linked in place of another.
//
// Sources are folded in the order given, starting from the first one's value, so the bits do not
// depend on the size, the tiling or the vector width. Half, bfloat16 and float8 accumulate in
// float32 and are rounded once; integers wrap.
#pragma once

#include "kernels.h"

namespace fastreduce {
namespace {

template <class T>
using Accumulator = std::conditional_t<std::is_integral_v<T> || std::is_same_v<T, double>, T, float>;

template <class T>
constexpr bool is_float8 = std::is_same_v<T, c10::Float8_e4m3fn> || std::is_same_v<T, c10::Float8_e5m2>;

// Signed overflow is undefined in C++ and int16 products overflow int: wrap in unsigned instead.
template <class A>
struct WrapType {
  using type = A;
};
template <class A>
  requires std::is_integral_v<A>
struct WrapType<A> {
  using type = std::conditional_t<sizeof(A) < 4, uint32_t, std::make_unsigned_t<A>>;
};
template <class A>
using Wrap = typename WrapType<A>::type;

struct Sum {
  template <class T>
  static constexpr bool accepts = true;
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return static_cast<A>(static_cast<Wrap<A>>(a) + static_cast<Wrap<A>>(b));
  }
  template <class A>
  C10_HOST_DEVICE static A finish(A a, int) {
    return a;
  }
};

struct Avg : Sum {
  template <class T>
  static constexpr bool accepts = !std::is_integral_v<T>;
  template <class A>
  C10_HOST_DEVICE static A finish(A a, int contributions) {
    return a / static_cast<A>(contributions);
  }
};

struct Prod : Sum {
  template <class T>
  static constexpr bool accepts = !is_float8<T>;
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return static_cast<A>(static_cast<Wrap<A>>(a) * static_cast<Wrap<A>>(b));
  }
};

// A NaN on either side wins, as in torch.minimum and torch.maximum.
struct Min : Sum {
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return b < a || b != b ? b : a;
  }
};

struct Max : Sum {
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return b > a || b != b ? b : a;
  }
};

// Bits know no element size: the caller counts bytes.
struct Bitwise : Sum {
  template <class T>
  static constexpr bool accepts = std::is_same_v<T, uint8_t>;
};
struct BAnd : Bitwise {
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return a & b;
  }
};
struct BOr : Bitwise {
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return a | b;
  }
};
struct BXor : Bitwise {
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return a ^ b;
  }
};

// V elements held in registers between the loads and the stores.
template <int V, class T, class A>
C10_ALWAYS_INLINE void widen(const T* src, A (&acc)[V]) {
  for (int v = 0; v < V; ++v) acc[v] = static_cast<A>(src[v]);
}

template <int V, class T, class A>
C10_ALWAYS_INLINE void narrow(const A (&acc)[V], T* dst) {
  for (int v = 0; v < V; ++v) dst[v] = static_cast<T>(acc[v]);
}

template <class O, int V, class T, class A>
C10_ALWAYS_INLINE void fold_in(const T* src, A (&acc)[V]) {
  A next[V];
  widen<V>(src, next);
  for (int v = 0; v < V; ++v) acc[v] = O::fold(acc[v], next[v]);
}

// K sources and D destinations, known at compile time or (0) at run time. All loads of a vector
// come before its stores, so a destination may be one of the sources.
template <class T, class O, int K, int D, int V>
C10_ALWAYS_INLINE void reduce_vector(const T* const* srcs, int num_srcs, T* const* dsts, int num_dsts,
                                     int64_t at, int contributions) {
  Accumulator<T> acc[V];
  widen<V>(srcs[0] + at, acc);
  if constexpr (K > 0) {
#pragma GCC unroll 8
    for (int s = 1; s < K; ++s) fold_in<O, V>(srcs[s] + at, acc);
  } else {
    int s = 1;
    for (; s + 4 <= num_srcs; s += 4) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) fold_in<O, V>(srcs[s + j] + at, acc);
    }
    for (; s < num_srcs; ++s) fold_in<O, V>(srcs[s] + at, acc);
  }
  for (int v = 0; v < V; ++v) acc[v] = O::finish(acc[v], contributions);
  T result[V];
  narrow<V>(acc, result);
  if constexpr (D > 0) {
#pragma GCC unroll 8
    for (int d = 0; d < D; ++d) std::memcpy(dsts[d] + at, result, sizeof result);
  } else {
    for (int d = 0; d < num_dsts; ++d) std::memcpy(dsts[d] + at, result, sizeof result);
  }
}

template <class T, class O, int K, int D>
C10_ALWAYS_INLINE void reduce_range(const T* const* srcs, int num_srcs, T* const* dsts, int num_dsts,
                                    int64_t elems, int contributions) {
  // Two cache lines a source for 16-bit floats, whose conversions need the independent work; one
  // for the rest. Measured on Zen 5: more spills registers, less leaves a third of the speed.
  constexpr int V = (sizeof(T) == 2 && !std::is_integral_v<T> ? 128 : 64) / sizeof(T);
  int64_t at = 0;
  for (; at + V <= elems; at += V)
    reduce_vector<T, O, K, D, V>(srcs, num_srcs, dsts, num_dsts, at, contributions);
  for (; at < elems; ++at)
    reduce_vector<T, O, K, D, 1>(srcs, num_srcs, dsts, num_dsts, at, contributions);
}

// Pointers known to be K many are kept in a local array, which the compiler turns into registers.
template <class T, class O, int K>
void reduce(const std::byte* const* srcs, int num_srcs, std::byte* const* dsts, int num_dsts,
            int64_t elems, int contributions) {
  auto all_srcs = reinterpret_cast<const T* const*>(srcs);
  auto all_dsts = reinterpret_cast<T* const*>(dsts);
  if constexpr (K == 0) {
    reduce_range<T, O, 0, 0>(all_srcs, num_srcs, all_dsts, num_dsts, elems, contributions);
  } else {
    const T* src[K];
    std::copy_n(all_srcs, K, src);
    if (num_dsts == K) {
      T* dst[K];
      std::copy_n(all_dsts, K, dst);
      reduce_range<T, O, K, K>(src, K, dst, K, elems, contributions);
    } else {
      reduce_range<T, O, K, 0>(src, K, all_dsts, num_dsts, elems, contributions);
    }
  }
}

template <class T>
void copy(const std::byte* const* srcs, int, std::byte* const* dsts, int num_dsts, int64_t elems, int) {
  for (int d = 0; d < num_dsts; ++d)
    if (dsts[d] != srcs[0]) std::memcpy(dsts[d], srcs[0], elems * sizeof(T));
}

template <class T, class O>
Reduce by_sources(int num_srcs) {
  if constexpr (!O::template accepts<T>) {
    return nullptr;
  } else if constexpr (is_float8<T>) {
    // The conversions dominate: unrolling the sources gains nothing and costs code.
    return num_srcs == 1 ? copy<T> : reduce<T, O, 0>;
  } else {
    switch (num_srcs) {
      case 1: return copy<T>;
      case 2: return reduce<T, O, 2>;
      case 3: return reduce<T, O, 3>;
      case 4: return reduce<T, O, 4>;
      case 5: return reduce<T, O, 5>;
      case 6: return reduce<T, O, 6>;
      case 7: return reduce<T, O, 7>;
      case 8: return reduce<T, O, 8>;
      default: return reduce<T, O, 0>;
    }
  }
}

template <class O>
Reduce by_dtype(DType dtype, int num_srcs) {
  switch (dtype) {
    case DType::u8: return by_sources<uint8_t, O>(num_srcs);
    case DType::i8: return by_sources<int8_t, O>(num_srcs);
    case DType::i16: return by_sources<int16_t, O>(num_srcs);
    case DType::i32: return by_sources<int32_t, O>(num_srcs);
    case DType::i64: return by_sources<int64_t, O>(num_srcs);
    case DType::f16: return by_sources<c10::Half, O>(num_srcs);
    case DType::bf16: return by_sources<c10::BFloat16, O>(num_srcs);
    case DType::f32: return by_sources<float, O>(num_srcs);
    case DType::f64: return by_sources<double, O>(num_srcs);
    case DType::f8_e4m3: return by_sources<c10::Float8_e4m3fn, O>(num_srcs);
    case DType::f8_e5m2: return by_sources<c10::Float8_e5m2, O>(num_srcs);
  }
  return nullptr;
}

// nullptr where the operation makes no sense for the dtype.
[[maybe_unused]] Reduce select(DType dtype, Op op, int num_srcs) {
  switch (op) {
    case Op::sum: return by_dtype<Sum>(dtype, num_srcs);
    case Op::avg: return by_dtype<Avg>(dtype, num_srcs);
    case Op::prod: return by_dtype<Prod>(dtype, num_srcs);
    case Op::min: return by_dtype<Min>(dtype, num_srcs);
    case Op::max: return by_dtype<Max>(dtype, num_srcs);
    case Op::band: return by_dtype<BAnd>(dtype, num_srcs);
    case Op::bor: return by_dtype<BOr>(dtype, num_srcs);
    case Op::bxor: return by_dtype<BXor>(dtype, num_srcs);
  }
  return nullptr;
}

}  // namespace
}  // namespace fastreduce
