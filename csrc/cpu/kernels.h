// The kernels as function pointers, one set for each CPU instruction set.
#pragma once

// What reduce.h needs is included here, before any `#pragma GCC target`: an inline function of
// these headers compiled for AVX-512 could be the copy that the linker keeps for everyone.
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "schedule.h"

// g++ on x86-64 compiles one file for an instruction set by pragma; elsewhere the baseline serves.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FASTREDUCE_X86_KERNELS
#include <immintrin.h>
#endif

namespace fastreduce {

// dsts <- op(srcs) over `elems` elements of every buffer; a destination may be one of the sources.
// An average divides by `contributions`: the number of ranks where it completes, else 1.
using Reduce = void (*)(const std::byte* const* srcs, int num_srcs, std::byte* const* dsts,
                        int num_dsts, int64_t elems, int contributions);

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
