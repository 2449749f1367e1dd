// The registers of the instruction set that a file is compiled for, as a type. With it no kernel depends on what the
// compiler would vectorise by itself. The file defines `kSimdBytes` first: g++ has read all macros of a C++ file before
// it comes to a `#pragma GCC target`, so they do not tell.
#pragma once

#include <type_traits>

namespace fastreduce {
namespace {

template <class T>
struct SimdOf {
  using type = T;
};
template <class T>
  requires std::is_arithmetic_v<T>
struct SimdOf<T> {
  typedef T type __attribute__((vector_size(kSimdBytes)));
};
template <class T>
using Simd = typename SimdOf<T>::type;

}  // namespace
}  // namespace fastreduce
