// The kernel body: dsts <- op(srcs) over a range. All arithmetic on user data is in this file, for
// the CPU and for CUDA.
//
// Everything here has internal linkage on purpose: the header is compiled once per instruction set
// (reduce_*.cpp), and one copy must never be linked in place of another.
//
// Sources are folded in the order given, starting from the first one's value, so the bits do not
// depend on the size, the tiling or the vector width. Half, bfloat16 and float8 accumulate in
// float32 and are rounded once; integers wrap.
#pragma once

#include "cpu/kernels.h"

// The two compilers have two names for it.
#ifdef __CUDACC__
#define FASTREDUCE_UNROLL _Pragma("unroll")
#else
#define FASTREDUCE_UNROLL _Pragma("GCC unroll 8")
#endif

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

// V elements held in registers between the loads and the stores. Engines that have better loads,
// conversions or stores for a type of pointer overload these four. A source is what load leaves of
// it: for plain pointers still the pointer, a CPU finds the loads to start early by itself.
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

// acc takes sources first .. first + N; all of them are under way before one is waited for.
template <class O, int V, int N, class Srcs, class A>
C10_HOST_DEVICE C10_ALWAYS_INLINE void fold_in(const Srcs& srcs, int first, int64_t at, A (&acc)[V]) {
  decltype(load(srcs[0] + at)) loaded[N];
  FASTREDUCE_UNROLL
  for (int s = 0; s < N; ++s) loaded[s] = load(srcs[first + s] + at);
  FASTREDUCE_UNROLL
  for (int s = 0; s < N; ++s) {
    if (first + s == 0) {
      widen<V>(loaded[s], acc);
      continue;
    }
    A next[V];
    widen<V>(loaded[s], next);
    for (int v = 0; v < V; ++v) acc[v] = O::fold(acc[v], next[v]);
  }
}

// K sources and D destinations, known at compile time or (0) at run time; srcs[i] and dsts[i] are
// pointers of any kind. All loads of a vector come before its stores, so a destination may be one
// of the sources.
template <class T, class O, int K, int D, int V, class Srcs, class Dsts>
C10_HOST_DEVICE C10_ALWAYS_INLINE void reduce_vector(const Srcs& srcs, int num_srcs, const Dsts& dsts,
                                                     int num_dsts, int64_t at, int contributions) {
  Accumulator<T> acc[V];
  if constexpr (K > 0) {
    fold_in<O, V, K>(srcs, 0, at, acc);
  } else {
    fold_in<O, V, 1>(srcs, 0, at, acc);
    int s = 1;
    for (; s + 4 <= num_srcs; s += 4) fold_in<O, V, 4>(srcs, s, at, acc);
    for (; s < num_srcs; ++s) fold_in<O, V, 1>(srcs, s, at, acc);
  }
  for (int v = 0; v < V; ++v) acc[v] = O::finish(acc[v], contributions);
  T result[V];
  narrow<V>(acc, result);
  if constexpr (D > 0) {
    FASTREDUCE_UNROLL
    for (int d = 0; d < D; ++d) store<V>(result, dsts[d] + at);
  } else {
    for (int d = 0; d < num_dsts; ++d) store<V>(result, dsts[d] + at);
  }
}

// ---- the one dispatch: make.template make<T, O>() for a dtype and an operation, or nullptr where
// the operation makes no sense for the dtype

template <class T, class O, class Make>
auto make_if_accepted(const Make& make) -> decltype(make.template make<float, Sum>()) {
  if constexpr (O::template accepts<T>)
    return make.template make<T, O>();
  else
    return nullptr;
}

template <class O, class Make>
auto by_dtype(DType dtype, const Make& make) -> decltype(make.template make<float, Sum>()) {
  switch (dtype) {
    case DType::u8: return make_if_accepted<uint8_t, O>(make);
    case DType::i8: return make_if_accepted<int8_t, O>(make);
    case DType::i16: return make_if_accepted<int16_t, O>(make);
    case DType::i32: return make_if_accepted<int32_t, O>(make);
    case DType::i64: return make_if_accepted<int64_t, O>(make);
    case DType::f16: return make_if_accepted<c10::Half, O>(make);
    case DType::bf16: return make_if_accepted<c10::BFloat16, O>(make);
    case DType::f32: return make_if_accepted<float, O>(make);
    case DType::f64: return make_if_accepted<double, O>(make);
    case DType::f8_e4m3: return make_if_accepted<c10::Float8_e4m3fn, O>(make);
    case DType::f8_e5m2: return make_if_accepted<c10::Float8_e5m2, O>(make);
  }
  return nullptr;
}

template <class Make>
auto select(DType dtype, Op op, const Make& make) -> decltype(make.template make<float, Sum>()) {
  switch (op) {
    case Op::sum: return by_dtype<Sum>(dtype, make);
    case Op::avg: return by_dtype<Avg>(dtype, make);
    case Op::prod: return by_dtype<Prod>(dtype, make);
    case Op::min: return by_dtype<Min>(dtype, make);
    case Op::max: return by_dtype<Max>(dtype, make);
    case Op::band: return by_dtype<BAnd>(dtype, make);
    case Op::bor: return by_dtype<BOr>(dtype, make);
    case Op::bxor: return by_dtype<BXor>(dtype, make);
  }
  return nullptr;
}

}  // namespace
}  // namespace fastreduce
