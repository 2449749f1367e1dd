// The kernels as function pointers, one set for each CPU instruction set.
#pragma once

// What reduce.h includes is included here, before any `#pragma GCC target`: an inline function of
// a library's header that was compiled for AVX-512 could be the copy that the linker keeps for all.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ops.h"

// g++ on x86-64 compiles one file for an instruction set by pragma; elsewhere the baseline serves.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FASTREDUCE_X86_KERNELS
#include <immintrin.h>
#endif

namespace fastreduce {

#ifdef FASTREDUCE_X86_KERNELS
constexpr bool kBaselineIsTheBest = false;
#else
constexpr bool kBaselineIsTheBest = true;
#endif

// dsts <- op(srcs) over `elems` elements of every buffer; a destination may be one of the sources.
// `divisor` is the number of ranks where an average's sum is complete, else 1.
using Reduce = void (*)(const std::byte* const* srcs, int num_srcs, std::byte* const* dsts, int num_dsts, int64_t elems,
                        int divisor);

// nullptr where the operation makes no sense for the dtype.
using Select = Reduce (*)(DType dtype, Op op, int num_srcs);

Reduce select_baseline(DType dtype, Op op, int num_srcs);
Reduce select_avx2(DType dtype, Op op, int num_srcs);
Reduce select_avx512(DType dtype, Op op, int num_srcs);

// The best set that this CPU runs. FASTREDUCE_CPU=baseline|avx2|avx512 asks for a lesser one.
struct CpuKernels {
  const char* name;
  Select select;
};
const CpuKernels& cpu_kernels();

}  // namespace fastreduce
