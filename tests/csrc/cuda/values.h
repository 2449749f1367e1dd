// What the tensors hold, and what a reduction makes of it, said once more.
#pragma once

#include <c10/core/ScalarType.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace engines_test {

using namespace fastreduce;

// exact:   sums, products and averages that are the same in every order; every value tells its place
// noise:   values whose sums show the order of summing
// special: also subnormals, infinities and NaNs. That a NaN is a NaN is promised, its payload is not.
enum class Data { exact, noise, special };

constexpr const char* kDataNames[] = {"exact", "noise", "special"};

template <class... Rows>
constexpr int length(List<Rows...>) {
  return sizeof...(Rows);
}

constexpr int kDTypes = length(Elements{}), kOps = length(Operations{});

struct Arithmetic {
  DType dtype;
  Op op;
  std::string name() const {
    std::string name, of;
    for_each(Operations{}, [&]<class O>(O) {
      if (O::op == op) name = O::name;
    });
    for_each(Elements{}, [&]<class E>(E) {
      if (E::dtype == dtype) of = c10::toString(c10::CppTypeToScalarType<typename E::Type>::value);
    });
    return name + " of " + of;
  }
};

template <class Visit>  // visit(T{})
auto with_type(DType dtype, const Visit& visit) {
  using Result = decltype(visit(uint8_t{}));
  std::conditional_t<std::is_void_v<Result>, int, Result> result{};
  for_each(Elements{}, [&]<class E>(E) {
    if (E::dtype != dtype) return;
    if constexpr (std::is_void_v<Result>)
      visit(typename E::Type{});
    else
      result = visit(typename E::Type{});
  });
  return result;
}

// Integers from 0 to here are exact in the dtype.
template <class T>
constexpr uint64_t kExact = uint64_t{1} << std::min(std::numeric_limits<T>::digits, 40);

struct Place {
  int ranks, rank;
  uint64_t elem;  // of which tensor, too
};

inline uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 31) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
  return x ^ x >> 32;
}

// Integers wrap, so that all of them are exact; of products, odd ones are never all zero.
template <class T>
  requires std::is_integral_v<T>
T value_at(Data, Op op, const Place&, uint64_t random) {
  return static_cast<T>(op == Op::prod ? random | 1 : random);
}

template <class T>
double exact_at(Op op, const Place& place, uint64_t random) {
  if (op == Op::prod) return std::vector{1.0, -2.0, 0.5, -1.0}[random % 4];
  const uint64_t limit = op == Op::sum || op == Op::avg ? kExact<T> / place.ranks : kExact<T>;
  if (limit >= 16) return static_cast<double>(random % (2 * limit + 1)) - static_cast<double>(limit);
  // Too narrow for all ranks: one of them speaks, whose turn it is by the place.
  const bool speaks = mixed(place.elem) % place.ranks == static_cast<uint64_t>(place.rank);
  return speaks ? static_cast<double>(1 + random % kExact<T>) : 0;
}

template <class T>
T value_at(Data data, Op op, const Place& place, uint64_t random) {
  if (data == Data::exact) return static_cast<T>(static_cast<float>(exact_at<T>(op, place, random)));
  if (data == Data::special && random % 8 == 0) {
    const uint64_t bits = mixed(random);
    T value;
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
    return value;
  }
  const double noise = static_cast<double>(random >> 11) * 0x1p-51 - 2;
  if constexpr (sizeof(T) == 8) return noise;
  return static_cast<T>(static_cast<float>(noise));
}

template <class T>
T value_of(Data data, Op op, const Place& place) {
  return value_at<T>(data, op, place, mixed(place.elem * 64 + place.rank + 1));
}

template <class A>
A folded(Op op, A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    switch (op) {
      case Op::sum: return static_cast<A>(x + y);
      case Op::prod: return static_cast<A>(x * y);
      case Op::band: return static_cast<A>(x & y);
      case Op::bor: return static_cast<A>(x | y);
      case Op::bxor: return static_cast<A>(x ^ y);
      default: return op == Op::min ? std::min(a, b) : std::max(a, b);
    }
  } else {
    if (op == Op::sum || op == Op::avg) return a + b;
    if (op == Op::prod) return a * b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<A>::quiet_NaN();
    return op == Op::min ? std::min(a, b) : std::max(a, b);
  }
}

// Ascending, narrow floats in float32 and rounded once; an average divides what was accumulated.
template <class T>
T reduced(Op op, const std::vector<T>& values) {
  using Wide = std::conditional_t<std::is_integral_v<T> || std::is_same_v<T, double>, T, float>;
  Wide all = static_cast<Wide>(values[0]);
  for (size_t i = 1; i < values.size(); ++i) all = folded(op, all, static_cast<Wide>(values[i]));
  if (op == Op::avg) all /= static_cast<Wide>(values.size());
  return static_cast<T>(all);
}

}  // namespace engines_test
