// What can be reduced: every element type, every operation with its arithmetic, and which operations are defined for
// which types. This is the only such table: error messages, tests, docs and benchmarks read it (from Python:
// fastreduce._C.ops).
//
// Everything here has internal linkage on purpose: the header is compiled once for each CPU
// instruction set (cpu/reduce_*.cpp), and one copy must never be linked in place of another.
#pragma once

#include <cstdint>
#include <type_traits>

#include "element_types.h"

namespace fastreduce {

// clang-format off
enum class DType { u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz };
enum class Op { sum, avg, prod, min, max, band, bor, bxor };
// clang-format on

template <DType D, class T>
struct Element {
  static constexpr DType dtype = D;
  using Type = T;
};

template <class... Rows>
struct List {};

using Elements = List<Element<DType::u8, uint8_t>, Element<DType::i8, int8_t>, Element<DType::u16, uint16_t>,
                      Element<DType::i16, int16_t>, Element<DType::u32, uint32_t>, Element<DType::i32, int32_t>,
                      Element<DType::u64, uint64_t>, Element<DType::i64, int64_t>, Element<DType::f16, c10::Half>,
                      Element<DType::bf16, c10::BFloat16>, Element<DType::f32, float>, Element<DType::f64, double>,
                      Element<DType::e4m3fn, c10::Float8_e4m3fn>, Element<DType::e5m2, c10::Float8_e5m2>,
                      Element<DType::e4m3fnuz, c10::Float8_e4m3fnuz>, Element<DType::e5m2fnuz, c10::Float8_e5m2fnuz>>;

namespace {

template <class T>
constexpr bool is_integer = std::is_integral_v<T>;
template <class T>
constexpr bool is_float8 = !is_integer<T> && sizeof(T) == 1;

// Half, bfloat16 and float8 accumulate in float32 and are rounded once.
template <class T>
using Accumulator = std::conditional_t<is_integer<T> || std::is_same_v<T, double>, T, float>;

template <class T, bool = is_integer<T>>
struct UnsignedType {
  using type = std::make_unsigned_t<T>;
};
template <class T>
struct UnsignedType<T, false> {
  using type = T;
};
template <class T>
using Unsigned = typename UnsignedType<T>::type;

// The unsigned types in which integers wrap. Signed overflow is undefined in C++, and a product of two 16-bit
// integers, which C++ computes as int, can overflow.
template <class A>
using Wrap = std::conditional_t<is_integer<A> && sizeof(A) < 4, uint32_t, Unsigned<A>>;

// An operation folds two values. If the result's bits are the same for signed and unsigned integers, both use the
// unsigned kernel. Bitwise operations do not depend on the element size, so integers of any width are reduced as bytes.
struct Sum {
  static constexpr Op op = Op::sum;
  static constexpr const char* name = "sum";
  static constexpr bool ignores_sign = true;
  static constexpr bool divides = false;
  static constexpr bool flips = false;
  static constexpr bool bitwise = false;
  template <class T>
  static constexpr bool accepts() {
    return true;
  }
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return static_cast<A>(static_cast<Wrap<A>>(a) + static_cast<Wrap<A>>(b));
  }
};

// The sum, divided by the number of ranks once it is complete.
struct Avg : Sum {
  static constexpr Op op = Op::avg;
  static constexpr const char* name = "avg";
  static constexpr bool divides = true;
  template <class T>
  static constexpr bool accepts() {
    return !is_integer<T>;
  }
};

struct Prod : Sum {
  static constexpr Op op = Op::prod;
  static constexpr const char* name = "prod";
  template <class T>
  static constexpr bool accepts() {
    return !is_float8<T>;
  }
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return static_cast<A>(static_cast<Wrap<A>>(a) * static_cast<Wrap<A>>(b));
  }
};

