// The kernels as function pointers, one set for each CPU instruction set.
#pragma once

// What ops.h and reduce.h include is also included here, before any `#pragma GCC target`. Otherwise inline functions in
// them would be compiled for AVX-512, and the linker could keep that copy for all CPUs. ops.h itself comes after the
// pragma, so that its functions are compiled for the same instruction set as the kernels that they are part of.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "element_types.h"

// With g++ on x86-64 a pragma compiles a file for one instruction set; elsewhere there is only the baseline.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FASTREDUCE_X86_KERNELS
#include <immintrin.h>
#endif

namespace fastreduce {

enum class DType;
enum class Op;

// dsts <- op(srcs) over `elems` elements of every buffer; a destination may be one of the sources. `divisor` is the
// number of ranks if this completes the sum of an average, else 1.
using Reduce = void (*)(const std::byte* const* srcs, int num_srcs, std::byte* const* dsts, int num_dsts, int64_t elems,
                        int divisor);

// nullptr if the operation is not defined for the dtype.
using Select = Reduce (*)(DType dtype, Op op);

Reduce select_baseline(DType dtype, Op op);
Reduce select_avx2(DType dtype, Op op);
Reduce select_avx512(DType dtype, Op op);

// The best set that this CPU can run, or the one that FASTREDUCE_CPU=baseline|avx2|avx512 names.
struct CpuKernels {
  const char* name;
  Select select;
};
const CpuKernels& cpu_kernels();

}  // namespace fastreduce