// A NaN on either side wins, as in torch.minimum and torch.maximum.
struct Min {
  static constexpr Op op = Op::min;
  static constexpr const char* name = "min";
  static constexpr bool ignores_sign = false;
  static constexpr bool divides = false;
  static constexpr bool flips = false;
  static constexpr bool bitwise = false;
  template <class T>
  static constexpr bool accepts() {
    return true;
  }
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return b < a || b != b ? b : a;
  }
};

struct Max : Min {
  static constexpr Op op = Op::max;
  static constexpr const char* name = "max";
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return b > a || b != b ? b : a;
  }
};

// Min and Max, of signed and unsigned integers alike, by one kernel. It is for GPUs, where arithmetic costs less than
// memory (predicted) and where every kernel takes long to compile: nvcc needed 28 s instead of 40 for one architecture.
// On a CPU it took up to 1.14 times as long in cache (both: 2 EPYC cores, AVX2, 2026-11-26).
//
// The kernel flips bits of all values before they are folded, and of the result. With the top bit flipped, signed
// integers are in the order of unsigned ones; with all bits flipped, integers are in the opposite order, and so are
// floats with their sign flipped. Flipping again gives back the very bits, those of a NaN too.
struct FlippedMin : Min {
  static constexpr bool flips = true;
};

constexpr int kTopBit = 1, kOtherBits = 2;

struct BAnd {
  static constexpr Op op = Op::band;
  static constexpr const char* name = "band";
  static constexpr bool ignores_sign = true;
  static constexpr bool divides = false;
  static constexpr bool flips = false;
  static constexpr bool bitwise = true;
  template <class T>
  static constexpr bool accepts() {
    return std::is_same_v<T, uint8_t>;
  }
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return a & b;
  }
};

struct BOr : BAnd {
  static constexpr Op op = Op::bor;
  static constexpr const char* name = "bor";
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return a | b;
  }
};

struct BXor : BAnd {
  static constexpr Op op = Op::bxor;
  static constexpr const char* name = "bxor";
  template <class A>
  C10_HOST_DEVICE static A fold(A a, A b) {
    return a ^ b;
  }
};

using Operations = List<Sum, Avg, Prod, Min, Max, BAnd, BOr, BXor>;

// ---- the one dispatch

template <class... Rows, class Visit>
void for_each(List<Rows...>, const Visit& visit) {
  (visit(Rows{}), ...);
}

template <class T, class O>
using Stored = std::conditional_t<O::ignores_sign, Unsigned<T>, T>;

// One kernel for sum and avg: for a sum, a branch per vector skips the division. On GPUs it needs no more registers
// (ptxas -v for sm_75, 80 and 90), and the loads come before it (tests/csrc/cuda/test_machine_code.py).
template <class T, class O>
using Computed = std::conditional_t<std::is_same_v<O, Sum> && !is_integer<T>, Avg, O>;

// Returns make.template make<T, O>() for the types T and O of `dtype` and `op`, or Result() if the operation is not
// defined for the dtype.
template <class Result, class Make>
Result dispatch(DType dtype, Op op, const Make& make) {
  Result result{};
  for_each(Operations{}, [&]<class O>(O) {
    if (O::op != op) return;
    for_each(Elements{}, [&]<class E>(E) {
      using T = typename E::Type;
      if constexpr (O::template accepts<T>())
        if (E::dtype == dtype) result = make.template make<Stored<T, O>, Computed<T, O>>();
    });
  });
  return result;
}

// Which bits make FlippedMin of min or max.
inline int flipped_bits(DType dtype, Op op) {
  int bits = 0;
  for_each(Elements{}, [&]<class E>(E) {
    using T = typename E::Type;
    if (E::dtype != dtype) return;
    const int order = is_integer<T> && std::is_signed_v<T> ? kTopBit : 0;
    const int opposite = is_integer<T> ? kTopBit | kOtherBits : kTopBit;
    bits = op == Op::max ? order ^ opposite : order;
  });
  return bits;
}

}  // namespace
}  // namespace fastreduce
